"""A trial drains wherever its schedule changes; learning-rate factors against their formulas."""

import math
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipegap.trainer.lr import constant, cosine, inverse_sqrt, linear, wsd
from pipegap.trainer.progress import Agenda
from pipegap.trainer.schedules.proof import check
from pipegap.trainer.schedules.recipes import pipedream, pipedream_2bw
from tests.support.trials import ran

T = 12
EVERY, MAYBE = st.integers(1, 2 * T), st.none() | st.integers(1, 2 * T)


@given(
    start=st.integers(0, 5),
    cooldown=st.integers(0, 5),
    eval_every=EVERY,
    checkpoint_every=EVERY,
    compare_every=MAYBE,
    num_done=st.integers(0, T - 1),
)
@pytest.mark.parametrize("make", [pipedream_2bw, pipedream])
def test_what_runs_between_two_drains_can_run(
    make: type,
    start: int,
    cooldown: int,
    eval_every: int,
    checkpoint_every: int,
    compare_every: int | None,
    num_done: int,
) -> None:
    phases = {"synchronous_start": start, "synchronous_cooldown": cooldown}
    schedule = make(T, num_stages=3, num_microbatches=2, **phases)
    agenda = Agenda(T, schedule.phases, eval_every, checkpoint_every, compare_every)
    drains = [*agenda.drains(num_done)]
    assert drains[-1] == T
    for first, last in pairwise([num_done, *drains]):
        check(schedule.operations(first, last), schedule.lags, first)


def test_drains_are_counted_as_they_are_needed() -> None:
    """All drains of a billion updates would take all memory before the first update."""
    drains = Agenda(10**9, (0, 10**9), 7, 3, 1).drains(num_done=4)
    assert [*islice(drains, 3)] == [5, 6, 7]


@pytest.mark.parametrize("runner", ["emulated", "pipelined"])
def test_a_trial_drains_before_its_cooldown(tmp_path: Path, runner: str) -> None:
    """With no other reason to drain there; the last three gradients are fresh."""
    words = (
        *("pipeline=pipedream_2bw", "pipeline.num_stages=2", "pipeline.num_microbatches=2"),
        *("eval_every=100", "checkpoint_every=100", "timeout=60"),
    )
    cooled = ("pipeline.synchronous_cooldown=3", f"runner={runner}")
    plain, fresh_at_the_end = (
        [row["train_loss"] for row in ran(tmp_path, name, *words, *more)[1]]
        for name, more in (("plain", ()), ("cooled", cooled))
    )
    assert len(fresh_at_the_end) == T
    assert fresh_at_the_end[:9] == plain[:9]
    assert fresh_at_the_end[9] != plain[9]


NUM = 100


def test_warm_up_is_never_zero_and_ends_at_the_peak() -> None:
    for factor in (
        cosine(NUM, warmup=0.1, final=0.1),
        linear(NUM, warmup=0.1, final=0.1),
        wsd(NUM, warmup=0.1, decay=0.2, final=0.1),
        constant(NUM, warmup=0.1),
        inverse_sqrt(NUM, warmup=0.1),
    ):
        assert [factor(t) for t in range(10)] == pytest.approx([(t + 1) / 10 for t in range(10)])
        assert max(factor(t) for t in range(NUM)) == 1


def test_decays() -> None:
    half = 10 + 89 / 2
    assert cosine(NUM, warmup=0.1, final=0.1)(99) == pytest.approx(0.1)
    assert cosine(NUM, warmup=0.1, final=0.1)(round(half)) == pytest.approx(
        0.1 + 0.9 * (1 + math.cos(math.pi * (round(half) - 10) / 89)) / 2
    )
    assert linear(NUM, warmup=0.1, final=0.1)(99) == pytest.approx(0.1)
    assert wsd(NUM, warmup=0.1, decay=0.2, final=0.0)(80) == 1
    assert wsd(NUM, warmup=0.1, decay=0.2, final=0.0)(99) == pytest.approx(0)
    assert constant(NUM, warmup=0.0)(99) == 1
    assert inverse_sqrt(NUM, warmup=0.1)(39) == pytest.approx(0.5)
