"""A schedule that deadlocks, or reads a version that is not there, is found before it runs."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.orders import (
    Order,
    interleaved,
    one_forward_one_backward,
    with_slack,
)
from pipegap.trainer.schedules.proof import check, interleave
from pipegap.trainer.schedules.recipes import sync
from tests.support import small

T = 12


def test_fewer_than_p_minus_1_microbatches_cannot_work() -> None:
    """The bound of 2BW is a fact of its list, not only a check of its arguments."""
    too_few = Schedule(
        T, 2, (1,) * 4, one_forward_one_backward, flushes=False, first_delayed=0, first_cooldown=T
    )
    with pytest.raises(ValueError, match="deadlocks"):
        check(too_few.operations(0, T), too_few.lags, 0)


def two_versions_suffice(p: int, m: int, order: Order, num_chunks: int = 1) -> bool:
    """For a flush-free list of p ranks in this order."""
    lags = (1,) * (p * num_chunks)
    made = Schedule(6, m, lags, order, False, 0, 6, num_chunks=num_chunks)
    try:
        check(made.operations(0, 6), lags, 0)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("p", range(2, 6))
def test_forwards_ahead_are_at_most_a_batch(p: int) -> None:
    """What is ahead on rank 0 decides whether two versions suffice: p − 1 forwards in 1F1B, twice
    as many with slack, 2 (p − 1) + (v − 1) p of v chunks each if they are interleaved."""
    for m in range(1, 2 * p + 1):
        assert two_versions_suffice(p, m, one_forward_one_backward) == (m >= p - 1)
        assert two_versions_suffice(p, m, with_slack) == (m >= 2 * (p - 1))
    for m, v in product((p, 2 * p), (2, 3)):
        assert two_versions_suffice(p, m, interleaved, v) == (m * v >= 2 * (p - 1) + (v - 1) * p)


def overwrites(num_updates: int, *, num_stages: int, num_microbatches: int) -> Schedule:
    """A recipe that somebody might add: without flushes, but with one version."""
    flushed = sync(num_updates, num_stages=num_stages, num_microbatches=num_microbatches)
    return replace(flushed, flushes=False)


def test_a_trial_of_a_schedule_that_cannot_run_is_refused(tmp_path: Path) -> None:
    words = (f"pipeline._target_={__name__}.overwrites", "pipeline.num_stages=2")
    with pytest.raises(BadInput, match="pipeline=overwrites: the schedule deadlocks"):
        plan_trial(small.config(tmp_path, *words))


def test_a_tied_version_that_is_not_there_is_found() -> None:
    """Of stages with lags 2 and 0 the tied weights have three versions, on both."""
    fine = [Op("F", 0, 0, 0, 0, 0)], [Op("F", 1, 0, 0, 0, 0)]
    check(fine, [2, 0], 0)
    with pytest.raises(ValueError, match="not there"):
        check([fine[0], [Op("F", 1, 0, 0, 0, 1)]], [2, 0], 0)
    with pytest.raises(ValueError, match="not there"):
        check([[Op("F", 0, 0, 0, 0, 1)], fine[1]], [2, 0], 0)


def test_a_version_that_is_not_there_is_found() -> None:
    op = Op("F", 0, 0, 0, 1, 1)
    with pytest.raises(ValueError, match="not there"):
        check([[op]], [1], 0)
    late = [Op("U", 0, 0, 0, 1, 1), Op("U", 0, 1, 0, 2, 2), Op("F", 0, 2, 0, 0, 0)]
    fine = [Op("B", 0, 0, 0, 0, 0), Op("B", 0, 1, 0, 0, 0)]
    with pytest.raises(ValueError, match="not there"):
        check([[*fine, *late]], [1], 0)


def test_a_deadlock_is_found_and_shows_what_each_rank_waits_for() -> None:
    first = [Op("F", 0, 0, 0, 0, 0), Op("B", 0, 0, 0, 0, 0), Op("F", 0, 0, 1, 0, 0)]
    second = [Op("F", 1, 0, 0, 0, 0), Op("F", 1, 0, 1, 0, 0), Op("B", 1, 0, 0, 0, 0)]
    with pytest.raises(ValueError, match="deadlock") as caught:
        list(interleave([first, second]))
    assert str(caught.value) == (
        "the schedule deadlocks: rank 0 did 0F0.0@v0; 0B0.0@v0 waits for 1B0.0@v0"
        " | rank 1 did 1F0.0@v0; 1F0.1@v0 waits for 0F0.1@v0"
    )
    with pytest.raises(ValueError, match=r"1B0\.0, which is in no list"):
        list(interleave([first, [Op("F", 1, 0, 0, 0, 0)]]))


def test_a_deadlock_shows_only_the_last_operations_of_a_rank() -> None:
    forwards = [Op("F", 0, 0, microbatch, 0, 0) for microbatch in range(9)]
    with pytest.raises(ValueError, match=r"rank 0 did 0F0.5@v0 .*0F0.8@v0; 0B0.0@v0 waits"):
        list(interleave([[*forwards, Op("B", 0, 0, 0, 0, 0)], [Op("F", 1, 0, 0, 0, 0)]]))
