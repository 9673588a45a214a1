"""PACI: weights change under the microbatches that are on their way, as if overwritten there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.optimizers.entrywise import sgd
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import paci
from pipegap.trainer.stages.backward import Microbatch
from tests.support import small_sweep, toy

T, LR, STAGES = 6, 0.2, 4
PLAIN = partial(sgd, lr=LR, momentum=0.0, nesterov=False, weight_decay=0.0, fused=False)


def schedule(m: int, start: int = 0, cooldown: int = 0, *, recompute: bool = False) -> Schedule:
    phases = {"synchronous_start": start, "synchronous_cooldown": cooldown}
    return paci(T, num_stages=STAGES, num_microbatches=m, recompute=recompute, **phases)


class Overwriting:
    """A stage that steps its only weights in place as soon as it has a batch's gradient, by SGD.

    `.data` hides that from autograd: what it saved of a weight is what the weight has become. With
    `recompute`, a backward makes the output that it goes back from anew.
    """

    def __init__(self, module: nn.Module, ahead: int, m: int, *, recompute: bool) -> None:
        self.module, self._m, self._recompute = module, m, recompute
        self.turns = self._one_forward_one_backward(ahead)
        self._alive: dict[int, tuple[Tensor, Tensor]] = {}

    def _one_forward_one_backward(self, ahead: int) -> Iterator[tuple[str, int]]:
        for step in range(T * self._m + ahead):
            if step < T * self._m:
                yield "F", step
            if step >= ahead:
                yield "B", step - ahead

    def forward(self, flat: int, x: Tensor, loss: Callable[[Tensor], Tensor] | None) -> Tensor:
        x = x.detach().requires_grad_(x.is_floating_point())
        output = self.module(x)
        output = output if loss is None else loss(output)
        self._alive[flat] = x, output
        return output.detach()

    def backward(self, flat: int, gradient: Tensor | None) -> Tensor | None:
        x, output = self._alive.pop(flat)
        if self._recompute and gradient is not None:
            output = self.module(x)
        output.backward(gradient)
        if flat % self._m == self._m - 1:
            for weight in self.module.parameters():
                assert weight.grad is not None
                weight.data.sub_(weight.grad / self._m, alpha=LR * toy.lr_factor(flat // self._m))
                weight.grad = None
        return x.grad


def overwritten(m: int, *, recompute: bool) -> list[Tensor]:
    """The weights after all batches: each stage goes on as far as its neighbours let it."""
    stages = [
        Overwriting(module, STAGES - 1 - index, m, recompute=recompute)
        for index, module in enumerate(toy.modules(STAGES))
    ]
    sent: dict[tuple[str, int, int], Tensor] = {}
    awaited = [next(stage.turns, None) for stage in stages]
    while any(awaited):
        for index, stage in enumerate(stages):
            while (turn := awaited[index]) is not None and _is_there(sent, turn, index):
                _take(stage, sent, turn, index, m)
                awaited[index] = next(stage.turns, None)
    return [weight.detach() for stage in stages for weight in stage.module.parameters()]


def _is_there(sent: dict[tuple[str, int, int], Tensor], turn: tuple[str, int], index: int) -> bool:
    comes_from_outside = index == 0 if turn[0] == "F" else index == STAGES - 1
    return comes_from_outside or (turn[0], index, turn[1]) in sent


def _take(
    stage: Overwriting,
    sent: dict[tuple[str, int, int], Tensor],
    turn: tuple[str, int],
    index: int,
    m: int,
) -> None:
    kind, flat = turn
    message = sent.pop((kind, index, flat), None)
    if kind == "B":
        gradient = stage.backward(flat, message)
        if gradient is not None:
            sent["B", index - 1, flat] = gradient
        return
    tokens = toy.batch(flat // m).chunk(m)[flat % m]
    loss = partial(toy.loss, targets=tokens[:, 1:]) if index == STAGES - 1 else None
    output = stage.forward(flat, tokens[:, :-1] if message is None else message, loss)
    sent["F", index + 1, flat] = output


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 6])
def test_it_trains_as_a_pipeline_that_overwrites_its_weights(m: int, recompute: bool) -> None:
    executor = toy.emulated(schedule(m, recompute=recompute), PLAIN)
    toy.run(executor, (0, T))
    expected = overwritten(m, recompute=recompute)
    for ours, theirs in zip(toy.weights(executor), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [2, 4])
def test_the_weights_of_the_backward_matter(m: int) -> None:
    """With each microbatch's own old weights in its backward it would be something else, and with
    activations of newer weights something else again."""
    overwriting, stashing = (toy.emulated(schedule(m), PLAIN) for _ in range(2))
    recomputing = toy.emulated(schedule(m, recompute=True), PLAIN)
    for stage in stashing.stages:
        stage._microbatch = Microbatch
    executors = (overwriting, stashing, recomputing)
    for executor in executors:
        toy.run(executor, (0, T))
    for one, other in combinations(map(toy.weights, executors), 2):
        apart = zip(one, other, strict=True)
        assert max(float((ours - theirs).abs().max()) for ours, theirs in apart) > 1e-4


@pytest.mark.parametrize("recompute", [False, True])
def test_drains_change_no_number(recompute: bool) -> None:
    whole, parts = (toy.emulated(schedule(4, recompute=recompute), PLAIN) for _ in range(2))
    toy.run(whole, (0, T))
    toy.run(parts, (0, 1, 4, T))
    assert _equal(toy.weights(whole), toy.weights(parts))


def test_a_fresh_gradient_is_of_the_newest_weights() -> None:
    ops = [op for ops in schedule(2).undelayed(4) for op in ops if op.kind in "FB"]
    assert {op.version for op in ops} == {4}


@pytest.mark.parametrize("recompute", [False, True])
def test_without_a_delay_it_is_sync(recompute: bool) -> None:
    flushed = replace(schedule(4), lags=(0,) * STAGES, in_place=False, flushes=True)
    made = schedule(4, start=T, recompute=recompute), flushed
    ours, theirs = (toy.emulated(each, PLAIN) for each in made)
    for executor in (ours, theirs):
        toy.run(executor, (0, T))
    assert _equal(toy.weights(ours), toy.weights(theirs))


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("compile=true", "copy weights"),
        ("model.activation_checkpointing=true", "newer weights"),
        ("correction=error_feedback", "mix versions"),
    ],
)
def test_what_it_does_not_go_with_is_refused(tmp_path: Path, word: str, why: str) -> None:
    words = ["pipeline=paci", "pipeline.num_stages=2", "pipeline.num_microbatches=2", word]
    with pytest.raises(BadInput, match=f"{word.partition('=')[0]}.*with pipeline=paci.*{why}"):
        plan_trial(small_sweep.config(tmp_path, "model.num_layers=2", *words))


def _equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, ours, theirs))


# PACI's schedule against the loop of its public code's workers, simulated event by event.
#
# The loop: github.com/ItayElam/PACI, commit 3e45e71, `DistPACI/Workers.py`.

T_OF_PACI_WORKERS = 6
Seen = dict[tuple[str, int, int], int]
"""(F or B, stage, microbatch) → how many updates its stage had made."""


class Turn(NamedTuple):
    """What a worker does next: of two things at one time, the backward."""

    start: float
    kind: str
    stage: int


class Workers:
    """p stages that each step themselves after every `a` backwards, with nobody else's consent.

    Stage s goes forward only while fewer than p − s microbatches are on their way through it, and
    goes back first if a gradient is there. Stage 0 always has the next batch's data: the code
    sends up to p + 4 microbatches ahead, and stage 0 takes p. The last stage gets the gradient of
    a forward from itself. `lasts(kind, stage)` is the time that an operation takes; a message takes
    none.
    """

    def __init__(self, p: int, a: int, lasts: Callable[[str, int], float]) -> None:
        self._p, self._a, self._lasts = p, a, lasts
        self._free = [0.0] * p
        self._done = {kind: [0] * p for kind in "FB"}
        arrivals: list[list[float]] = [[0.0] * (T_OF_PACI_WORKERS * a), *([] for _ in range(p - 1))]
        self._arrived = {"F": arrivals, "B": [[] for _ in range(p)]}

    def seen(self) -> Seen:
        """What every forward and backward of T batches sees."""
        seen: Seen = {}
        while (turn := min(map(self._next, range(self._p)))).start < inf:
            done = self._done[turn.kind]
            place = turn.kind, turn.stage, done[turn.stage]
            seen[place] = self._done["B"][turn.stage] // self._a
            self._free[turn.stage] = turn.start + self._lasts(turn.kind, turn.stage)
            done[turn.stage] += 1
            self._send(turn, self._free[turn.stage])
        return seen

    def _next(self, stage: int) -> Turn:
        forwards, backwards = self._done["F"][stage], self._done["B"][stage]
        may_go_forward = forwards - backwards < self._p - stage
        back = Turn(self._start("B", stage), "B", stage)
        forth = Turn(self._start("F", stage) if may_go_forward else inf, "F", stage)
        return min(back, forth)

    def _start(self, kind: str, stage: int) -> float:
        number, arrived = self._done[kind][stage], self._arrived[kind][stage]
        return max(self._free[stage], arrived[number]) if number < len(arrived) else inf

    def _send(self, turn: Turn, now: float) -> None:
        is_last = turn.stage == self._p - 1
        if turn.kind == "F":
            kind, to = ("B", turn.stage) if is_last else ("F", turn.stage + 1)
            self._arrived[kind][to].append(now)
        elif turn.stage > 0:
            self._arrived["B"][turn.stage - 1].append(now)


def ours(p: int, a: int) -> Seen:
    phases = {"synchronous_start": 0, "synchronous_cooldown": 0}
    schedule = paci(T_OF_PACI_WORKERS, num_stages=p, num_microbatches=a, **phases)
    return {
        (op.kind, op.stage, op.batch * a + op.microbatch): op.version
        for operations in schedule.operations(0, T_OF_PACI_WORKERS)
        for op in operations
        if op.kind != "U"
    }


FULL: dict[str, Callable[[str, int], float]] = {
    "equal stages": lambda kind, stage: 1.0 if kind == "F" else 2.0,
    "a long last stage": lambda kind, stage: 1.0 + stage,
}
"""Times with which every stage always has as many microbatches on their way as it may."""


@pytest.mark.parametrize("a", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("times", FULL)
def test_full_workers_see_what_the_schedule_says(times: str, p: int, a: int) -> None:
    seen = Workers(p, a, FULL[times]).seen()
    assert seen == ours(p, a)
    assert seen == {
        (kind, s, i): max(0, (i - (p - 1 - s if kind == "F" else 0)) // a)
        for kind in "FB"
        for s in range(p)
        for i in range(T_OF_PACI_WORKERS * a)
    }


@given(p=st.integers(1, 5), a=st.integers(1, 6), jitter=st.randoms(use_true_random=False))
def test_whatever_the_times_no_worker_sees_older_weights(p: int, a: int, jitter: Random) -> None:
    """And a backward always sees what the schedule says."""
    seen = Workers(p, a, lambda kind, stage: jitter.uniform(0.1, 5)).seen()
    oldest = ours(p, a)
    assert seen.keys() == oldest.keys()
    for place, version in seen.items():
        assert version >= oldest[place]
        assert place[0] == "F" or version == oldest[place]
