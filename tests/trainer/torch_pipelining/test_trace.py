"""`Schedule2BW` leaves a trial's trace: its ranks make the passes of a trial's ranks, in order."""

import json
import re
from pathlib import Path

from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.torch_pipelining import schedule as schedule_2bw
from tests.support.torch_expected import differences, expected
from tests.support.torch_pipeline import Case, T, on_ranks

DRAINED_BEFORE = 5


def test_the_drawn_order_is_that_of_the_passes(tmp_path: Path) -> None:
    """What the module says of two ranks and three microbatches."""
    text = str(schedule_2bw.__doc__)
    drawn = [re.findall(r"[FB]\d\.\d|U\d", line) for line in text.splitlines() if "   rank" in line]
    on_ranks(2, [Case(3, trace_to=tmp_path)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for rank, order in enumerate(drawn):
        spans = [e for e in events if e["ph"] == "X" and e["tid"] == 2 * rank]
        spans = sorted((e for e in spans if e["cat"] in "FBU"), key=lambda e: e["ts"])
        made = [
            f"{e['cat']}{e['args']['batch']}" + f".{e['args']['microbatch']}" * (e["cat"] != "U")
            for e in spans
        ]
        first = made.index(order[0])
        assert made[first : first + len(order)] == order
    assert len(drawn) == 2


def test_a_trace_has_the_passes_of_a_trial(tmp_path: Path) -> None:
    cases = []
    for slack in (False, True):
        (folder := tmp_path / str(slack)).mkdir()
        cases.append(Case(4, drains={DRAINED_BEFORE: "drain"}, slack=slack, trace_to=folder))
    for case, trained in zip(cases, on_ranks(2, cases), strict=True):
        assert not differences(trained, expected(case, 2))
        assert_traced(case)


def assert_traced(case: Case) -> None:
    assert case.trace_to is not None
    events = json.loads((case.trace_to / "trace.json").read_text())["traceEvents"]
    shape = {"num_stages": 2, "num_microbatches": 4, "slack": case.slack}
    schedule = pipedream_2bw(T, **shape, synchronous_start=0, synchronous_cooldown=0)
    runs = [schedule.operations(*run) for run in ((0, DRAINED_BEFORE), (DRAINED_BEFORE, T))]
    for rank in range(2):
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == 2 * rank]
        passes = [
            (span["cat"], span["args"]["batch"], span["args"]["microbatch"])
            for span in spans
            if span["cat"] in "FB"
        ]
        planned = [(op.kind, op.batch, op.microbatch) for run in runs for op in run[rank]]
        assert passes == [op for op in planned if op[0] in "FB"]
        assert [span["args"]["batch"] for span in spans if span["cat"] == "U"] == [*range(T)]
        assert all(span["dur"] >= 0 for span in spans)
    assert "measured" in (case.trace_to / "timeline.svg").read_text()
