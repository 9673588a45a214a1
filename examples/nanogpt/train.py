"""The loop of modded-nanogpt's track 3 (fixed data, batch and model), with gradients that are late.

    python -m examples.nanogpt.train data/fineweb10B                         # sync, on a GPU
    python -m examples.nanogpt.train data/fineweb10B --delay 1               # one update late
    python -m examples.nanogpt.train data/fineweb10B --delay 1 --feedback 1  # with Error Feedback
    python -m examples.nanogpt.train data/fineweb10B --result 46 --delay 1   # the record, late
    pipegap report results=results                                           # the gaps

`--result` is a row of track 3's table (github.com/KellerJordan/modded-nanogpt at f411b3d,
records/track_3_optimization): 36, today's baseline, Muon in 3,250 updates (train_gpt_simple.py), or
46, the record, SOAP-Muon in 2,690 (see record.py). Both have 12 layers of width 768 and 512
sequences of 1,024 tokens per update. The folder holds fineweb_train_*.bin and fineweb_val_*.bin. A
batch is cut into microbatches that one GPU holds; smaller sizes make a smoke run on a CPU. Two
things are not theirs: the embedding is fp32 here, and of each file they skip the last part batch.

Beside each validation loss of track 3's sizes stands what its logs have there: mean and standard
deviation of 10 seeds (36) and 8 (46). No run of these sizes was made yet, and no FineWeb was at
hand: of the logs the loss before the first update alone is met, ln 50,304 = 10.82584.

Said before any run, of 16 seeds of each arm: a mean has a standard error of .0013 / √16 = .0003, so
a run equals the log if its mean is within .001 of it, passes track 3's rule,
(3.28 − mean) √n ≥ .004, at a mean of 3.279 or less, and shows a gap between two arms of .0009 (two
standard errors), the worth of 20 updates at .0045 per 100. We expect a gap of the delay above that,
and Error Feedback to remove some of it; a smaller gap is no gap that 16 seeds can show.
"""

import argparse
import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Muon

from examples.nanogpt.gpt import GPT
from examples.nanogpt.record import Record
from pipegap.trainer.data.bins import Bins
from pipegap.trainer.data.shards import Tokens
from pipegap.trainer.delayed import DelayedOptimizer, record
from pipegap.trainer.optimizers.routing import Chained

VOCABULARY = 50_304
MICROBATCH = 16  # sequences, whose logits are 3 GB in fp32
COOLDOWN = 0.7  # share of the updates in which the learning rates fall to 0
NEWTON_SCHULZ = (2.0, -1.5, 0.5)
SIZES = ("rows", "length", "layers", "width", "sequences")
"""Words that, with the number of updates, make a run one of track 3."""


class Baseline:
    """Optimizer, rates, correction and average of result 36: Muon for the matrices of blocks;
    AdamW, at three rates, for embedding, head and vectors."""

    updates: ClassVar[int] = 3250
    log: ClassVar[str] = "published.csv"
    averaged_from: ClassVar[float] = math.inf

    def __init__(self, model: GPT, updates: int) -> None:
        matrices = [weight for weight in model.blocks.parameters() if weight.ndim == 2]
        vectors = [weight for weight in model.parameters() if weight.ndim < 2]
        groups = [
            {"params": [model.embedding.weight], "lr": 0.7},
            {"params": [model.head.weight], "lr": 0.004},
            {"params": vectors, "lr": 0.015},
        ]
        adamw = AdamW(groups, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.001)
        options = {"ns_coefficients": NEWTON_SCHULZ, "ns_steps": 12}
        self.optimizer = Chained([adamw, Muon(matrices, lr=0.025, weight_decay=0.05, **options)])
        self._peaks = [group["lr"] for group in self.optimizer.param_groups]
        self._updates = updates

    def options(self, feedback: float) -> dict[str, Any]:
        """What a DelayedOptimizer gets."""
        return {"error_feedback": feedback}

    def set_rates(self, update: int) -> None:
        """The learning rates of this update, from 0."""
        factor = min(1.0, (1 - update / self._updates) / COOLDOWN)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor

    def shown(self, model: GPT, update: int) -> GPT:
        """The model to evaluate after `update` updates."""
        return model


RESULTS: Mapping[int, type[Baseline] | type[Record]] = {36: Baseline, 46: Record}


def batch(tokens: Tokens, number: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Batch `number`, in the order of the files: inputs and targets, [rows, length]."""
    # + 1: the target of the last input.
    window = torch.from_numpy(tokens.read(number * rows * length, rows * length + 1))
    return window[:-1].view(rows, length), window[1:].view(rows, length)


def loss_of(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean nats per token, with products in bf16 on a GPU."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(inputs.to(device))
    return cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())


def gradients(model: GPT, inputs: Tensor, targets: Tensor) -> float:
    """Adds the gradients of the sum of a batch's losses, as there: an eps counts in its units.

    It does so microbatch by microbatch, and returns the mean loss.
    """
    total = 0.0
    for x, y in zip(inputs.split(MICROBATCH), targets.split(MICROBATCH), strict=True):
        loss = loss_of(model, x, y) * y.numel()
        loss.backward()
        total += loss.item()
    return total / targets.numel()


@torch.no_grad()
def validation(model: GPT, tokens: Tokens, count: int, length: int) -> float:
    """The mean loss of the first `count` sequences of the validation split."""
    inputs, targets = batch(tokens, 0, count, length)
    parts = zip(inputs.split(MICROBATCH), targets.split(MICROBATCH), strict=True)
    return sum(loss_of(model, x, y).item() * len(x) for x, y in parts) / count


def published(words: argparse.Namespace) -> dict[int, str]:
    """Number of updates → what the published logs say; nothing of other sizes than track 3's."""
    recipe, defaults = RESULTS[words.result], arguments()
    if any(getattr(words, size) != defaults.get_default(size) for size in SIZES):
        return {}
    if words.updates not in (None, recipe.updates):
        return {}
    with Path(__file__).with_name(recipe.log).open() as rows:
        return {
            int(row["update"]): f", published {row['mean']} ± {row['deviation']}"
            for row in csv.DictReader(rows)
        }


def train(words: argparse.Namespace) -> list[float]:
    """One run, which the store records; returns the loss of each batch."""
    torch.manual_seed(words.seed)
    num_updates = words.updates or RESULTS[words.result].updates
    model = GPT(VOCABULARY, words.layers, words.width)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    data = Bins(path=words.data, vocab_size=VOCABULARY).open()
    recipe = RESULTS[words.result](model, num_updates)
    options = {**recipe.options(words.feedback), "num_updates": num_updates}
    optimizer = DelayedOptimizer(recipe.optimizer, words.delay, **options)
    settings = {"model": f"nanogpt {words.layers} x {words.width}", "data": "fineweb10B"}
    settings |= {"optimizer": f"result {words.result}", "seed": words.seed}
    settings |= {"batch_size": words.rows, "seq_len": words.length, "num_updates": num_updates}
    losses, reference = [], published(words)
    with record(words.results, optimizer, settings) as run:
        for number in range(num_updates):
            recipe.set_rates(number)
            losses.append(gradients(model, *batch(data.train, number, words.rows, words.length)))
            optimizer.step()
            optimizer.zero_grad()
            num_done, val_loss = number + 1, None
            every = 125 if num_done < 0.9 * num_updates else 25
            is_due = num_done == num_updates or num_done % every == 0
            if is_due or num_done >= recipe.averaged_from:  # an average needs every update
                with optimizer.newest():  # the weights after this update, and not the older ones
                    blend = recipe.shown(model, num_done)
                    if is_due:
                        val_loss = validation(blend, data.validation, words.sequences, words.length)
            if is_due:
                in_logs = reference.get(num_done, "")
                print(f"update {num_done}: {losses[-1]:.4f}, validation {val_loss:.5f}{in_logs}")
            run.update(losses[-1], val_loss)
    return losses


def arguments() -> argparse.ArgumentParser:
    """The words of the command line; the defaults are track 3's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of the .bin files")
    parser.add_argument("--result", type=int, choices=RESULTS, default=36, help="of track 3")
    parser.add_argument("--delay", type=int, default=0, help="updates that a gradient is late")
    parser.add_argument("--feedback", type=float, default=0.0, help="coefficient of Error Feedback")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument("--updates", type=int, help="of the run; the published ones if left out")
    parser.add_argument("--rows", type=int, default=512, help="sequences per update")
    parser.add_argument("--length", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--sequences", type=int, default=10_240, help="that are validated")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the store")
    return parser


if __name__ == "__main__":
    train(arguments().parse_args())
