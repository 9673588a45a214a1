"""Sophia: its equations, the curvature it is shown, and that no executor or restart changes it."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support import moe, small, toy
from tests.support.delayed import PHASES
from tests.support.every_optimizer import maker
from tests.support.trials import Stop, ran, stop_at
from trainer.base.randomness import stream_seed
from trainer.executors.passes import MicrobatchPlace, against_samples
from trainer.parts import build_emulated, build_parts
from trainer.schedules.recipes import pipedream_2bw
from trainer.trial import run_trial

SOPHIA = maker("sophia", rho=0.5, weight_decay=0.2, observe_every=2)


def test_it_equals_its_equations() -> None:
    """Algorithm 3 of the paper, with the observation before the update, every second one."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 4, generator=generator, dtype=torch.float64))
    expected, m, h = weight.detach().clone(), torch.zeros(5, 4), torch.zeros(5, 4)
    optimizer = SOPHIA([("matrix", weight)])
    clipped = []
    for t in range(10):
        g, sampled = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
        if t % 2 == 0:
            optimizer.observe({weight: 3 * sampled})
            h = 0.99 * h + 0.01 * (3 * sampled) ** 2
        weight.grad = g
        optimizer.step()
        m = 0.96 * m + 0.04 * g
        ratio = m / (0.5 * h).clamp(min=1e-12)
        clipped.append(float((ratio.abs() > 1).double().mean()))
        expected = expected - 5e-4 * 0.2 * expected - 5e-4 * ratio.clamp(-1, 1)
    assert 0 < clipped[-1] < 1, "some entries are clipped, some are not"
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-14)


def test_squares_of_sampled_gradients_estimate_the_gauss_newton_diagonal() -> None:
    """For logits x Wᵀ it is the mean over tokens of x_j² p_k (1 − p_k), entry (k, j) of W."""
    torch.manual_seed(0)
    x, weight = torch.randn(6, 3), torch.randn(4, 3, requires_grad=True)
    targets, num_draws = torch.zeros(2, 3, dtype=torch.int64), 4000
    total = torch.zeros(4, 3)
    for draw in range(num_draws):
        sampled_loss = against_samples(toy.loss, targets, MicrobatchPlace(draw, 0, 0, num_parts=1))
        logits = F.linear(x, weight).view(2, 3, 4)
        total += torch.autograd.grad(sampled_loss(logits), weight)[0] ** 2
    chances = F.linear(x, weight).detach().softmax(-1)
    exact = torch.einsum("nk,nj->kj", chances * (1 - chances), x**2) / 6
    torch.testing.assert_close(total / num_draws, exact, rtol=0.12, atol=0.002)


def test_the_curvature_is_taken_where_the_gradient_is() -> None:
    """Batch 4 under 2BW: at W(3), over its three microbatches, not clipped, no update made."""
    schedule = pipedream_2bw(10, num_stages=1, num_microbatches=3, **PHASES)
    executor = toy.emulated(schedule, SOPHIA, clip_norm=1e-3)
    [stage] = executor._stages
    toy.run(executor, (0, 3))
    read = [w.clone() for w in toy.weights(executor)]
    toy.run(executor, (3, 4))
    before = toy.weights(executor)
    states = [stage.optimizer._state(weight) for weight in stage.versions.master]
    curvatures = [state["curvature"].clone() for state in states]
    executor.observe(4)

    assert all(map(torch.equal, toy.weights(executor), before))
    for state, h, g in zip(states, curvatures, sampled_gradients(read, 4), strict=True):
        torch.testing.assert_close(state["curvature"], 0.99 * h + 0.01 * g**2, rtol=1e-10, atol=0)


def sampled_gradients(weights: list[Tensor], batch: int) -> list[Tensor]:
    model = nn.Sequential(*toy.modules(1)[0])
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    for i, sequences in enumerate(toy.batch(batch).chunk(3)):
        seed = stream_seed(torch.initial_seed(), "labels", str(batch), str(i), "0", "3")
        generator = torch.Generator().manual_seed(seed)
        logits = model(sequences[:, :-1])
        chances = logits.detach().float().softmax(-1)
        labels = (chances / torch.empty_like(chances).exponential_(generator=generator)).argmax(-1)
        (toy.loss(logits, labels) * math.sqrt(toy.BATCH * toy.LENGTH) / 3).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_no_correction_sees_the_curvature(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    schedule = pipedream_2bw(4, num_stages=1, num_microbatches=2, **PHASES)
    executor = toy.emulated(schedule, SOPHIA)
    monkeypatch.setattr(executor._stages[0], "correct", lambda batch, _: seen.append(batch))
    executor.observe(0)
    assert seen == []
    toy.run(executor, (0, 1))
    assert seen == [0]


def test_the_curvature_is_of_the_data_alone(tmp_path: Path) -> None:
    """What a mixture adds to the loss is not in it."""
    curvatures = []
    for balance in ("none", "loss"):
        words = ("optimizer=sophia", "pipeline=pipedream_2bw", f"model.balance={balance}")
        config = small.config(tmp_path, *moe.WORDS, *words)
        parts = build_parts(config, config["num_updates"])
        run = build_emulated(config, parts, torch.device("cpu"))
        run.observe(0)
        [stage] = run._stages
        states = [stage.optimizer.state[weight] for weight in stage.versions.master]
        curvatures.append([state["curvature"] for state in states if "curvature" in state])
    assert curvatures[0]
    assert all(map(torch.equal, *curvatures))


WORDS = (
    "optimizer=sophia",
    "optimizer.observe_every=2",
    "pipeline=pipedream_2bw",
    "correction=error_feedback",
    "pipeline.num_stages=2",
    "pipeline.num_microbatches=2",
)


def test_executors_and_restarts_change_nothing(tmp_path: Path) -> None:
    _, alone = ran(tmp_path, "a", *WORDS)
    assert ran(tmp_path, "b", *WORDS, "runner=pipelined")[1] == alone
    with pytest.raises(Stop):
        run_trial(small.config(tmp_path, *WORDS, f"out={tmp_path / 'c'}"), stop_at(8))
    assert ran(tmp_path, "c", *WORDS)[1] == alone
    _, seldom = ran(tmp_path, "d", *WORDS, "optimizer.observe_every=100")
    assert alone[:2] == seldom[:2], "both have seen the curvature of batch 0"
    assert alone != seldom
