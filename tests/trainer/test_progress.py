"""A trial drains wherever its schedule changes, whatever else it has to stop for."""

from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
