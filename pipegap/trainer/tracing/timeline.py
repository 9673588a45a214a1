"""A picture of what every rank did when, measured above and simulated below."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.proof import Timeline
from pipegap.trainer.tracing.trace import Span, Spans, between, simulated, write_trace

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
SHOWN = 6
"""Number of batches in the picture: with more, bars would be too narrow to see."""

Panel: TypeAlias = alt.LayerChart | alt.FacetChart


def leave(folder: Path, spans: Spans, schedule: Schedule, runs: Sequence[tuple[int, int]]) -> None:
    """Writes trace.json, and timeline.svg of the first batches of the longest of `runs`.

    A run is a pair (first, last): batches first … last − 1, from drain to drain.
    """
    write_trace(folder / "trace.json", spans, schedule.num_ranks)
    one_replica = spans[: schedule.num_ranks]
    # A rank keeps LONGEST_TRACE spans, so the last runs may be there in part or not at all.
    last_traced = min(max((span.batch for span in of_rank), default=-1) for of_rank in one_replica)
    whole = [(first, last) for first, last in runs if last <= last_traced + 1]
    if not whole:
        return
    # Of equally long runs the last one.
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
    # Waits do not count: the others may wait while the recording rank writes a checkpoint.
    zero = min(span.start for of_rank in measured for span in of_rank if span.kind in SHADES)
    above = [[s._replace(start=s.start - zero, end=s.end - zero) for s in row] for row in measured]
    below = [
        [Span(op.kind, op.stage, op.batch, op.microbatch, *times) for op, *times in of_rank]
        for of_rank in simulated.spans
    ]
    ends = [
        max(bar.end for bars in rows for bar in bars if bar.kind in SHADES and bar.batch in batches)
        for rows in (above, below)
    ]
    # One scale for both panels. Bars of later batches are cut at its end.
    scale = alt.Scale(domain=[0, max(ends) * 1e3], nice=False, clamp=True)
    panels = [
        _panel(rows, end, scale).properties(title=f"{name}: {end * 1e3:.1f} ms")
        for name, rows, end in zip(("measured", "simulated"), (above, below), ends, strict=True)
    ]
    title = f"Batches {batches.start} to {batches.stop - 1}, after a drain"
    picture = alt.vconcat(*panels, title=alt.TitleParams(title, subtitle=LOOK, offset=10))
    spec = picture.configure(background="white").configure_title(anchor="start").to_dict()
    path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def _panel(rows: Sequence[Iterable[Span]], end: float, scale: alt.Scale) -> Panel:
    """One row per rank: waits are thinner than passes, updates higher. Reductions are not shown,
    because they run in the background.
    """
    visible_bars = [
        {"rank": f"rank {rank}", "start": bar.start * 1e3, "end": bar.end * 1e3, **_look(bar)}
        for rank, bars in enumerate(rows)
        for bar in bars
        if bar.kind != "reduce" and bar.start < end
    ]
    order = [f"rank {rank}" for rank in range(len(rows))]
    # A mark of vega has one height, so each height is a layer.
    layers = [
        alt.Chart(alt.Data(values=[bar for bar in visible_bars if bar["height"] == height]))
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
