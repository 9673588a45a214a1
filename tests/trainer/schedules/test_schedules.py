"""Schedules name only versions that exist, and their counted delays are those of the design."""

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    _PipelineScheduleRuntime,
)

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.schedules.operations import Schedule, horizon
from pipegap.trainer.schedules.recipes import (
    constant_delay,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    pipedream,
    pipedream_2bw,
    sync,
    zero_bubble_h1,
    zero_bubble_v,
)
from tests.support.delayed import PHASES, counted

T = 12
TORCHS = {FORWARD: "F", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W", FULL_BACKWARD: "IW"}
"""Torch's kinds of operations in ours: a whole backward is its two halves."""
STAGES, MICROBATCHES = st.integers(1, 8), st.integers(1, 16)


@given(p=STAGES, m=MICROBATCHES)
def test_flushed_schedules_have_no_delay(p: int, m: int) -> None:
    for schedule in (sync, gpipe, zero_bubble_h1):
        assert counted(schedule(T, num_stages=p, num_microbatches=m)) == [[0] * T] * p
    in_a_v = zero_bubble_v(T, num_stages=p, num_microbatches=m)
    assert counted(in_a_v) == [[0] * T] * (2 * p)
    assert in_a_v.ranks == (*range(p), *reversed(range(p)))


@settings(max_examples=20)
@given(p=STAGES, more=st.integers(0, 4))
def test_pairs_in_a_v_have_no_delay(p: int, more: int) -> None:
    schedule = dualpipe_v(2, num_stages=p, num_microbatches=2 * p + more)
    assert counted(schedule) == [[0] * 2] * (2 * p)
    assert schedule.ranks == (*range(p), *reversed(range(p)))


ZB_V = (ScheduleZBVZeroBubble, zero_bubble_v)
DUALPIPE_V = (ScheduleDualPipeV, dualpipe_v)


@pytest.mark.parametrize(
    ("theirs", "ours", "p", "m"),
    [
        *((*ZB_V, p, m) for p, m in [(2, 2), (2, 3), (3, 5), (4, 7), (4, 10)]),
        *((*DUALPIPE_V, p, m) for p, m in [(1, 2), (2, 4), (3, 7), (4, 8), (5, 12), (8, 20)]),
    ],
)
def test_two_chunks_in_a_v_are_in_the_order_of_torchs(
    theirs: type[_PipelineScheduleRuntime], ours: Callable[..., Schedule], p: int, m: int
) -> None:
    """Torch makes a whole backward of the two halves where they follow each other, and in DualPipeV
    one action of a forward and the backward after it."""
    runtime = theirs.__new__(theirs)
    runtime.pp_group_size, runtime.num_stages, runtime._n_microbatches = p, 2 * p, m
    for rank, ops in enumerate(ours(1, num_stages=p, num_microbatches=m).operations(0, 1)):
        actions = runtime._calculate_single_rank_operations(rank)
        expected = [
            (kind, step.stage_index, step.microbatch_index)
            for action in actions
            if action is not None
            for step in action.sub_actions or [action]
            for kind in TORCHS[step.computation_type]
        ]
        assert [(op.kind, op.stage, op.microbatch) for op in ops if op.kind != "U"] == expected


@given(p=STAGES, groups=st.integers(1, 4), v=st.integers(1, 4))
def test_interleaving_chunks_makes_no_delay(p: int, groups: int, v: int) -> None:
    schedule = interleaved_1f1b(T, num_stages=p, num_chunks=v, num_microbatches=groups * p)
    assert [list(schedule.stages(rank)) for rank in range(p)] == [
        [chunk * p + rank for chunk in range(v)] for rank in range(p)
    ]
    assert counted(schedule) == [[0] * T] * (p * v)


@given(
    p=STAGES,
    m=MICROBATCHES,
    start=st.integers(0, 5),
    cooldown=st.integers(0, 5),
    slack=st.booleans(),
)
def test_two_buffered_weights_delay_every_stage_by_one(
    p: int, m: int, start: int, cooldown: int, slack: bool
) -> None:
    options = {"synchronous_start": start, "synchronous_cooldown": cooldown, "slack": slack}
    if m < (2 if slack else 1) * (p - 1):
        with pytest.raises(BadInput, match="num_microbatches"):
            pipedream_2bw(T, num_stages=p, num_microbatches=m, **options)
        return
    schedule = pipedream_2bw(T, num_stages=p, num_microbatches=m, **options)
    delayed = T - start - cooldown
    expected = [0] * start + [min(t, 1) for t in range(delayed)] + [0] * cooldown
    assert counted(schedule) == [expected] * p


@given(p=STAGES, m=MICROBATCHES)
def test_weight_stashing_delays_a_stage_by_its_depth(p: int, m: int) -> None:
    schedule = pipedream(T, num_stages=p, num_microbatches=m, **PHASES)
    for stage, delay_of_batch in enumerate(counted(schedule)):
        depth = ceil((p - 1 - stage) / m)
        assert delay_of_batch == [min(t, depth) for t in range(T)]


@given(p=STAGES, m=MICROBATCHES, tau=st.integers(0, 5))
def test_constant_delay(p: int, m: int, tau: int) -> None:
    schedule = constant_delay(T, delay=tau, num_stages=p, num_microbatches=m, **PHASES)
    assert counted(schedule) == [[min(t, tau) for t in range(T)]] * p


@given(p=STAGES, m=MICROBATCHES)
def test_at_most_one_update_is_pending(p: int, m: int) -> None:
    schedule = pipedream(T, num_stages=p, num_microbatches=m, **PHASES)
    for ops in schedule.operations(0, T):
        complete = updated = 0
        for op in ops:
            assert complete - updated <= (2 if op.kind == "U" else 1)
            complete += op.kind == "B" and op.microbatch == m - 1
            updated += op.kind == "U"


def test_only_zero_bubble_splits_the_backward() -> None:
    assert zero_bubble_h1(T, num_stages=2, num_microbatches=2).splits_backward
    assert not sync(T, num_stages=2, num_microbatches=2).splits_backward


def test_without_a_delay_there_is_one_phase() -> None:
    """Every phase ends with a drain."""
    assert sync(T, num_stages=2, num_microbatches=2).phases == (0, T)


@pytest.mark.parametrize("start", [0.25, 3])
def test_a_float_is_a_share_and_an_int_a_number_of_updates(start: float) -> None:
    phases = PHASES | {"synchronous_start": start}
    schedule = pipedream_2bw(T, num_stages=1, num_microbatches=1, **phases)
    assert schedule.phases == (0, 3, T)


def test_the_horizon_is_the_last_batch_that_a_rank_begins_before_an_update() -> None:
    """Under 2BW that is the next batch, if there is one; a flush comes before it."""
    delayed = pipedream_2bw(6, num_stages=3, num_microbatches=3, **PHASES).operations(0, 6)
    flushed = sync(6, num_stages=3, num_microbatches=3).operations(0, 6)
    assert [horizon(delayed, batch) for batch in range(6)] == [1, 2, 3, 4, 5, 5]
    assert [horizon(flushed, batch) for batch in range(6)] == [*range(6)]


TOO_FEW = "2BW needs at least num_stages - 1 = 3"
TOO_FEW_FOR_SLACK = r"with slack needs at least 2 \* \(num_stages - 1\) = 6"


@pytest.mark.parametrize(
    ("make", "m", "options", "why"),
    [
        (dualpipe_v, 7, {}, r"=7: DualPipeV needs at least 2 \* num_stages = 8$"),
        (interleaved_1f1b, 6, {"num_chunks": 2}, "multiple of num_stages=4"),
        (pipedream_2bw, 2, PHASES, TOO_FEW),
        (pipedream_2bw, 5, {**PHASES, "slack": True}, TOO_FEW_FOR_SLACK),
        (
            pipedream_2bw,
            3,
            {"synchronous_start": 10, "synchronous_cooldown": 0.5},
            "num_updates=12",
        ),
    ],
)
def test_what_a_schedule_of_four_stages_cannot_do_is_refused(
    make: Callable[..., Schedule], m: int, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        make(T, num_stages=4, num_microbatches=m, **options)
