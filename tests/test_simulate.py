"""Without costs of updates and messages, 2BW has no bubble but the first, 1F1B one a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.schedules import Schedule, gpipe, pipedream_2bw, sync
from trainer.simulate import Timeline, simulate

STAGES, MICROBATCHES, BATCHES = st.integers(1, 8), st.integers(1, 16), st.integers(1, 5)
PHASES = {"synchronous_start": 0, "synchronous_cooldown": 0}
FORWARD, BACKWARD = 1.0, 2.0
FREE = {"F": FORWARD, "B": BACKWARD, "U": 0.0}


def timeline(schedule: Schedule, **options: float) -> Timeline:
    stages = range(schedule.num_stages)
    lists = [schedule.operations(stage, 0, schedule.num_updates) for stage in stages]
    return simulate(lists, {**FREE, **options})


@given(p=STAGES, m=MICROBATCHES, k=BATCHES)
def test_two_buffered_weights_flush_once(p: int, m: int, k: int) -> None:
    """From m = p − 1 on, but not p = 2, m = 1: U(t) stands before the only B of t + 1."""
    m = max(m, p - 1, 2 if p == 2 else 1)
    schedule = pipedream_2bw(k, num_stages=p, num_microbatches=m, **PHASES)
    assert timeline(schedule).makespan == (k * m + p - 1) * (FORWARD + BACKWARD)


@given(p=STAGES, m=MICROBATCHES, k=BATCHES)
def test_1f1b_flushes_every_batch(p: int, m: int, k: int) -> None:
    schedule = sync(k, num_stages=p, num_microbatches=m)
    found = timeline(schedule)
    assert found.makespan == k * (m + p - 1) * (FORWARD + BACKWARD)
    assert found.bubble == pytest.approx((p - 1) / (m + p - 1))


@given(p=STAGES, m=MICROBATCHES)
def test_a_stage_keeps_the_microbatches_ahead_of_it(p: int, m: int) -> None:
    schedule = sync(2, num_stages=p, num_microbatches=m)
    found = timeline(schedule)
    assert [found.peak_activations(s) for s in range(p)] == [min(m, p - s) for s in range(p)]


@given(p=STAGES, m=MICROBATCHES)
def test_gpipe_takes_as_long_as_1f1b_and_keeps_every_activation(p: int, m: int) -> None:
    schedule = gpipe(2, num_stages=p, num_microbatches=m)
    found = timeline(schedule)
    assert found.makespan == 2 * (m + p - 1) * (FORWARD + BACKWARD)
    assert [found.peak_activations(s) for s in range(p)] == [m] * p


def test_messages_and_updates_take_time() -> None:
    """Two stages, one microbatch: F, message, F, B, message, B, then a message for the norm, U."""
    lists = [sync(1, num_stages=2, num_microbatches=1).operations(stage, 0, 1) for stage in (0, 1)]
    found = simulate(lists, {"F": 1.0, "B": 2.0, "U": 4.0}, communication=0.5)
    assert found.makespan == 1 + 0.5 + 1 + 2 + 0.5 + 2 + 0.5 + 4
