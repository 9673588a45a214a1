"""A loop of one's own makes the numbers of a trial, and of the bare optimizer, to the bit."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.parts import build_parts
from pipegap.trainer.schedules.recipes import constant_delay, pipedream_2bw, sync
from pipegap.trainer.trial import run_trial
from tests.support import every_correction, every_optimizer, small, toy
from tests.support.delayed import ADAMW, PHASES, T
from tests.support.own_loop import KEEP, Loop
from tests.support.trials import rows

OPTIMIZERS = {"adamw": ADAMW, "muon": every_optimizer.maker("muon", lr=0.02)}
FEEDBACK = partial(ErrorFeedback, coefficient=1.0, lag=1)
CUT = {"num_stages": 1, "num_microbatches": 2}
SYNCHRONOUS_ENDS = {"synchronous_start": 3, "synchronous_cooldown": 0.2}
ARMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sync": (sync(T, **CUT), NoCorrection, {"delay": 0}),
    "delay": (pipedream_2bw(T, **CUT, **PHASES), NoCorrection, {"error_feedback": 0}),
    "delay_ef": (pipedream_2bw(T, **CUT, **PHASES), FEEDBACK, {}),
    "three": (constant_delay(T, delay=3, **CUT, **PHASES), FEEDBACK, {"delay": 3}),
    "phases": (
        constant_delay(T, delay=2, **CUT, **SYNCHRONOUS_ENDS),
        FEEDBACK,
        {"delay": 2, "num_updates": T, **SYNCHRONOUS_ENDS},
    ),
}


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_the_emulated_executor(optimizer: str, arm: str, keep: str) -> None:
    schedule, correction, options = ARMS[arm]
    executor = toy.emulated(schedule, OPTIMIZERS[optimizer], correction, clip_norm=0.5)
    updates = toy.run(executor, schedule.phases)
    loop = Loop(OPTIMIZERS[optimizer], keep=keep, **options)
    losses = loop.run(range(T), microbatches=2, clip_norm=0.5)
    loop.delayed.finish()
    assert losses == [update.loss for update in updates]
    assert all(map(torch.equal, loop.weights(), toy.weights(executor)))
    assert loop.delayed.largest_delay == max(schedule.lags)


@pytest.mark.parametrize("name", [n for n in every_correction.NAMES if n != "none"])
def test_equals_the_executor_with_every_correction(name: str) -> None:
    """To the bit; but for rounding with a clip, which comes after the correction, as in a trial."""
    node = every_correction.settings(name)
    schedule = constant_delay(T, delay=2, num_stages=1, num_microbatches=1, **PHASES)
    make = every_correction.maker(node)
    options = {"delay": 2, "correction": every_correction.located(node), "num_updates": T}
    for norm, tolerance in ((math.inf, 0.0), (0.5, 1e-10)):
        executor = toy.emulated(schedule, ADAMW, make, clip_norm=norm)
        updates = toy.run(executor, schedule.phases)
        loop = Loop(ADAMW, clip_norm=norm, **options)
        losses = loop.run(range(T))
        assert losses == pytest.approx([update.loss for update in updates], rel=tolerance, abs=0)
        for ours, theirs in zip(loop.weights(), toy.weights(executor), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_a_trial(optimizer: str, tmp_path: Path) -> None:
    """Its training losses and its final validation loss."""
    words = [f"optimizer={optimizer}", "pipeline=pipedream_2bw", "correction=error_feedback"]
    config = small.config(tmp_path, *words, "num_updates=8")
    result = run_trial({**config, "out": str(tmp_path / "trial")})
    parts = build_parts(config, 8)
    module = parts.model.stage(0, parts.model.split(1, config["seq_len"])).to_empty(device="cpu")
    parts.model.initialise(module, config["seed"])
    kind, settings = kinds(module), config["optimizer"]
    make = every_optimizer.maker(optimizer, **settings)
    delayed = DelayedOptimizer(make([(kind[n], p) for n, p in module.named_parameters()]))
    scheduler = LambdaLR(delayed, parts.lr_factor)
    losses = []
    for t in range(8):
        rows_of_batch = parts.batches[t]
        delayed.zero_grad()
        loss = cross_entropy(module(rows_of_batch[:, :-1]), rows_of_batch[:, 1:])
        loss.backward()
        clip_grad_norm_(module.parameters(), config["clip_norm"])
        delayed.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses == [row["train_loss"] for row in rows(tmp_path / "trial")]
    total, num_tokens = torch.zeros((), dtype=torch.float64), 0
    with delayed.newest(), torch.no_grad():
        for batch in parts.validation.batches(config["eval_batch_size"]):
            inputs, targets = batch[:, :-1], batch[:, 1:]
            total += cross_entropy(module(inputs), targets).double() * targets.numel()
            num_tokens += targets.numel()
    assert float(total / num_tokens) == result["final_val_loss"]


def test_groups_of_one_weight_each_may_have_one_shape() -> None:
    """As of an embedding and a head at two rates: groups are told apart by what they are."""
    twins = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    sgd = torch.optim.SGD([{"params": [twin], "lr": 0.1 * (n + 1)} for n, twin in enumerate(twins)])
    delayed = DelayedOptimizer(sgd, 1, 0.0)
    for _ in range(2):
        for twin in twins:
            twin.grad = torch.ones_like(twin)
        delayed.step()
    with delayed.newest():
        assert [twin.mean().item() for twin in twins] == pytest.approx([0.8, 0.6])
