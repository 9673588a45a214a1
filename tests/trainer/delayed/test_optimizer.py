"""A loop of one's own makes the numbers of a trial to the bit, and resumes from its checkpoints."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from tests.support import every_correction, every_optimizer, small, toy
from tests.support.delayed import ADAMW, T
from tests.support.own_loop import Loop
from tests.support.trials import rows
from trainer.base.errors import BadInput
from trainer.corrections.error_feedback import ErrorFeedback
from trainer.corrections.none import NoCorrection
from trainer.corrections.taylor import Taylor
from trainer.corrections.weight_prediction import WeightPrediction
from trainer.delayed import DelayedOptimizer
from trainer.models.loss import cross_entropy
from trainer.optimizers.averaging import schedule_free_adamw
from trainer.optimizers.routing import kinds
from trainer.parts import build_parts
from trainer.schedules.recipes import constant_delay, pipedream_2bw, sync
from trainer.trial import run_trial

OPTIMIZERS = {"adamw": ADAMW, "muon": every_optimizer.maker("muon", lr=0.02)}
FEEDBACK = partial(ErrorFeedback, coefficient=1.0, lag=1)
CUT = {"num_stages": 1, "num_microbatches": 2}
NO_PHASES = {"synchronous_start": 0, "synchronous_cooldown": 0}
PHASES = {"synchronous_start": 3, "synchronous_cooldown": 0.2}
ARMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sync": (sync(T, **CUT), NoCorrection, {"delay": 0}),
    "delay": (pipedream_2bw(T, **CUT, **NO_PHASES), NoCorrection, {"error_feedback": 0}),
    "delay_ef": (pipedream_2bw(T, **CUT, **NO_PHASES), FEEDBACK, {}),
    "three": (constant_delay(T, delay=3, **CUT, **NO_PHASES), FEEDBACK, {"delay": 3}),
    "phases": (
        constant_delay(T, delay=2, **CUT, **PHASES),
        FEEDBACK,
        {"delay": 2, "num_updates": T, **PHASES},
    ),
}
KEEP = ["weights", "gradients"]


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
    schedule = constant_delay(T, delay=2, num_stages=1, num_microbatches=1, **NO_PHASES)
    make = every_correction.maker(node)
    options = {"delay": 2, "correction": every_correction.located(node), "num_updates": T}
    for norm, tolerance in ((math.inf, 0.0), (0.5, 1e-10)):
        executor = toy.emulated(schedule, ADAMW, make, clip_norm=norm)
        updates = toy.run(executor, schedule.phases)
        loop = Loop(ADAMW, clip_norm=norm, **options)
        losses = loop.run(range(T))
        assert losses == pytest.approx([of.loss for of in updates], rel=tolerance, abs=0)
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
        for first in range(0, len(parts.validation), config["eval_batch_size"]):
            batch = parts.validation[first : first + config["eval_batch_size"]]
            inputs, targets = batch[:, :-1], batch[:, 1:]
            total += cross_entropy(module(inputs), targets).double() * targets.numel()
            num_tokens += targets.numel()
    assert float(total / num_tokens) == result["final_val_loss"]


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize(("keep", "delay"), [("weights", 1), ("weights", 3), ("gradients", 2)])
def test_resumes_to_the_bit(keep: str, delay: int, at: int, tmp_path: Path) -> None:
    options = {"keep": keep, "delay": delay, "num_updates": T}
    whole = Loop(ADAMW, **options)
    losses = whole.run(range(T), clip_norm=0.5)
    first = Loop(ADAMW, **options)
    assert first.run(range(at), clip_norm=0.5) == losses[:at]
    first.delayed.eval()  # a checkpoint that is saved after an evaluation
    saved = {"model": first.module, "optimizer": first.delayed, "lr": first.scheduler}
    torch.save({k: v.state_dict() for k, v in saved.items()}, tmp_path / "checkpoint.pt")
    first.delayed.train()
    assert first.run(range(at, T), clip_norm=0.5) == losses[at:], "saving changes nothing"
    second = Loop(ADAMW, **options)
    state = torch.load(tmp_path / "checkpoint.pt")
    second.module.load_state_dict(state["model"])
    second.delayed.load_state_dict(state["optimizer"])
    second.scheduler.load_state_dict(state["lr"])
    assert second.run(range(at, T), clip_norm=0.5) == losses[at:]
    assert all(map(torch.equal, second.weights(), whole.weights()))
    assert second.delayed.largest_delay == delay


def test_weight_prediction_resumes_too() -> None:
    options = {"correction": partial(WeightPrediction, horizon=1.0), "num_updates": T}
    whole, first, second = (Loop(ADAMW, **options) for _ in range(3))
    losses = whole.run(range(T))
    first.run(range(5))
    second.delayed.load_state_dict(copy.deepcopy(first.delayed.state_dict()))
    second.scheduler.load_state_dict(first.scheduler.state_dict())
    assert second.run(range(5, T)) == losses[5:]


def test_the_delay_begins_where_a_bare_optimizer_ended() -> None:
    """Either wrapped when it has a state, or given that state."""
    bare = Loop(ADAMW, delay=0)
    bare.run(range(4))
    inner, state = bare.delayed.optimizer, copy.deepcopy(bare.delayed.optimizer.state_dict())
    begun = Loop(ADAMW, synchronous_start=4)
    losses = begun.run(range(T))
    given = Loop(ADAMW)
    given.module.load_state_dict(bare.module.state_dict())
    given.delayed.load_state_dict(state)
    given.scheduler.load_state_dict(bare.scheduler.state_dict())
    wrapped = Loop(ADAMW)
    wrapped.module, wrapped.delayed = bare.module, DelayedOptimizer(inner)
    wrapped.scheduler = bare.scheduler
    assert given.run(range(4, 6)) == wrapped.run(range(4, 6)) == losses[4:6]


def test_the_model_reads_old_weights_and_shows_the_newest() -> None:
    loop = Loop(ADAMW, error_feedback=0)
    start = [w.detach().clone() for w in loop.module.parameters()]
    loop.run(range(1))
    assert all(map(torch.equal, loop.module.parameters(), start)), "batch 1 reads W(0)"
    newest = loop.weights()
    assert not any(map(torch.equal, newest, start))
    loop.delayed.eval()
    with pytest.raises(RuntimeError, match=r"call train\(\) before step\(\)"):
        loop.delayed.step()
    loop.delayed.train()
    loop.run(range(1, 2))
    assert all(map(torch.equal, loop.module.parameters(), newest)), "batch 2 reads W(1)"


def test_a_delay_of_0_is_the_bare_optimizer() -> None:
    """Also in what it takes: no tensor beside those of the optimizer."""
    loop = Loop(ADAMW, delay=0)
    loop.run(range(3), clip_norm=0.5)
    module = toy.modules(1)[0]
    kind = kinds(module)
    bare = ADAMW([(kind[name], p) for name, p in module.named_parameters()])
    scheduler = LambdaLR(bare, toy.lr_factor)
    for t in range(3):
        bare.zero_grad()
        rows_of_batch = toy.batch(t)
        toy.loss(module(rows_of_batch[:, :-1]), rows_of_batch[:, 1:]).backward()
        clip_grad_norm_(module.parameters(), 0.5)
        bare.step()
        scheduler.step()
    assert all(map(torch.equal, loop.module.parameters(), module.parameters()))
    states = zip(module.parameters(), loop.module.parameters(), strict=True)
    assert all(bare.state[a].keys() == loop.delayed.state[b].keys() for a, b in states)


@pytest.mark.parametrize("keep", KEEP)
def test_a_scaler_skips_what_overflowed_and_no_version_is_made(keep: str) -> None:
    """As if the overflowed batch had never been there."""
    clean = Loop(ADAMW, keep=keep, num_updates=T)
    clean.scheduler = LambdaLR(clean.delayed, lambda _: 1.0)
    clean.run([0, 1, 3])
    loop = Loop(ADAMW, keep=keep, num_updates=T)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(4):
        loop.delayed.zero_grad()
        rows_of_batch = toy.batch(t)
        value = toy.loss(loop.module(rows_of_batch[:, :-1]), rows_of_batch[:, 1:])
        scaler.scale(value * (float("inf") if t == 2 else 1.0)).backward()
        scaler.unscale_(loop.delayed)
        for group in loop.delayed.param_groups:
            group["lr"] = clean.delayed.param_groups[0]["lr"]
        scaler.step(loop.delayed)
        scaler.update()
    assert all(map(torch.equal, loop.weights(), clean.weights()))


def test_a_scheduler_of_the_wrapped_optimizer_counts_too() -> None:
    loop, other = Loop(ADAMW), Loop(ADAMW)
    other.scheduler = LambdaLR(other.delayed.optimizer, toy.lr_factor)
    assert loop.run(range(4)) == other.run(range(4))


def test_schedule_free_is_evaluated_at_its_average() -> None:
    make = partial(
        schedule_free_adamw,
        **{"lr": 0.02, "momentum": 0.9, "variance_decay": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    )
    schedule = pipedream_2bw(T, num_stages=1, num_microbatches=1, **NO_PHASES)
    executor = toy.emulated(schedule, make)
    toy.run(executor, (0, T))
    loop = Loop(make, error_feedback=0)
    loop.run(range(T))
    expected = executor.weights()
    with loop.delayed.newest():
        assert all(torch.equal(w, expected[n]) for n, w in loop.module.named_parameters())
    with pytest.raises(BadInput, match="error_feedback"):
        Loop(make)


def test_weights_that_somebody_else_changed_are_not_lost_in_silence() -> None:
    loop = Loop(ADAMW)
    loop.run(range(2))
    with torch.no_grad():
        next(loop.module.parameters()).clamp_(-0.1, 0.1)
    with pytest.raises(RuntimeError, match="changed since the last step"):
        loop.delayed.step()


@pytest.mark.parametrize("shown", [True, False])
def test_weights_loaded_after_the_optimizer_must_be_those_to_read(shown: bool) -> None:
    """As torch.distributed.checkpoint does. Those to evaluate would be read as the old ones."""
    first, second = Loop(ADAMW), Loop(ADAMW)
    first.run(range(3))
    second.delayed.load_state_dict(first.delayed.state_dict())
    if shown:
        first.delayed.eval()
    second.module.load_state_dict(first.module.state_dict())
    if shown:
        with pytest.raises(RuntimeError, match="optimizer state after its weights"):
            second.delayed.step()
    else:
        second.scheduler.load_state_dict(first.scheduler.state_dict())
        assert second.run(range(3, 6)) == first.run(range(3, 6))


def test_an_unused_weight_is_left_alone() -> None:
    loop = Loop(ADAMW)
    loop.module.register_parameter("unused", unused := nn.Parameter(torch.ones(3)))
    loop.delayed.add_param_group({"params": [unused]})
    loop.scheduler.base_lrs.append(0.02)
    loop.scheduler.lr_lambdas.append(toy.lr_factor)
    loop.run(range(3))
    assert torch.equal(unused, torch.ones(3))
    with pytest.raises(RuntimeError, match="before the first step"):
        loop.delayed.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


WRONG: dict[str, dict[str, Any]] = {
    "delay=-1: must be an int from 0 to 4096": {"delay": -1},
    "delay=True: must be an int": {"delay": True},
    "delay=1.0: must be an int": {"delay": 1.0},
    "error_feedback=-1: must be a number": {"error_feedback": -1},
    "error_feedback=nan: must be a number": {"error_feedback": float("nan")},
    "keep=both: must be 'weights' or 'gradients'": {"keep": "both"},
    "clip_norm=0: must be larger than 0": {"clip_norm": 0},
    "num_updates=None: is required for a cooldown": {"synchronous_cooldown": 3},
    "num_updates=None: is required with a correction": {"correction": NoCorrection},
    "num_updates=0: must be an int from 1": {"num_updates": 0},
    "synchronous_start=1.5: must be a number of updates": {"synchronous_start": 1.5},
    "synchronous_cooldown=9: at most num_updates": {"synchronous_cooldown": 9, "num_updates": 5},
    "correction=taylor: must be a class": {"correction": "taylor", "num_updates": 5},
    "correction.decay=missing: is required": {
        "correction": partial(Taylor, coefficient=1.0),
        "num_updates": 5,
    },
    "keep=gradients: must be 'weights' with a correction that predicts": {
        "correction": partial(WeightPrediction, horizon=1.0),
        "num_updates": 5,
        "keep": "gradients",
    },
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_argument_is_named_in_one_line(says: str) -> None:
    with pytest.raises(BadInput) as caught:
        DelayedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), **WRONG[says])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_wrapped_is_refused() -> None:
    weights = [nn.Parameter(torch.ones(2, 2))]
    inner = torch.optim.SGD(weights, lr=0.1)
    with pytest.raises(BadInput, match=r"must be a torch\.optim\.Optimizer"):
        DelayedOptimizer(weights)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="delayed already"):
        DelayedOptimizer(DelayedOptimizer(inner))
    with pytest.raises(BadInput, match="only trials can delay it"):
        DelayedOptimizer(every_optimizer.maker("sophia")([("matrix", weights[0])]))


def test_the_state_of_another_delay_is_refused() -> None:
    loop = Loop(ADAMW, delay=2)
    loop.run(range(2))
    with pytest.raises(BadInput, match="delay=1: must be 2, with which the state was saved"):
        Loop(ADAMW).delayed.load_state_dict(loop.delayed.state_dict())
    with pytest.raises(ValueError, match="groups of"):
        DelayedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))])).load_state_dict(
            loop.delayed.state_dict()
        )


@pytest.mark.parametrize("lost", ["delay_update_1", "exp_avg"])
def test_a_state_that_lost_something_is_refused(lost: str) -> None:
    """torch.distributed.checkpoint leaves out what the optimizer does not have yet."""
    loop = Loop(ADAMW)
    loop.run(range(3))
    state = copy.deepcopy(loop.delayed.state_dict())
    for of in state["state"].values():
        del of[lost]
    with pytest.raises(ValueError, match=f"lacks {lost}, which was saved"):
        Loop(ADAMW).delayed.load_state_dict(state)


def test_more_steps_than_were_said_are_refused() -> None:
    loop = Loop(ADAMW, num_updates=2)
    loop.run(range(2))
    with pytest.raises(RuntimeError, match="num_updates=2 are made"):
        loop.run(range(2, 3))
