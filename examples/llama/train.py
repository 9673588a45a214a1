"""A Llama of transformers in stages, one per rank, trained by 1F1B or by flush-free 2BW; or whole,
on a part of each batch, by FSDP.

    torchrun --standalone --nproc-per-node 2 -m examples.llama.train
    torchrun --standalone --nproc-per-node 2 -m examples.llama.train --asynchronous
    torchrun --standalone --nproc-per-node 2 -m examples.llama.train --fsdp

All print the loss of each batch, and the words that tell `pipegap advise` how long a step takes.
With `--profile FOLDER` each rank leaves a trace of its last batches there, for `trace=FOLDER`.
The text is that of `make data-wiki`, as bytes. Each rank takes a GPU where there are some.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from torch.profiler import profile, schedule
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
        # An Identity passes hidden states on, in place of the embedding, the norm and the head.
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
    dist.all_reduce(square)  # squares add up over stages, norms do not
    return square.sqrt()


class Pipeline:
    """This rank's stage, and the schedule that trains it; the last rank has losses."""

    def __init__(self, asynchronous: bool) -> None:
        rank, count = dist.get_rank(), dist.get_world_size()
        self.device, self.asynchronous = device_of(rank), asynchronous
        self.module = Stage(rank, count).to(self.device)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=3e-3)
        self.stage = PipelineStage(self.module, rank, count, self.device)
        if asynchronous:
            options = {"update": self.update, "error_feedback": 1.0}
            self.schedule = Schedule2BW(self.stage, MICROBATCHES, loss_of, **options)
        else:
            self.schedule = Schedule1F1B(self.stage, MICROBATCHES, loss_of)

    def update(self) -> None:
        """Of a batch: with 2BW the schedule calls it, one batch later."""
        if self.asynchronous:
            self.schedule.clip_grad_norm_(MAX_NORM)
        else:
            norm = norm_over_stages(self.module)
            nn.utils.clip_grads_with_norm_(self.module.parameters(), MAX_NORM, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Trains on a batch."""
        losses: list[Tensor] = []
        # Only the first stage reads the tokens, and only the last one has a loss.
        of_last = {"target": y, "losses": losses} if self.stage.is_last else {}
        self.schedule.step(*([x] if self.stage.is_first else []), **of_last)
        if not self.asynchronous:  # else the schedule has made the update of the batch before
            self.update()
        return torch.stack(losses).mean() if losses else None

    def end(self) -> None:
        """After the last batch: here one would evaluate, and save."""
        with self.schedule.drained() if self.asynchronous else nullcontext():
            pass


class Sharded:
    """The whole model on this rank's rows of each batch, its weights sharded over all ranks."""

    def __init__(self) -> None:
        self.device = device_of(dist.get_rank())
        self.module = Stage(0, 1).to(self.device)
        for part in (*self.module.llama.model.layers, self.module):  # the whole model comes last
            fully_shard(part)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=3e-3)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Trains on a batch."""
        rank, count = dist.get_rank(), dist.get_world_size()
        loss = loss_of(self.module(x.chunk(count)[rank]), y.chunk(count)[rank])
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach() / count  # each rank has as many rows
        dist.all_reduce(mean)
        return mean

    def end(self) -> None:
        """Nothing is left."""


def profiled(path: Path, updates: int) -> profile:
    """A profiler that traces what comes after warming up, and writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    warmed_up = schedule(wait=WARM_UP - 1, warmup=1, active=updates - WARM_UP, repeat=1)
    return profile(schedule=warmed_up, on_trace_ready=lambda p: p.export_chrome_trace(str(path)))


def train(trainer: Pipeline | Sharded, updates: int, word: str, folder: Path | None) -> None:
    """Trains on so many batches; the last rank prints."""
    rank, count = dist.get_rank(), dist.get_world_size()
    ends: list[float] = []
    with profiled(folder / f"rank{rank}.json", updates) if folder else nullcontext() as profiler:
        for number, batch in enumerate(batches(updates)):
            x, y = (rows.to(trainer.device) for rows in batch)
            loss = trainer.step(x, y)
            if rank == count - 1:
                print(f"batch {number}: {loss:.6f}", flush=True)
            ends.append(time.perf_counter())  # the last rank has read its losses
            if profiler:
                profiler.step()
    trainer.end()
    if rank == count - 1 and len(ends) > WARM_UP + 1:
        step = median(end - start for start, end in pairwise(ends[WARM_UP:]))
        print(f"pipegap advise stages={count} microbatches={MICROBATCHES} {word}={step:.4g}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--asynchronous", action="store_true", help="2BW with Error Feedback")
    parser.add_argument("--fsdp", action="store_true", help="no pipeline")
    parser.add_argument("--profile", type=Path, help="a folder for traces by torch.profiler")
    arguments = parser.parse_args()
    dist.init_process_group()  # gloo, and NCCL where there are GPUs
    trainer = Sharded() if arguments.fsdp else Pipeline(arguments.asynchronous)
    word = "time_2bw" if arguments.asynchronous else "step_time"
    word = "rival.fsdp" if arguments.fsdp else word
    train(trainer, arguments.updates, word, arguments.profile)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
