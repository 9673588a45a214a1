"""Schedules name only versions that exist, and their counted delays are those of the design."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
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

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.schedules.operations import (
    Op,
    Order,
    Schedule,
    horizon,
    interleaved,
    one_forward_one_backward,
    with_slack,
)
from pipegap.trainer.schedules.proof import Timeline, check, interleave, simulate, steady
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
from tests.oracles.corrections import PLAIN
from tests.support import small_sweep
from tests.support.delayed import PHASES, T, counted
from tests.support.every_correction import Setting, error
from tests.support.small_sweep import later_wins

T_OF_SCHEDULES = 12
TORCHS = {FORWARD: "F", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W", FULL_BACKWARD: "IW"}
"""Torch's kinds of operations in ours: a whole backward is its two halves."""
STAGES, MICROBATCHES = st.integers(1, 8), st.integers(1, 16)


@settings(max_examples=25)
@given(p=STAGES, m=MICROBATCHES, v=st.integers(1, 4))
def test_flushed_schedules_have_no_delay(p: int, m: int, v: int) -> None:
    for make in (sync, gpipe, zero_bubble_h1):
        assert (
            counted(make(T_OF_SCHEDULES, num_stages=p, num_microbatches=m))
            == [[0] * T_OF_SCHEDULES] * p
        )
    in_turns = interleaved_1f1b(
        T_OF_SCHEDULES, num_stages=p, num_chunks=v, num_microbatches=p * ceil(m / p)
    )
    assert counted(in_turns) == [[0] * T_OF_SCHEDULES] * (p * v)
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
            make(T_OF_SCHEDULES, num_stages=p, num_microbatches=m, **phases)
        return
    for stage, of_stage in enumerate(
        counted(make(T_OF_SCHEDULES, num_stages=p, num_microbatches=m, **phases))
    ):
        late = [min(t, lag(stage, p, m)) for t in range(T_OF_SCHEDULES - start - cooldown)]
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
    schedule = pipedream(T_OF_SCHEDULES, num_stages=p, num_microbatches=m, **PHASES)
    for ops in schedule.operations(0, T_OF_SCHEDULES):
        complete = updated = 0
        for op in ops:
            assert complete - updated <= (2 if op.kind == "U" else 1)
            complete += op.kind == "B" and op.microbatch == m - 1
            updated += op.kind == "U"


@pytest.mark.parametrize("start", [0.25, 3])
def test_a_float_is_a_share_and_an_int_a_number_of_updates(start: float) -> None:
    phases = PHASES | {"synchronous_start": start}
    schedule = pipedream_2bw(T_OF_SCHEDULES, num_stages=1, num_microbatches=1, **phases)
    assert schedule.phases == (0, 3, T_OF_SCHEDULES)


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
        make(T_OF_SCHEDULES, num_stages=4, num_microbatches=m, **options)


# A schedule that deadlocks, or reads a version that is not there, is found before it runs.

T_OF_PROOF = 12


def test_fewer_than_p_minus_1_microbatches_cannot_work() -> None:
    """The bound of 2BW is a fact of its list, not only a check of its arguments."""
    too_few = Schedule(
        T_OF_PROOF,
        2,
        (1,) * 4,
        one_forward_one_backward,
        flushes=False,
        first_delayed=0,
        first_cooldown=T_OF_PROOF,
    )
    with pytest.raises(ValueError, match="deadlocks"):
        check(too_few.operations(0, T_OF_PROOF), too_few.lags, 0)


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
        plan_trial(small_sweep.config(tmp_path, *words))


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


# Without costs of updates and messages, 2BW has no bubble but the first, 1F1B one per batch.

BATCHES = st.integers(1, 5)
FORWARD_OF_SIMULATE, BACKWARD = 1.0, 2.0
FREE = {"F": FORWARD_OF_SIMULATE, "B": BACKWARD, "I": 1.0, "W": 1.0, "U": 0.0}


def timeline(schedule: Schedule) -> Timeline:
    operations = schedule.operations(0, schedule.num_updates)
    return simulate(operations, [FREE] * schedule.num_ranks)


@given(p=STAGES, m=MICROBATCHES, k=BATCHES)
def test_when_pipelines_end_and_what_they_keep(p: int, m: int, k: int) -> None:
    """2BW flushes once, the others every batch; 1F1B keeps the microbatches ahead of a stage."""
    shape, microbatch = {"num_stages": p, "num_microbatches": m}, FORWARD_OF_SIMULATE + BACKWARD
    plain, all_first = timeline(sync(k, **shape)), timeline(gpipe(k, **shape))
    assert plain.makespan == all_first.makespan == k * (m + p - 1) * microbatch
    assert [plain.peak_activations(s) for s in range(p)] == [min(m, p - s) for s in range(p)]
    assert [all_first.peak_activations(s) for s in range(p)] == [m] * p
    shape["num_microbatches"] = m = max(m, p - 1)
    assert timeline(pipedream_2bw(k, **shape, **PHASES)).makespan == (k * m + p - 1) * microbatch


@given(p=STAGES, groups=st.integers(1, 4), v=st.integers(1, 4))
def test_chunks_divide_the_bubble_and_cost_activations(p: int, groups: int, v: int) -> None:
    """A bubble of (p − 1)(tf + tb) / v per batch, where tf and tb are times of a whole stage.

    Rank 0 keeps the activations of p microbatches (p · v chunks) and (p − 1) / (p · v) more of them
    (arXiv 2104.04473, 2.2); the p − 1 ranks after it keep two chunks fewer each.
    """
    m = groups * p
    schedule = interleaved_1f1b(2, num_stages=p, num_chunks=v, num_microbatches=m)
    simulated = timeline(schedule)
    assert simulated.makespan == 2 * (m * v + p - 1) * (FORWARD_OF_SIMULATE + BACKWARD)
    kept = [min(m * v, p * v + p - 1 - 2 * rank) for rank in range(p)]
    assert [simulated.peak_activations(rank) for rank in range(p)] == kept


@given(p=STAGES, m=MICROBATCHES)
def test_weight_halves_fill_the_bubble_and_cost_no_activations(p: int, m: int) -> None:
    """ZB-H1: a bubble of (p − 1)(tf + ti − tw) per batch, if there are p microbatches to fill."""
    m = max(m, p)
    simulated = timeline(zero_bubble_h1(2, num_stages=p, num_microbatches=m))
    assert simulated.makespan == 2 * (m * 3 + p - 1)
    assert max(simulated.peak_activations(s) for s in range(p)) <= p


@given(p=STAGES, m=MICROBATCHES)
def test_a_v_leaves_a_rank_no_bubble_and_costs_no_activations(p: int, m: int) -> None:
    """ZB-V (arXiv 2401.10241, section 6), with halves that take as long as a forward: 6 steps per
    microbatch without a gap on every rank, and the activations of 2p chunks, which are p whole
    microbatches. Ranks start up to p − 1 steps late, and wait that long for the gradient's norm."""
    few = timeline(zero_bubble_v(2, num_stages=p, num_microbatches=m))
    assert few.makespan >= 2 * (6 * m + p - 1)
    assert max(few.peak_activations(rank) for rank in range(p)) <= 2 * min(p, m)
    m = max(m, 2 * p - 1)
    simulated = timeline(zero_bubble_v(2, num_stages=p, num_microbatches=m))
    assert simulated.makespan == 2 * (6 * m + p - 1)
    for rank, spans in enumerate(simulated.spans):
        steps = [(start, end) for op, start, end in spans if op.batch == 0 and op.kind != "U"]
        assert steps[0][0] == rank
        assert steps[-1][1] - steps[0][0] == 6 * m
        assert simulated.peak_activations(rank) == 2 * p


@settings(max_examples=25)
@given(p=STAGES, more=st.integers(0, 4), forward=st.integers(1, 4), weights=st.integers(1, 4))
def test_pairs_in_a_v_idle_as_if_their_forward_were_free(
    p: int, more: int, forward: int, weights: int
) -> None:
    """DualPipeV (arXiv 2412.19437, table 2): a bubble of (p − 1)(F&B + B − 3W) per batch, in which
    F&B is no more than B where each of a pair passes its result on by itself. Every rank keeps the
    activations of 2p + 1 chunks."""
    weights, m = min(weights, forward), 2 * p + more
    whole = forward + weights
    costs = {"F": forward, "I": forward, "W": weights, "U": 0.0}
    operations = dualpipe_v(2, num_stages=p, num_microbatches=m).operations(0, 2)
    simulated = simulate(operations, [costs] * p)
    bubble = (p - 1) * (whole + whole - 3 * weights)
    assert simulated.makespan == 2 * (2 * m * (forward + whole) + bubble)
    assert [simulated.peak_activations(rank) for rank in range(p)] == [2 * p + 1] * p


def test_messages_and_updates_take_time() -> None:
    """Two stages, one microbatch: F, message, F, B, message, B, then a message for the norm, U."""
    operations = sync(1, num_stages=2, num_microbatches=1).operations(0, 1)
    simulated = simulate(operations, [{"F": 1.0, "B": 2.0, "U": 4.0}] * 2, communication=0.5)
    assert simulated.makespan == 1 + 0.5 + 1 + 2 + 0.5 + 2 + 0.5 + 4


@given(p=STAGES, more=MICROBATCHES, message=st.floats(0, 1.5))
def test_with_slack_messages_keep_nobody_waiting(p: int, more: int, message: float) -> None:
    """If one takes up to half as long as a forward and a backward. The first stages keep the
    activations of up to p − 1 more microbatches."""
    shape = {"num_stages": p, "num_microbatches": 2 * (p - 1) + more}
    time, start = steady(pipedream_2bw(9, **shape, **PHASES, slack=True), [FREE] * p, message)
    assert time == pytest.approx(shape["num_microbatches"] * (FORWARD_OF_SIMULATE + BACKWARD))
    assert [start.peak_activations(s) for s in range(p)] == [2 * (p - 1 - s) + 1 for s in range(p)]


@given(p=st.integers(2, 8), message=st.floats(0.1, 1.5))
def test_without_slack_every_message_delays_its_rank(p: int, message: float) -> None:
    plain = pipedream_2bw(9, num_stages=p, num_microbatches=2 * p, **PHASES)
    time, _ = steady(plain, [FREE] * p, message)
    assert time > 2 * p * (FORWARD_OF_SIMULATE + BACKWARD) + message


@given(schedule=st.sampled_from([gpipe, sync, zero_bubble_h1]), p=STAGES, m=MICROBATCHES)
def test_one_more_batch_of_a_flushed_pipeline_is_one_batch(
    schedule: Callable[..., Schedule], p: int, m: int
) -> None:
    time, _ = steady(schedule(9, num_stages=p, num_microbatches=m), [FREE] * p)
    assert time == pytest.approx(timeline(schedule(1, num_stages=p, num_microbatches=m)).makespan)


# Every schedule of conf/pipeline/ has the delays of its paper and trains the equations.

NAMES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
STAGES_OF_CONFORMANCE, START, COOLDOWN = 4, 3, 2
DELAYS: dict[str, Callable[[int, int], int]] = {
    "constant_delay": lambda stage, m: 3,
    "dualpipe_v": lambda stage, m: 0,
    "gpipe": lambda stage, m: 0,
    "interleaved_1f1b": lambda stage, m: 0,
    "paci": lambda stage, m: ceil((STAGES_OF_CONFORMANCE - 1 - stage) / m),
    "pipedream": lambda stage, m: ceil((STAGES_OF_CONFORMANCE - 1 - stage) / m),
    "pipedream_2bw": lambda stage, m: 1,
    "sync": lambda stage, m: 0,
    "wpipe": lambda stage, m: int(stage < STAGES_OF_CONFORMANCE / 2),
    "zero_bubble_h1": lambda stage, m: 0,
    "zero_bubble_v": lambda stage, m: 0,
}
"""(stage of four, number of microbatches) → how many updates old a gradient is at most."""
WORDS = {
    "constant_delay": ["pipeline.delay=3"],
    "dualpipe_v": ["pipeline.num_stages=2"],
    "interleaved_1f1b": ["pipeline.num_stages=2"],
    "wpipe": ["pipeline.num_stages=2"],
    "zero_bubble_v": ["pipeline.num_stages=2"],
}
"""What a choice needs beside four stages."""
LEAST_OF_CONFORMANCE = {"dualpipe_v": 4, "pipedream_2bw": 3}
"""Microbatches that a choice needs for them."""

every = pytest.mark.parametrize(("name", "m"), [*product(NAMES, (2, 4))])


def _node(name: str) -> dict[str, Any]:
    return compose([f"pipeline={name}"])["pipeline"]


def schedule(name: str, m: int) -> Schedule:
    """Four stages, with synchronous updates at both ends if the choice has keys for them."""
    m = max(m, LEAST_OF_CONFORMANCE.get(name, 1))
    phases = {"pipeline.synchronous_start": START, "pipeline.synchronous_cooldown": COOLDOWN}
    node = _node(name)
    words = [f"{key}={value}" for key, value in phases.items() if key.split(".")[1] in node]
    words = [f"pipeline={name}", "pipeline.num_stages=4", f"pipeline.num_microbatches={m}", *words]
    words = later_wins([*words, *WORDS.get(name, []), "batch_size=12"])
    made: Schedule = build(compose(words)["pipeline"], T)
    assert made.num_stages == STAGES_OF_CONFORMANCE
    return made


def test_every_choice_has_delays_here() -> None:
    assert set(NAMES) == set(DELAYS)


@every
def test_its_delays_are_those_of_its_paper(name: str, m: int) -> None:
    """Counted from the operations, which are proven to run."""
    made = schedule(name, m)
    start, cooldown = (START, COOLDOWN) if "synchronous_start" in _node(name) else (0, 0)
    for stage, of_stage in enumerate(counted(made)):
        lag = DELAYS[name](stage, made.num_microbatches)
        late = [min(t, lag) for t in range(T - start - cooldown)]
        assert of_stage == [0] * start + late + [0] * cooldown


@every
def test_it_trains_the_equations(name: str, m: int) -> None:
    made = schedule(name, m)
    if made.in_place:
        pytest.skip("its backwards read other weights than its forwards: see test_paci.py")
    setting = Setting(made, made.first_delayed, made.first_cooldown)
    assert error(NoCorrection, PLAIN, setting) < 1e-11
