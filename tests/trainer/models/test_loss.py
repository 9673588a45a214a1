"""The loss that is fused with the head: exact, and never with all logits in memory."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pipegap.trainer.base.build import build
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.memory import loss_bytes
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.models.decoder import LOSS
from pipegap.trainer.models.loss import Unprojected, cross_entropy, loss_by
from tests.support.live_memory import LiveMemory
from tests.support.llama import SMALL, TOKENS

ROWS, LENGTH, WIDTH, WORDS = 3, 17, 8, 61


def inputs(dtype: torch.dtype, length: int = LENGTH, words: int = WORDS) -> list[Tensor]:
    """Hidden states, head and targets."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    hidden, head = draw(ROWS, length, WIDTH).to(dtype), draw(words, WIDTH).to(dtype)
    targets = torch.randint(0, words, (ROWS, length), generator=generator)
    return [hidden.requires_grad_(), head.requires_grad_(), targets]


def plain(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy((hidden @ head.T).flatten(0, 1), targets.flatten())


def gradients(loss: Tensor, hidden: Tensor, head: Tensor) -> list[Tensor]:
    """The loss and its gradients, in float64."""
    return [
        loss.detach().double(),
        *(g.double() for g in torch.autograd.grad(loss, [hidden, head])),
    ]


def error(tensors: list[Tensor], exact: list[Tensor]) -> float:
    """The largest relative error of loss and gradients."""
    pairs = zip(tensors, exact, strict=True)
    return max(float((tensor - reference).norm() / reference.norm()) for tensor, reference in pairs)


@pytest.mark.parametrize("chunk", [1, 7, 51, 1000])
def test_it_is_exact(chunk: int) -> None:
    """In float64; the loss is scaled, and so are its gradients."""
    hidden, head, targets = inputs(torch.float64)
    expected = gradients(3 * plain(hidden, head, targets), hidden, head)
    tripled = 3 * cross_entropy(Unprojected(hidden, head, chunk), targets)
    assert error(gradients(tripled, hidden, head), expected) < 1e-14
    with torch.no_grad():
        evaluated = cross_entropy(Unprojected(hidden, head, chunk), targets)
    assert float(3 * evaluated) == pytest.approx(float(expected[0]), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_as_near_to_float64_as_the_plain_loss(dtype: torch.dtype) -> None:
    """Of the same numbers in this dtype: loss and gradients of both round the logits alike."""
    hidden, head, targets = inputs(dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, head)]
    exact = gradients(plain(*wide, targets), *wide)
    whole = gradients(cross_entropy(hidden @ head.T, targets), hidden, head)
    chunked = gradients(cross_entropy(Unprojected(hidden, head, 16), targets), hidden, head)
    assert 0 < error(chunked, exact) < 1.5 * error(whole, exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk", [None, 64])
def test_the_memory_that_a_plan_counts(chunk: int | None, dtype: str) -> None:
    """And of the fused loss: no tensor is as large as all logits of one byte each."""
    length, words = 512, 257
    setting = (f"batch_size={ROWS}", f"seq_len={length}", f"dtype={dtype}", "num_updates=1")
    config = compose([*setting, f"model.hidden_size={WIDTH}", "model.num_heads=1"])
    config["model"]["loss_chunk"] = chunk
    hidden, head, targets = inputs(getattr(torch, dtype), length, words)
    with LiveMemory() as memory:  # as a stage does, which keeps the loss and not the output
        if chunk is None:
            cross_entropy(hidden @ head.T, targets).backward()
        else:
            cross_entropy(Unprojected(hidden, head, chunk), targets).backward()
    assert memory.peak == pytest.approx(loss_bytes(config, build(config["model"])), rel=0.02)
    assert (memory.largest < ROWS * length * words) == (chunk is not None)


def test_parts_may_be_replaced() -> None:
    """By compiled ones."""
    called: list[str] = []

    def noted(function: Any) -> Any:
        def run(*args: Any) -> Any:
            called.append(function.__name__)
            return function(*args)

        return run

    hidden, head, targets = inputs(torch.float32)
    loss = loss_by(noted)
    assert torch.equal(
        loss(Unprojected(hidden, head, 20), targets),
        cross_entropy(Unprojected(hidden, head, 20), targets),
    )
    loss(hidden @ head.T, targets)
    assert called == ["chunk_loss"] * 3 + ["logits_loss"]


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_s_gradients_are_those_of_the_plain_loss(is_tied: bool) -> None:
    by_loss = []
    for chunk in (None, 16):
        recipe = replace(SMALL, tied_embeddings=is_tied, loss_chunk=chunk)
        module = recipe.stage(0, recipe.split(1, 17))
        recipe.initialise(module, 0)
        cross_entropy(module(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
        by_loss.append({name: weight.grad for name, weight in module.named_parameters()})
    assert by_loss[0].keys() == by_loss[1].keys()
    for name, gradient in by_loss[0].items():
        torch.testing.assert_close(by_loss[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_the_split_counts_it() -> None:
    """As `LOSS` multiplications per logit: the last stage has fewer layers, or none."""
    recipe = replace(SMALL, vocab_size=1000)
    fused = replace(recipe, loss_chunk=16)
    split = recipe.split(2, 16)
    more = [b - a for a, b in zip(recipe.work(split, 16), fused.work(split, 16), strict=True)]
    assert more == [0, 1000 * LOSS]
    assert [len(layers) for layers in fused.split(2, 16)] == [4, 0]
    assert [len(layers) for layers in split] != [4, 0]
    words = ("scale", "model=moe_2b", "data=fineweb", "seq_len=8192", "batch_size=32")
    config = compose([*words[1:], "num_updates=1", "pipeline.num_stages=4"])
    work = [
        plan_trial({**config, "model": {**config["model"], "loss_chunk": chunk}}).work_by_rank
        for chunk in (None, 4096)
    ]
    assert sum(work[1]) == pytest.approx(sum(work[0]) + 128_000 * LOSS)
