"""Without costs of updates and messages, 2BW has no bubble but the first, 1F1B one per batch."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.proof import Timeline, simulate, steady
from pipegap.trainer.schedules.recipes import (
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    pipedream_2bw,
    sync,
    zero_bubble_h1,
    zero_bubble_v,
)
from tests.support.delayed import PHASES

STAGES, MICROBATCHES, BATCHES = st.integers(1, 8), st.integers(1, 16), st.integers(1, 5)
FORWARD, BACKWARD = 1.0, 2.0
FREE = {"F": FORWARD, "B": BACKWARD, "I": 1.0, "W": 1.0, "U": 0.0}


def timeline(schedule: Schedule) -> Timeline:
    operations = schedule.operations(0, schedule.num_updates)
    return simulate(operations, [FREE] * schedule.num_ranks)


@given(p=STAGES, m=MICROBATCHES, k=BATCHES)
def test_when_pipelines_end_and_what_they_keep(p: int, m: int, k: int) -> None:
    """2BW flushes once, the others every batch; 1F1B keeps the microbatches ahead of a stage."""
    shape, microbatch = {"num_stages": p, "num_microbatches": m}, FORWARD + BACKWARD
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
    assert simulated.makespan == 2 * (m * v + p - 1) * (FORWARD + BACKWARD)
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
    assert time == pytest.approx(shape["num_microbatches"] * (FORWARD + BACKWARD))
    assert [start.peak_activations(s) for s in range(p)] == [2 * (p - 1 - s) + 1 for s in range(p)]


@given(p=st.integers(2, 8), message=st.floats(0.1, 1.5))
def test_without_slack_every_message_delays_its_rank(p: int, message: float) -> None:
    plain = pipedream_2bw(9, num_stages=p, num_microbatches=2 * p, **PHASES)
    time, _ = steady(plain, [FREE] * p, message)
    assert time > 2 * p * (FORWARD + BACKWARD) + message


@given(schedule=st.sampled_from([gpipe, sync, zero_bubble_h1]), p=STAGES, m=MICROBATCHES)
def test_one_more_batch_of_a_flushed_pipeline_is_one_batch(
    schedule: Callable[..., Schedule], p: int, m: int
) -> None:
    time, _ = steady(schedule(9, num_stages=p, num_microbatches=m), [FREE] * p)
    assert time == pytest.approx(timeline(schedule(1, num_stages=p, num_microbatches=m)).makespan)
