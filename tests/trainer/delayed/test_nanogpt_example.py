"""examples/nanogpt/train.py: small runs on a CPU, against the model and its equations."""

import math
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.nanogpt.gpt import GPT
from examples.nanogpt.train import (
    VOCABULARY,
    arguments,
    batch,
    gradients,
    loss_of,
    published,
    train,
)
from pipegap.analysis import load
from pipegap.trainer.data.bins import Bins
from tests.support.bins import write_bin

LENGTH, ROWS, UPDATES = 16, 2, 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Shards of 400 tokens in modded-nanogpt's layout."""
    tokens = np.random.default_rng(0).integers(0, 50, 400).tolist()
    for split in ("train", "val"):
        write_bin(tmp_path / f"fineweb_{split}_000000.bin", tokens, 20240520, 1, "<u2")
    return tmp_path


def words(data: Path, *more: str) -> Namespace:
    sizes = {"updates": UPDATES, "rows": ROWS, "length": LENGTH, "layers": 1, "width": 128}
    flags = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    fixed = ["--sequences", "4", "--results", str(data / "results")]
    return arguments().parse_args([str(data), *flags, *fixed, *more])


def test_the_first_late_update_has_the_loss_of_the_first_weights(data: Path) -> None:
    """With a delay of 1 batches 0 and 1 both see the initial weights, whose head is 0."""
    sync, late = train(words(data)), train(words(data, "--delay", "1"))
    uniform = pytest.approx(math.log(VOCABULARY))
    assert (sync[0], late[0], late[1]) == (uniform, uniform, uniform)
    assert sync[1] < sync[0]
    assert late[2] < late[1]
    assert {*load(data / "results")["final_val_loss"].notna()} == {True}


def test_the_published_log_stands_beside_runs_of_its_sizes_alone(data: Path) -> None:
    """It begins where every run does, at the entropy of the vocabulary."""
    beside = published(arguments().parse_args(["data"]))
    assert beside[0] == f", published {math.log(VOCABULARY):.5f} ± 0.00000"
    assert [*beside] == [*range(0, 3376, 125)]
    assert published(words(data)) == {}


def test_microbatches_add_up_to_the_gradient_of_the_batch(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = GPT(VOCABULARY, 1, 128)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    tokens = Bins(path=str(data), vocab_size=VOCABULARY).open().train
    inputs, targets = batch(tokens, 1, ROWS, LENGTH)
    loss_of(model, inputs, targets).backward()
    whole = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("examples.nanogpt.train.MICROBATCH", 1)
    gradients(model, inputs, targets)
    for weight, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(weight.grad, expected)
