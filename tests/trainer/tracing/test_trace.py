"""What the ranks did, as measured: nothing is missing, and the costs are those of the ranks."""

import json
import re
from pathlib import Path

import pytest

from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.proof import Costs, simulate
from pipegap.trainer.schedules.recipes import pipedream_2bw, sync, zero_bubble_h1
from pipegap.trainer.tracing.timeline import leave
from pipegap.trainer.tracing.trace import Span, communication, costs, simulated
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep

MESSAGE = 0.25
COSTS: list[Costs] = [
    {"F": 1.0, "B": 2.0, "I": 1.5, "W": 0.5, "U": 0.125},
    {"F": 1.5, "B": 3.0, "I": 2.0, "W": 1.0, "U": 0.25},
]
SCHEDULES = [
    sync(8, num_stages=2, num_microbatches=3),
    zero_bubble_h1(8, num_stages=2, num_microbatches=3),
    pipedream_2bw(8, num_stages=2, num_microbatches=3, synchronous_start=0, synchronous_cooldown=0),
]


def as_if_measured(schedule: Schedule) -> list[list[Span]]:
    """The spans that ranks with those costs would leave, waits included."""
    spans: list[list[Span]] = []
    for of_rank in simulate(schedule.operations(0, 8), COSTS, MESSAGE).spans:
        now, found = 0.0, []
        for op, start, end in of_rank:
            where = op.stage, op.batch, op.microbatch
            found.append(Span(f"wait {op.kind}", *where, now, start))
            found.append(Span(op.kind, *where, start, end))
            now = end
        spans.append(found)
    return spans


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_costs_and_messages_are_found_again(schedule: Schedule) -> None:
    spans = as_if_measured(schedule)
    for found, true in zip(costs(spans), COSTS, strict=True):
        kinds = found.keys() & true.keys()
        assert {kind: found[kind] for kind in kinds} == pytest.approx(
            {kind: true[kind] for kind in kinds}
        )
    operations = schedule.operations(0, 8)
    assert communication(spans, operations) == pytest.approx(MESSAGE)
    again = simulated(spans, schedule, 0, 8)
    assert again.makespan == pytest.approx(simulate(operations, COSTS, MESSAGE).makespan)


def test_nobody_waited() -> None:
    alone = [[Op("F", 0, 0, 0, 0, 0), Op("B", 0, 0, 0, 0, 0)]]
    assert communication([[Span("F", 0, 0, 0, 0.0, 1.0)]], alone) == 0


def test_a_trial_leaves_a_trace_and_a_picture(tmp_path: Path) -> None:
    m, updates = 4, 12
    words = ("pipeline=pipedream_2bw", "runner=pipelined", "pipeline.num_stages=2", "trace=true")
    out = tmp_path / "out"
    result = run_trial(
        small_sweep.config(tmp_path, *words, f"pipeline.num_microbatches={m}", f"out={out}")
    )
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    ran = [event for event in events if event["ph"] == "X"]
    for rank in range(2):
        mine = [event for event in ran if event["args"]["stage"] == rank]
        kinds = [event["cat"] for event in mine]
        assert kinds.count("F") == kinds.count("B") == m * updates
        assert kinds.count("U") == kinds.count("reduce") == updates
        passes = sorted((e["ts"], e["ts"] + e["dur"]) for e in mine if e["cat"] in "FBU")
        ends = [end for _, end in passes]
        starts = [start for start, _ in passes]
        slack = 1.0  # µs: times are rounded
        assert all(a <= b + slack for a, b in zip(ends, starts[1:], strict=False)), "one at a time"
    picture = (out / "timeline.svg").read_text()
    assert "rank 1" in picture
    assert all(name in picture for name in ("measured: ", "simulated: ", "milliseconds"))
    assert all(0 <= share < 1 for share in result["bubble_by_rank"])
    assert len(result["update_wait_by_rank"]) == len(result["peak_memory_bytes_by_rank"]) == 2


def test_a_run_of_which_too_little_was_kept_is_not_pictured(tmp_path: Path) -> None:
    spans = as_if_measured(SCHEDULES[0])
    leave(tmp_path, spans, SCHEDULES[0], [(0, 9)])
    assert (tmp_path / "trace.json").exists()
    assert not (tmp_path / "timeline.svg").exists()
    leave(tmp_path, spans, SCHEDULES[0], [(0, 9), (0, 8)])
    assert (tmp_path / "timeline.svg").exists()


def test_the_picture_shows_what_every_rank_did(tmp_path: Path) -> None:
    """One bar per operation of the batches shown, as wide as its time."""
    schedule = SCHEDULES[0]
    leave(tmp_path, as_if_measured(schedule), schedule, [(0, 8)])
    bars = re.findall(r'd="M([\d.]+),[\d.]+h([\d.]+)v', (tmp_path / "timeline.svg").read_text())
    widths = sorted(float(width) for _, width in bars)
    num_passes = 2 * 2 * 3 * 6  # ranks, forward and backward, microbatches, batches shown
    assert len(widths) > 2 * num_passes
    longest = max(COSTS[1].values())  # the backward of rank 1, three to a batch
    end = simulate(schedule.operations(0, 6), COSTS, MESSAGE).makespan
    assert any(width == pytest.approx(1000 * longest / end, rel=0.02) for width in widths)
