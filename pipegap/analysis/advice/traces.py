"""Times of the operations of a pipeline from traces: the one of a trial, or those of torch's
profiler, one per rank."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import mean, median
from typing import Any

from pipegap.analysis.advice.speed import Costs
from pipegap.trainer.base.errors import BadInput

FORWARD, BACKWARD, UPDATE = "F", ("B", "I", "W"), "U"
"""Kinds of operations in a trace of ours; a backward in halves has two."""
STEP, OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
"""How torch's profiler names a step, and an update."""
KERNEL, COPIES, OPERATION = "kernel", ("gpu_memcpy", "gpu_memset"), "cpu_op"
"""Categories of its events: on a GPU, and on a host without one."""
ON_HOST, ON_GPU = "user_annotation", "gpu_user_annotation"
"""Those of steps and updates, by either one's clock."""
MESSAGES = re.compile("nccl|gloo|c10d|record_param_comms", re.IGNORECASE)
"""In the names of what sends, or waits for another rank, and computes nothing."""
LONGEST = 1e15
"""Microseconds."""
Event = Mapping[str, Any]
Span = tuple[float, float]


def traced_costs(path: Path, num_stages: int, num_microbatches: int) -> Costs:
    """Return the mean times of a trace.json (`trainer.tracing.trace`), or of the traces of torch's
    profiler in a folder, one file per rank; in microseconds.

    A rank with several stages of the model takes their sum; an update takes as long as on the
    slowest rank. The profiler's ranks take the time of their kernels, a backward two forwards.
    Raises BadInput unless these are traces of one rank per stage asked about.
    """
    files = sorted(path.glob("*.json"), key=_number) if path.is_dir() else [path]
    try:
        events = [_events(file) for file in files]
        is_ours = len(events) == 1 and any(event["cat"] == FORWARD for event in events[0])
        costs = _ours(events[0]) if is_ours else _profiled(events, num_microbatches)
        if not all(costs.work):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        what = "must be the trace.json of a true pipeline's trial, or a folder of traces of steps"
        raise BadInput("trace", path, f"{what} by torch's profiler, one per rank") from None
    if len(costs.forward) != num_stages:
        raise BadInput("stages", num_stages, f"must be {len(costs.forward)}, the ranks in {path}")
    return costs


def _number(path: Path) -> list[int]:
    """Return the numbers in a name: rank10 comes after rank2."""
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def _events(path: Path) -> list[Event]:
    """Return the events that take time; raises for another file as `traced_costs` expects."""
    trace_events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in trace_events if event["ph"] == "X" and "cat" in event]
    if not all(0 <= event["dur"] <= LONGEST and abs(event["ts"]) <= LONGEST for event in events):
        raise ValueError
    return events


def _ours(events: Iterable[Event]) -> Costs:
    """Of the first replica."""
    times: defaultdict[tuple[int, int, str], list[float]] = defaultdict(list)
    ends: defaultdict[int, float] = defaultdict(float)
    for event in events:
        if event["pid"] == 0 and event["tid"] % 2 == 0:
            place = event["tid"] // 2, int(event["args"]["stage"])
            times[*place, str(event["cat"])].append(float(event["dur"]))
            if event["cat"] == UPDATE:
                batch = int(event["args"]["batch"])
                ends[batch] = max(ends[batch], event["ts"] + event["dur"])
    by_rank: defaultdict[tuple[int, str], float] = defaultdict(float)
    for (rank, _, kind), values in times.items():
        by_rank[rank, kind] += mean(values)
    ranks = sorted({rank for rank, _, kind in times if kind == FORWARD})
    steps = [later - earlier for earlier, later in pairwise(ends[batch] for batch in sorted(ends))]
    passes = sum(sum(of) for (*_, kind), of in times.items() if kind in (FORWARD, *BACKWARD))
    return Costs(
        tuple(by_rank[rank, FORWARD] for rank in ranks),
        tuple(sum(by_rank[rank, kind] for kind in BACKWARD) for rank in ranks),
        max(by_rank[rank, UPDATE] for rank in ranks),
        overlap=passes / len(ends) / median(steps) if steps and min(steps) > 0 else nan,
    )


def _profiled(events: Sequence[Sequence[Event]], num_microbatches: int) -> Costs:
    """On a GPU what waits for another rank is a kernel too: where none runs, the host is late."""
    works, updates, steps, busy = [], [], [], []
    for of_rank in events:
        host_events = [event for event in of_rank if event["cat"] == ON_HOST]
        spans = [_span(event) for event in host_events if event["name"].startswith(STEP)]
        begin, end = min(spans)[0], max(spans)[1]
        inside = [event for event in of_rank if begin <= event["ts"] < end]
        on_gpu = any(event["cat"] == KERNEL for event in inside)
        kind, clock = (KERNEL, ON_GPU) if on_gpu else (OPERATION, ON_HOST)
        computing = [e for e in inside if e["cat"] == kind and not MESSAGES.search(e["name"])]
        of_update = [e for e in inside if e["cat"] == clock and e["name"].startswith(OPTIMIZER)]
        updating = sum(_covered(computing, *_span(event)) for event in of_update)
        works.append((_covered(computing, begin, end) - updating) / len(spans))
        updates.append(updating / len(spans))
        steps.append((end - begin) / len(spans))
        kernels = [event for event in inside if event["cat"] in (KERNEL, *COPIES)]
        busy.append(_covered(kernels, begin, end) / (end - begin) if on_gpu else nan)
    forward = tuple(work / num_microbatches / 3 for work in works)
    return Costs(
        forward,
        tuple(2 * time for time in forward),
        max(updates),
        overlap=sum(works) / (mean(steps) - max(updates)),
        busy=tuple(busy),
    )


def _span(event: Event) -> Span:
    return float(event["ts"]), float(event["ts"] + event["dur"])


def _covered(events: Iterable[Event], begin: float, end: float) -> float:
    """Return for how long of [begin, end] one of the events runs at least."""
    covered, at = 0.0, begin
    for first, last in sorted(map(_span, events)):
        covered += max(0.0, min(last, end) - max(first, at))
        at = max(at, last)
    return covered
