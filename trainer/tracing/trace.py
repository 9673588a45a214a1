"""What all ranks did when: as a trace for Perfetto, as costs for a simulation, and as a picture of
what was measured above what was simulated."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from trainer.schedules.operations import Op, Schedule
from trainer.schedules.proof import Awaits, key
from trainer.schedules.simulate import Costs, Timeline, simulate
from trainer.tracing.clock import Span

SHOWN = 6
"""Number of batches in the picture: with more, bars would be too narrow to see."""

BATCHES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Colours of successive batches, which colour-blind readers can tell apart (Okabe and Ito 2008)."""
SHADES = {"F": 0.45, "B": 1.0, "I": 1.0, "W": 0.7}
"""Opacity of each kind of operation in the colour of its batch."""
UPDATE, WAIT = "#000000", "#d0d0d0"
LOOK = (
    "one colour per batch; pale: forward; full: backward, or its input half; between: its weight"
    " half; black: update; thin and grey: wait"
)
HEIGHTS = (0.25, 0.8, 0.9)
"""Heights of a wait, a pass and an update, as shares of the row."""
WIDTH, ROW = 1000, 36  # pixels


Panel: TypeAlias = alt.LayerChart | alt.FacetChart
Spans = Sequence[Sequence[Span]]
"""The spans of each rank, in the order in which they ended."""


def write_trace(path: Path, spans: Spans, num_ranks: int) -> None:
    """Writes `spans` in Chrome's trace format: one process per replica, two threads per rank, of
    which one shows the reductions."""
    zero = min((span.start for of_rank in spans for span in of_rank), default=0.0)
    events: list[dict[str, object]] = []
    for rank, of_rank in enumerate(spans):
        replica, place = divmod(rank, num_ranks)
        threads = {False: 2 * place, True: 2 * place + 1}
        for is_reducer, thread in threads.items():
            name = f"rank {place}" + (", reductions" if is_reducer else "")
            about = {"ph": "M", "pid": replica, "tid": thread}
            events.append({**about, "name": "thread_name", "args": {"name": name}})
            events.append({**about, "name": "thread_sort_index", "args": {"sort_index": thread}})
        events += [
            {
                "ph": "X",
                "name": f"{span.kind} of batch {span.batch}",
                "cat": span.kind,
                "pid": replica,
                "tid": threads[span.kind == "reduce"],
                "ts": round((span.start - zero) * 1e6, 1),
                "dur": round((span.end - span.start) * 1e6, 1),
                "args": {"stage": span.stage, "batch": span.batch, "microbatch": span.microbatch},
            }
            for span in of_rank
        ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def between(spans: Spans, first: int, last: int) -> list[list[Span]]:
    """The spans of batches first … last − 1."""
    return [[span for span in of_rank if first <= span.batch < last] for of_rank in spans]


def costs(spans: Spans) -> list[Costs]:
    """Mean seconds of an operation of each kind, one mapping per rank."""
    by_rank: list[Costs] = []
    for of_rank in spans:
        seconds = defaultdict(list)
        for span in of_rank:
            seconds[span.kind].append(span.end - span.start)
        by_rank.append({kind: mean(values) for kind, values in seconds.items()})
    return by_rank


def communication(spans: Spans, operations: Sequence[Sequence[Op]]) -> float:
    """Median seconds that a message takes, over the messages that a rank waited for.

    A message takes from the end of the operation that made it to the end of the wait for it. Only
    waits count that began before that operation ended. 0 if no rank waited.
    """
    ends, waits = {}, {}
    for of_rank in spans:
        for span in of_rank:
            where = span.stage, span.batch, span.microbatch
            ends[span.kind, *where] = span.end
            if span.kind.startswith("wait"):
                waits[span.kind[-1], *where] = span
    awaits = Awaits(operations)
    delays = []
    for op in (op for ops in operations for op in ops if op.kind in "FBI"):
        wait = waits.get((op.kind, *key(op)[1:]))
        for made in awaits(op):
            end = ends.get(made, ends.get(("I", *made[1:])))
            if wait is not None and end is not None and wait.start < end < wait.end:
                delays.append(wait.end - end)
    return median(delays) if delays else 0.0


def simulated(spans: Spans, schedule: Schedule, first: int, last: int) -> Timeline:
    """Simulates batches first … last − 1, from drain to drain, at the costs of `spans`."""
    operations = schedule.operations(first, last)
    return simulate(operations, costs(spans), communication(spans, operations))


def leave(folder: Path, spans: Spans, schedule: Schedule, runs: Sequence[tuple[int, int]]) -> None:
    """Writes trace.json, and timeline.svg of the first batches of the longest of `runs`.

    A run is a pair (first, last): batches first … last − 1, from drain to drain.
    """
    write_trace(folder / "trace.json", spans, schedule.num_ranks)
    one_replica = spans[: schedule.num_ranks]
    kept = min(max((span.batch for span in of_rank), default=-1) for of_rank in one_replica)
    whole = [(first, last) for first, last in runs if last <= kept + 1]
    if not whole:
        return
    first, last = max(whole, key=lambda run: (run[1] - run[0], run[0]))

    longer = min(last, first + SHOWN + 2)  # so that the last batch shown is not the last to run
    expected = simulated(between(one_replica, first, last), schedule, first, longer)
    batches = range(first, min(last, first + SHOWN))
    draw(folder / "timeline.svg", between(one_replica, first, longer), expected, batches)


def draw(
    path: Path, measured: Sequence[Sequence[Span]], simulated: Timeline, batches: range
) -> None:
    """Writes the picture as SVG, from the start of `batches` to the end of their last backward.

    `measured`, by rank of one replica, and `simulated` may hold later batches too.
    """
    # Not a wait: the recording rank may have written a checkpoint meanwhile.
    zero = min(span.start for of_rank in measured for span in of_rank if span.kind in SHADES)
    above = [
        [s._replace(start=s.start - zero, end=s.end - zero) for s in of_rank]
        for of_rank in measured
    ]
    below = [
        [Span(op.kind, op.stage, op.batch, op.microbatch, *times) for op, *times in of_rank]
        for of_rank in simulated.spans
    ]
    ends = [
        max(bar.end for bars in rows for bar in bars if _is_shown(bar, batches))
        for rows in (above, below)
    ]
    scale = alt.Scale(domain=[0, max(ends) * 1e3], nice=False, clamp=True)
    panels = [
        _panel(rows, end, scale).properties(title=f"{name}: {end * 1e3:.1f} ms")
        for name, rows, end in zip(("measured", "simulated"), (above, below), ends, strict=True)
    ]
    title = f"Batches {batches.start} to {batches.stop - 1}, after a drain"
    picture = alt.vconcat(*panels, title=alt.TitleParams(title, subtitle=LOOK, offset=10))
    spec = picture.configure(background="white").configure_title(anchor="start").to_dict()
    path.write_text(vl_convert.vegalite_to_svg(spec))


def _is_shown(bar: Span, batches: range) -> bool:
    """Whether the picture must reach to the end of this bar."""
    return bar.kind in SHADES and bar.batch in batches


def _panel(rows: Sequence[Iterable[Span]], end: float, scale: alt.Scale) -> Panel:
    """One row per rank: waits are thinner than passes, updates higher. Reductions are not shown,
    because they run in the background."""
    shown = [
        {"rank": f"rank {rank}", "start": bar.start * 1e3, "end": bar.end * 1e3, **_look(bar)}
        for rank, bars in enumerate(rows)
        for bar in bars
        if bar.kind != "reduce" and bar.start < end
    ]
    order = [f"rank {rank}" for rank in range(len(rows))]
    layers = [
        alt.Chart(alt.Data(values=[bar for bar in shown if bar["height"] == height]))
        .mark_bar(height={"band": height}, stroke=edge, strokeWidth=0.4)
        .encode(
            x=alt.X("start:Q", title="milliseconds", scale=scale),
            x2="end:Q",
            y=alt.Y("rank:N", title=None, sort=order, axis=alt.Axis(domain=False, ticks=False)),
            color=alt.Color("color:N", scale=None),
            opacity=alt.Opacity("shade:Q", scale=None),
        )
        for height, edge in zip(HEIGHTS, ("white", "white", UPDATE), strict=True)
    ]
    return alt.layer(*layers, width=WIDTH, height=ROW * len(rows))


def _look(bar: Span) -> dict[str, Any]:
    low, middle, high = HEIGHTS
    if bar.kind.startswith("wait"):
        return {"color": WAIT, "shade": 1.0, "height": low}
    if bar.kind == "U":
        return {"color": UPDATE, "shade": 1.0, "height": high}
    color = BATCHES[bar.batch % len(BATCHES)]
    return {"color": color, "shade": SHADES[bar.kind], "height": middle}
