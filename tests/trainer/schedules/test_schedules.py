"""Schedules name only versions that exist, and their counted delays are those of the design."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
)

from tests.support import small
from trainer.base.errors import BadInput
from trainer.config.plan import plan_trial
from trainer.schedules.operations import Op, Schedule, delays
from trainer.schedules.orders import one_forward_one_backward
from trainer.schedules.proof import check, interleave
from trainer.schedules.recipes import (
    constant_delay,
    gpipe,
    interleaved_1f1b,
    pipedream,
    pipedream_2bw,
    sync,
    zero_bubble_h1,
    zero_bubble_v,
)

T = 12
TORCHS = {FORWARD: "F", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W", FULL_BACKWARD: "IW"}
"""Torch's kinds of operations in ours: a whole backward is its two halves."""
STAGES, MICROBATCHES = st.integers(1, 8), st.integers(1, 16)


def counted(schedule: Schedule) -> list[list[int]]:
    """Delay of every batch, one list per stage, over all phases; every phase is proven possible."""
    found: list[list[int]] = [[] for _ in range(schedule.num_stages)]
    marks = schedule.phases
    for first, last in pairwise(marks):
        operations = schedule.operations(first, last)
        check(operations, schedule.lags, first)
        for ops in operations:
            for stage, of_stage in delays(ops).items():
                found[stage] += of_stage
    return found


@given(p=STAGES, m=MICROBATCHES)
def test_flushed_schedules_have_no_delay(p: int, m: int) -> None:
    for schedule in (sync, gpipe, zero_bubble_h1):
        assert counted(schedule(T, num_stages=p, num_microbatches=m)) == [[0] * T] * p
    assert counted(zero_bubble_v(T, num_stages=p, num_microbatches=m)) == [[0] * T] * (2 * p)


@given(p=STAGES, m=MICROBATCHES)
def test_stages_go_down_the_ranks_and_up_again(p: int, m: int) -> None:
    schedule = zero_bubble_v(T, num_stages=p, num_microbatches=m)
    assert schedule.ranks == (*range(p), *reversed(range(p)))
    assert [sorted(schedule.stages(rank)) for rank in range(p)] == [
        [rank, 2 * p - 1 - rank] for rank in range(p)
    ]


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 3), (3, 5), (4, 7), (4, 10)])
def test_zb_v_is_in_the_order_of_torchs(p: int, m: int) -> None:
    """Torch makes a whole backward of the two halves where they follow each other."""
    runtime = ScheduleZBVZeroBubble.__new__(ScheduleZBVZeroBubble)
    runtime.pp_group_size, runtime.num_stages, runtime._n_microbatches = p, 2 * p, m
    schedule = zero_bubble_v(1, num_stages=p, num_microbatches=m)
    for rank, ops in enumerate(schedule.operations(0, 1)):
        theirs = runtime._calculate_single_rank_operations(rank)
        expected = [
            (kind, action.stage_index, action.microbatch_index)
            for action in theirs
            if action is not None
            for kind in TORCHS[action.computation_type]
        ]
        assert [(op.kind, op.stage, op.microbatch) for op in ops if op.kind != "U"] == expected


@given(p=STAGES, groups=st.integers(1, 4), v=st.integers(1, 4))
def test_interleaving_chunks_makes_no_delay(p: int, groups: int, v: int) -> None:
    schedule = interleaved_1f1b(T, num_stages=p, num_chunks=v, num_microbatches=groups * p)
    assert [list(schedule.stages(rank)) for rank in range(p)] == [
        [chunk * p + rank for chunk in range(v)] for rank in range(p)
    ]
    assert counted(schedule) == [[0] * T] * (p * v)


def test_interleaving_needs_groups_of_p_microbatches() -> None:
    with pytest.raises(BadInput, match="multiple of num_stages=4"):
        interleaved_1f1b(T, num_stages=4, num_chunks=2, num_microbatches=6)


@given(p=STAGES, m=MICROBATCHES, start=st.integers(0, 5), cooldown=st.integers(0, 5))
def test_two_buffered_weights_delay_every_stage_by_one(
    p: int, m: int, start: int, cooldown: int
) -> None:
    options = {"synchronous_start": start, "synchronous_cooldown": cooldown}
    if m < p - 1:
        with pytest.raises(BadInput, match="num_microbatches"):
            pipedream_2bw(T, num_stages=p, num_microbatches=m, **options)
        return
    schedule = pipedream_2bw(T, num_stages=p, num_microbatches=m, **options)
    delayed = T - start - cooldown
    one = [0] * start + [min(t, 1) for t in range(delayed)] + [0] * cooldown
    assert counted(schedule) == [one] * p


@given(p=STAGES, m=MICROBATCHES)
def test_weight_stashing_delays_a_stage_by_its_depth(p: int, m: int) -> None:
    schedule = pipedream(
        T, num_stages=p, num_microbatches=m, synchronous_start=0, synchronous_cooldown=0
    )
    for stage, delay_of_batch in enumerate(counted(schedule)):
        depth = ceil((p - 1 - stage) / m)
        assert delay_of_batch == [min(t, depth) for t in range(T)]


@given(p=STAGES, m=MICROBATCHES, tau=st.integers(0, 5))
def test_constant_delay(p: int, m: int, tau: int) -> None:
    schedule = constant_delay(
        T,
        delay=tau,
        num_stages=p,
        num_microbatches=m,
        synchronous_start=0,
        synchronous_cooldown=0,
    )
    assert counted(schedule) == [[min(t, tau) for t in range(T)]] * p


@given(p=STAGES, m=MICROBATCHES)
def test_every_microbatch_runs_once_and_at_most_one_update_is_pending(p: int, m: int) -> None:
    schedule = pipedream(
        T, num_stages=p, num_microbatches=m, synchronous_start=0, synchronous_cooldown=0
    )
    for ops in schedule.operations(0, T):
        for kind in "FB":
            ran = [(op.batch, op.microbatch) for op in ops if op.kind == kind]
            assert ran == [(t, i) for t in range(T) for i in range(m)]
        complete = updated = 0
        for op in ops:
            assert complete - updated <= (2 if op.kind == "U" else 1)
            complete += op.kind == "B" and op.microbatch == m - 1
            updated += op.kind == "U"


def test_fewer_than_p_minus_1_microbatches_cannot_work() -> None:
    """The bound of 2BW is a fact of its list, not only a check of its arguments."""
    too_few = Schedule(
        T,
        2,
        (1,) * 4,
        one_forward_one_backward,
        flushes=False,
        first_delayed=0,
        first_cooldown=T,
    )
    with pytest.raises(ValueError, match="deadlocks"):
        check(too_few.operations(0, T), too_few.lags, 0)


def overwrites(num_updates: int, *, num_stages: int, num_microbatches: int) -> Schedule:
    """A recipe that somebody might add: without flushes, but with one version."""
    flushed = sync(num_updates, num_stages=num_stages, num_microbatches=num_microbatches)
    return replace(flushed, flushes=False)


def test_a_trial_of_a_schedule_that_cannot_run_is_refused(tmp_path: Path) -> None:
    words = (f"pipeline._target_={__name__}.overwrites", "pipeline.num_stages=2")
    with pytest.raises(BadInput, match="pipeline=overwrites: the schedule deadlocks"):
        plan_trial(small.config(tmp_path, *words))


def test_2bw_of_fewer_than_p_minus_1_microbatches_is_refused() -> None:
    phases = {"synchronous_start": 0, "synchronous_cooldown": 0}
    assert pipedream_2bw(T, num_stages=4, num_microbatches=3, **phases).lags == (1,) * 4
    with pytest.raises(BadInput, match="at least num_stages - 1 = 3"):
        pipedream_2bw(T, num_stages=4, num_microbatches=2, **phases)


def test_only_zero_bubble_splits_the_backward() -> None:
    assert zero_bubble_h1(T, num_stages=2, num_microbatches=2).splits_backward
    assert not sync(T, num_stages=2, num_microbatches=2).splits_backward


def test_without_a_delay_there_is_one_phase() -> None:
    """Every phase ends with a drain."""
    assert sync(T, num_stages=2, num_microbatches=2).phases == (0, T)


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


def test_operations_print_as_torchs_do() -> None:
    """Stage, kind, batch, microbatch, version; an update is of a whole batch."""
    assert str(Op("F", 1, 0, 3, 7, 6)) == "1F0.3@v7"
    assert [str(Op(kind, 2, 5, 0, 4, 4)) for kind in "BIW"] == [  # type: ignore[arg-type]
        "2B5.0@v4",
        "2I5.0@v4",
        "2W5.0@v4",
    ]
    assert str(Op("U", 1, 0, 3, 1, 1)) == "1U0@v1"


@pytest.mark.parametrize("start", [0.25, 3])
def test_a_float_is_a_share_and_an_int_a_number_of_updates(start: float) -> None:
    schedule = pipedream_2bw(
        T, num_stages=1, num_microbatches=1, synchronous_start=start, synchronous_cooldown=0
    )
    assert schedule.phases == (0, 3, T)


def test_phases_longer_than_the_run_are_refused() -> None:
    with pytest.raises(BadInput, match="num_updates=12"):
        pipedream_2bw(
            T, num_stages=1, num_microbatches=1, synchronous_start=10, synchronous_cooldown=0.5
        )
