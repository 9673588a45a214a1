"""Times of the operations of a pipeline from traces: the one of a trial, or those of torch's
profiler, one per rank."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from pipegap.analysis.advice.speed import Costs
from pipegap.trainer.base.errors import BadInput

FORWARD, BACKWARD, UPDATE = "F", ("B", "I", "W"), "U"
"""Kinds of operations in a trace; a backward in halves has two."""
LONGEST = 1e15
"""Microseconds."""


def traced_costs(path: Path, num_stages: int) -> Costs:
    """Return the mean times of a trace.json (`trainer.tracing.trace`), in microseconds.

    A rank with several stages of the model takes their sum; an update takes as long as on the
    slowest rank. Raises BadInput unless the file is such a trace of one rank per stage asked about.
    """
    times = _times(path)
    ranks = sorted({rank for rank, _, kind in times if kind == FORWARD})
    if len(ranks) != num_stages:
        raise BadInput("stages", num_stages, f"must be {len(ranks)}, the ranks in {path}")
    by_rank: defaultdict[tuple[int, str], float] = defaultdict(float)
    for (rank, _, kind), values in times.items():
        by_rank[rank, kind] += mean(values)
    return Costs(
        tuple(by_rank[rank, FORWARD] for rank in ranks),
        tuple(sum(by_rank[rank, kind] for kind in BACKWARD) for rank in ranks),
        max(by_rank[rank, UPDATE] for rank in ranks),
    )


def _times(path: Path) -> dict[tuple[int, int, str], list[float]]:
    """Return the durations of the first replica, by rank, stage and kind of operation."""
    times: defaultdict[tuple[int, int, str], list[float]] = defaultdict(list)
    try:
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        for event in events:
            if event["ph"] == "X" and event["pid"] == 0 and event["tid"] % 2 == 0:
                place = event["tid"] // 2, int(event["args"]["stage"])
                if not 0 <= event["dur"] <= LONGEST:
                    raise ValueError
                times[*place, str(event["cat"])].append(float(event["dur"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        times.clear()
    if not any(kind == FORWARD for _, _, kind in times):
        raise BadInput("trace", path, "must be the trace.json of a true pipeline's trial")
    return times
