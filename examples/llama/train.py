"""A Llama of transformers in stages, one per rank, trained by 1F1B or by flush-free 2BW.

    torchrun --standalone --nproc-per-node 2 -m examples.llama.train
    torchrun --standalone --nproc-per-node 2 -m examples.llama.train --asynchronous

Both print the loss of each batch, and the words that tell `pipegap advise` how long a step takes.
The text is that of `make data-wiki`, as bytes. Each rank takes a GPU where there are some.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from pipegap import Schedule2BW

MICROBATCHES, ROWS, LENGTH, MAX_NORM = 4, 16, 64, 1.0
WARM_UP = 5
"""Batches that are not timed."""
CONFIG = LlamaConfig(
    vocab_size=257,  # bytes, and the end of an article
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=4,
    num_attention_heads=4,
    tie_word_embeddings=False,  # the first and the last stage each have their own
    use_cache=False,
)


class Stage(nn.Module):
    """Part `number` of `count` of a Llama that is the same on every rank."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.llama = LlamaForCausalLM(CONFIG)
        size = CONFIG.num_hidden_layers // count
        body = self.llama.model
        body.layers = body.layers[number * size : (number + 1) * size]
        if number > 0:
            body.embed_tokens = nn.Identity()
        if number < count - 1:
            body.norm = self.llama.lm_head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [rows, length], or what the stage before returned, to the same or to logits."""
        return self.llama(x).logits


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, [ROWS, LENGTH], that no other batch has."""
    text = np.memmap("data/wiki/train-00000.tokens", "<u2", mode="r")
    for start in range(0, count * ROWS * LENGTH, ROWS * LENGTH):
        tokens = torch.from_numpy(text[start : start + ROWS * LENGTH + 1].astype(np.int64))
        yield tokens[:-1].view(ROWS, LENGTH), tokens[1:].view(ROWS, LENGTH)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats per byte."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def device_of(rank: int) -> torch.device:
    """A GPU of this machine, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpu = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(gpu)  # NCCL uses the current one
    return gpu


def norm_over_stages(module: nn.Module) -> Tensor:
    """The norm of the gradient over all stages."""
    norms = torch.stack([weight.grad.norm() for weight in module.parameters()])
    square = norms.square().sum()
    dist.all_reduce(square)
    return square.sqrt()


def train(updates: int, asynchronous: bool) -> None:
    """Trains this rank's stage; the last one prints."""
    rank, count = dist.get_rank(), dist.get_world_size()
    device = device_of(rank)
    module = Stage(rank, count).to(device)
    stage = PipelineStage(module, rank, count, device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)

    def update() -> None:
        if asynchronous:
            schedule.clip_grad_norm_(MAX_NORM)
        else:
            norm = norm_over_stages(module)
            nn.utils.clip_grads_with_norm_(module.parameters(), MAX_NORM, norm)
        optimizer.step()
        optimizer.zero_grad()

    if asynchronous:
        options = {"update": update, "error_feedback": 1.0}
        schedule = Schedule2BW(stage, MICROBATCHES, loss_of, **options)
    else:
        schedule = Schedule1F1B(stage, MICROBATCHES, loss_of)

    is_first, is_last = rank == 0, rank == count - 1
    ends: list[float] = []
    for number, batch in enumerate(batches(updates)):
        x, y = (rows.to(device) for rows in batch)
        losses: list[Tensor] = []
        last = {"target": y, "losses": losses} if is_last else {}
        schedule.step(*([x] if is_first else []), **last)
        if not asynchronous:
            update()
        if is_last:
            print(f"batch {number}: {torch.stack(losses).mean():.6f}", flush=True)
        ends.append(time.perf_counter())  # the last rank has read its losses
    if asynchronous:
        with schedule.drained():  # here one would evaluate, and save
            pass
    if is_last and len(ends) > WARM_UP + 1:
        step = median(after - before for before, after in pairwise(ends[WARM_UP:]))
        word = "time_2bw" if asynchronous else "step_time"
        print(f"pipegap advise stages={count} microbatches={MICROBATCHES} {word}={step:.4g}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--asynchronous", action="store_true", help="2BW with Error Feedback")
    given = parser.parse_args()
    dist.init_process_group()  # gloo, and NCCL where there are GPUs
    train(given.updates, given.asynchronous)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
