"""The loop of modded-nanogpt's track 3 (fixed data, batch and model), with gradients that are late.

    python -m examples.nanogpt.train data/fineweb10B                         # sync, on a GPU
    python -m examples.nanogpt.train data/fineweb10B --delay 1               # one update late
    python -m examples.nanogpt.train data/fineweb10B --delay 1 --feedback 1  # with Error Feedback
    pipegap report results=results                                       # the gaps

The numbers are those of train_gpt_simple.py at 04447b4 (github.com/KellerJordan/modded-nanogpt,
records/track_3_optimization): 12 layers of width 768, 512 sequences of 1,024 tokens per update,
3,375 updates. The folder holds its fineweb_train_*.bin and fineweb_val_*.bin. A batch is cut into
microbatches that one GPU holds; smaller sizes make a smoke run on a CPU.

Beside each validation loss of track 3's sizes stands what its log of result 6 has there
(results/51ece938-03c5-4343-8dcc-3f3336b07008.txt at f411b3d): mean and standard deviation of 20
seeds. No run of these sizes was made yet.
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from examples.nanogpt.gpt import GPT
from pipegap.trainer.data.bins import Bins
from pipegap.trainer.data.shards import Tokens
from pipegap.trainer.delayed import DelayedOptimizer, record
from pipegap.trainer.optimizers.chained import Chained

VOCABULARY = 50_304
MICROBATCH = 16  # sequences, whose logits are 3 GB in fp32
EVALUATE_EVERY = 125
COOLDOWN = 0.7  # share of the updates in which the learning rates fall to 0
NEWTON_SCHULZ = (2.0, -1.5, 0.5)
SIZES = ("updates", "rows", "length", "layers", "width", "sequences")
"""Words that make a run one of track 3."""


def optimizer_of(model: GPT) -> Optimizer:
    """Muon for the matrices of blocks; AdamW, at three rates, for embedding, head and vectors."""
    matrices = [weight for weight in model.blocks.parameters() if weight.ndim == 2]
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [
        {"params": [model.embedding.weight], "lr": 0.3},
        {"params": [model.head.weight], "lr": 1 / 320},
        {"params": vectors, "lr": 0.01},
    ]
    adamw = AdamW(groups, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
    muon = Muon(matrices, lr=0.025, weight_decay=0.025, ns_coefficients=NEWTON_SCHULZ, ns_steps=12)
    return Chained([adamw, muon])


def batch(tokens: Tokens, number: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Batch `number`, in the order of the files: inputs and targets, [rows, length]."""
    taken = torch.from_numpy(tokens.read(number * rows * length, rows * length + 1))
    return taken[:-1].view(rows, length), taken[1:].view(rows, length)


def loss_of(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean nats per token, with products in bf16 on a GPU."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(inputs.to(device))
    return cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())


def gradients(model: GPT, inputs: Tensor, targets: Tensor) -> float:
    """Adds the gradients of a batch's mean loss, microbatch by microbatch; returns the loss."""
    total = 0.0
    for x, y in zip(inputs.split(MICROBATCH), targets.split(MICROBATCH), strict=True):
        loss = loss_of(model, x, y) * (len(x) / len(inputs))
        loss.backward()
        total += loss.item()
    return total


@torch.no_grad()
def validation(model: GPT, tokens: Tokens, count: int, length: int) -> float:
    """The mean loss of the first `count` sequences of the validation split."""
    inputs, targets = batch(tokens, 0, count, length)
    parts = zip(inputs.split(MICROBATCH), targets.split(MICROBATCH), strict=True)
    return sum(loss_of(model, x, y).item() * len(x) for x, y in parts) / count


def published(words: argparse.Namespace) -> dict[int, str]:
    """Number of updates → what the published log says; nothing of other sizes than track 3's."""
    defaults = arguments()
    if any(getattr(words, size) != defaults.get_default(size) for size in SIZES):
        return {}
    with Path(__file__).with_name("published.csv").open() as rows:
        return {
            int(row["update"]): f", published {row['mean']} ± {row['deviation']}"
            for row in csv.DictReader(rows)
        }


def train(words: argparse.Namespace) -> list[float]:
    """One run, which the store records; returns the loss of each batch."""
    torch.manual_seed(words.seed)
    model = GPT(VOCABULARY, words.layers, words.width)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    data = Bins(path=words.data, vocab_size=VOCABULARY).open()
    optimizer = DelayedOptimizer(optimizer_of(model), words.delay, words.feedback)
    schedule = LambdaLR(optimizer, lambda t: min(1.0, (1 - t / words.updates) / COOLDOWN))
    settings = {"model": f"nanogpt {words.layers} x {words.width}", "data": "fineweb10B"}
    settings |= {"optimizer": "muon", "optimizer.lr": 0.025, "seed": words.seed}
    settings |= {"batch_size": words.rows, "seq_len": words.length, "num_updates": words.updates}
    losses, reference = [], published(words)
    with record(words.results, optimizer, settings) as run:
        for number in range(words.updates):
            losses.append(gradients(model, *batch(data.train, number, words.rows, words.length)))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            measured = None
            if (number + 1) % EVALUATE_EVERY == 0 or number + 1 == words.updates:
                with optimizer.newest():  # the weights after this update, and not the older ones
                    measured = validation(model, data.validation, words.sequences, words.length)
                beside = reference.get(number + 1, "")
                print(f"update {number + 1}: {losses[-1]:.4f}, validation {measured:.5f}{beside}")
            run.update(losses[-1], measured)
    return losses


def arguments() -> argparse.ArgumentParser:
    """The words of the command line; the defaults are track 3's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of the .bin files")
    parser.add_argument("--delay", type=int, default=0, help="updates that a gradient is late")
    parser.add_argument("--feedback", type=float, default=0.0, help="coefficient of Error Feedback")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument("--updates", type=int, default=3375)
    parser.add_argument("--rows", type=int, default=512, help="sequences per update")
    parser.add_argument("--length", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--sequences", type=int, default=10_240, help="that are validated")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the store")
    return parser


if __name__ == "__main__":
    train(arguments().parse_args())
