"""What each pipeline gains in time, by stages worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipegap.analysis.advice.speed import (
    FLUSHED,
    SETTLED,
    TWO_BUFFERED,
    Costs,
    equal_stages,
    fastest,
    flushed_speeds,
    speed,
    speed_up,
)
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.schedules.proof import simulate

STAGES, MICROBATCHES = st.integers(1, 6), st.integers(1, 8)


@settings(max_examples=40)
@given(p=STAGES, m=MICROBATCHES)
def test_equal_stages_gain_the_bubble(p: int, m: int) -> None:
    """1F1B idles (p − 1) forwards and backwards a batch; ZB-H1 a third of that, if m ≥ p; ZB-V half
    of this again, if m ≥ 2p − 1, and so does DualPipeV, which keeps a chunk more. Interleaved 1F1B
    has half of 1F1B's, and keeps more."""
    m = max(m, p)
    assert speed_up(equal_stages(p), m) == pytest.approx(1 / (1 - (p - 1) / (m + p - 1)))
    assert flushed_speeds(equal_stages(p), m)["ZB-H1"].batch_time == pytest.approx(3 * m + p - 1)
    m = max(2 * p, m - m % p)
    speeds = flushed_speeds(equal_stages(p), m, chunks=2)
    assert speeds["1F1B"].batch_time == max(at.batch_time for at in speeds.values())
    assert speeds["ZB-V"].batch_time == pytest.approx(3 * m + (p - 1) / 2)
    assert speeds["DualPipeV"].batch_time == pytest.approx(3 * m + (p - 1) / 2)
    assert speeds["DualPipeV"].activations == p + 0.5
    assert speeds["interleaved 1F1B"].batch_time == pytest.approx(3 * (m + (p - 1) / 2))
    assert speeds["interleaved 1F1B"].activations == (3 * p - 1) / 2
    assert {speeds[name].activations for name in ("1F1B", "ZB-H1", "ZB-V")} == {p}
    assert speed(TWO_BUFFERED, equal_stages(p), m).activations == p


def test_the_rival_is_the_fastest_that_keeps_no_more() -> None:
    """A forward of 8 and halves of 1: where the halves fill little, more chunks gain most."""
    costs = Costs((8.0,) * 4, (2.0,) * 4)
    speeds = flushed_speeds(costs, 8, chunks=2)
    times = {name: at.batch_time for name, at in speeds.items()}
    assert min(times, key=lambda name: times[name]) == "interleaved 1F1B"
    assert fastest(speeds, 4) == "ZB-V"
    assert fastest(speeds, 5.5) == "interleaved 1F1B"
    with pytest.raises(BadInput, match="activations=3: must be 4 or more"):
        fastest(speeds, 3)
    assert set(flushed_speeds(costs, 6)) == {*FLUSHED} - {"interleaved 1F1B", "DualPipeV"}


def test_the_slowest_stage_sets_the_pace_of_2bw() -> None:
    costs = Costs((1.0, 3.0, 2.0), (2.0, 6.0, 4.0))
    assert speed(TWO_BUFFERED, costs, 4).batch_time == pytest.approx(4 * 9)


def test_a_rank_with_several_chunks_does_the_work_of_one_with_one() -> None:
    """Alone it is never idle, whatever the schedule; an update counts once."""
    speeds = flushed_speeds(Costs((3.0,), (5.0,), update=0.5), 4)
    assert {name: at.batch_time for name, at in speeds.items()} == pytest.approx(
        dict.fromkeys(FLUSHED, 4 * 8 + 0.5)
    )


def test_the_steady_state_is_reached_whatever_a_message_and_an_update_take() -> None:
    costs = Costs((1.0, 2.0, 1.0, 1.0), (2.0, 4.0, 3.0, 2.0), update=0.7, communication=0.9)
    schedule = TWO_BUFFERED(40, num_stages=4, num_microbatches=5)
    by_rank = [
        {"F": f, "B": b, "U": 0.7} for f, b in zip(costs.forward, costs.backward, strict=True)
    ]
    spans = [simulate(schedule.operations(0, k), by_rank, 0.9).makespan for k in (20, 40)]
    assert speed(TWO_BUFFERED, costs, 5).batch_time == pytest.approx((spans[1] - spans[0]) / 20)
    assert SETTLED < 20


@pytest.mark.parametrize(
    ("activations", "communication", "chunks"),
    [(5.5, 0.0, 4), (4.75, 0.0, 4), (4.4, 0.0, 8), (4.0, 0.0, 8), (5.5, 0.5, 2)],
)
def test_interleaved_1f1b_has_its_best_number_of_parts(
    activations: float, communication: float, chunks: int
) -> None:
    """More parts have less of a bubble, (m + (p − 1) / v) instead of m + p − 1, and keep less,
    p + (p − 1) / v; but more messages are waited for. If none fits, the one that keeps least."""
    costs = Costs((1.0,) * 4, (2.0,) * 4, communication=communication)
    at = flushed_speeds(costs, 8, activations, chunks=8 if activations < 4.5 else 4)
    interleaved = at["interleaved 1F1B"]
    assert interleaved.num_chunks == chunks
    assert interleaved.activations == 4 + 3 / chunks
    if not communication:
        assert interleaved.batch_time == pytest.approx(3 * (8 + 3 / chunks))


def test_a_model_with_one_part_per_rank_has_no_pipeline_of_two() -> None:
    assert {*flushed_speeds(equal_stages(4), 8, chunks=1)} == {"1F1B", "ZB-H1"}
