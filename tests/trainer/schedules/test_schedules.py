"""Schedules name only versions that exist, and their counted delays are those of the design."""

from collections.abc import Callable
from functools import partial
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
    paci,
    pipedream,
    pipedream_2bw,
    sync,
    wpipe,
    zero_bubble_h1,
    zero_bubble_v,
)
from tests.support.delayed import PHASES, counted

T = 12
TORCHS = {FORWARD: "F", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W", FULL_BACKWARD: "IW"}
"""Torch's kinds of operations in ours: a whole backward is its two halves."""
STAGES, MICROBATCHES = st.integers(1, 8), st.integers(1, 16)


@settings(max_examples=25)
@given(p=STAGES, m=MICROBATCHES, v=st.integers(1, 4))
def test_flushed_schedules_have_no_delay(p: int, m: int, v: int) -> None:
    for make in (sync, gpipe, zero_bubble_h1):
        assert counted(make(T, num_stages=p, num_microbatches=m)) == [[0] * T] * p
    in_turns = interleaved_1f1b(T, num_stages=p, num_chunks=v, num_microbatches=p * ceil(m / p))
    assert counted(in_turns) == [[0] * T] * (p * v)
    assert in_turns.ranks == (*range(p),) * v
    for make, least in ((zero_bubble_v, 1), (dualpipe_v, 2 * p)):
        in_a_v = make(2, num_stages=p, num_microbatches=max(m, least))
        assert counted(in_a_v) == [[0] * 2] * (2 * p)
        assert in_a_v.ranks == (*range(p), *reversed(range(p)))


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


Lag = Callable[[int, int, int], int]
"""(stage, p, m) → how many updates old its gradients are at most."""
LATE: dict[str, tuple[Callable[..., Schedule], Lag]] = {
    "constant delay": (partial(constant_delay, delay=3), lambda s, p, m: 3),
    "2BW": (pipedream_2bw, lambda s, p, m: 1),
    "2BW with slack": (partial(pipedream_2bw, slack=True), lambda s, p, m: 1),
    "PipeDream": (pipedream, lambda s, p, m: ceil((p - 1 - s) / m)),
    "PACI": (paci, lambda s, p, m: ceil((p - 1 - s) / m)),
    "WPipe": (wpipe, lambda s, p, m: int(s < p)),
}
LEAST = {"2BW": 1, "2BW with slack": 2}
"""Microbatches that it needs for each stage but one."""


@pytest.mark.parametrize("name", LATE)
@settings(max_examples=25)
@given(p=STAGES, m=MICROBATCHES, start=st.integers(0, 5), cooldown=st.integers(0, 5))
def test_stages_are_as_late_as_their_paper_says(
    name: str, p: int, m: int, start: int, cooldown: int
) -> None:
    make, lag = LATE[name]
    phases = {"synchronous_start": start, "synchronous_cooldown": cooldown}
    if m < LEAST.get(name, 0) * (p - 1):
        with pytest.raises(BadInput, match="num_microbatches"):
            make(T, num_stages=p, num_microbatches=m, **phases)
        return
    for stage, of_stage in enumerate(counted(make(T, num_stages=p, num_microbatches=m, **phases))):
        late = [min(t, lag(stage, p, m)) for t in range(T - start - cooldown)]
        assert of_stage == [0] * start + late + [0] * cooldown


@pytest.mark.parametrize("p", [1, 2, 4])
def test_wpipe_begins_the_next_batch_before_this_one_comes_back(p: int) -> None:
    """In its first group of stages, and not in the second."""
    for ops in wpipe(6, num_stages=p, num_microbatches=3, **PHASES).operations(0, 6):
        at = {op[:4]: i for i, op in enumerate(ops)}
        for (kind, stage, batch, microbatch), i in at.items():
            if kind == "F" and batch > 0:
                assert (at["B", stage, batch - 1, microbatch] < i) == (stage >= p)


@given(p=STAGES, m=MICROBATCHES)
def test_at_most_one_update_is_pending(p: int, m: int) -> None:
    schedule = pipedream(T, num_stages=p, num_microbatches=m, **PHASES)
    for ops in schedule.operations(0, T):
        complete = updated = 0
        for op in ops:
            assert complete - updated <= (2 if op.kind == "U" else 1)
            complete += op.kind == "B" and op.microbatch == m - 1
            updated += op.kind == "U"


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
