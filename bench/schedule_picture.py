"""Draws docs/pipelines.svg, the README's picture: the bubble of 1F1B, and 2BW without it.

`python -m bench.schedule_picture [docs/pipelines.svg]`. Nothing is measured: both pipelines are
simulated, a forward takes 1, a backward 2 and an update 1 unit of time, messages none.
"""

import sys
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from trainer.schedules.operations import Schedule
from trainer.schedules.recipes import pipedream_2bw, sync
from trainer.schedules.simulate import Timeline, simulate
from trainer.tracing.timeline import BATCHES, Panel

NUM_STAGES = NUM_MICROBATCHES = 4
NUM_BATCHES = 3
COSTS = {"F": 1.0, "B": 2.0, "U": 1.0}
BLUE, ORANGE = BATCHES[:2]
COLORS = {"forward": "#9fd0ee", "backward": BLUE, "update": ORANGE, "idle (bubble)": "#e3e3e3"}
KINDS = {"F": "forward", "B": "backward", "U": "update"}
WIDTH, ROW = 720, 26  # pixels


def main(path: Path) -> None:
    """Writes the picture as SVG."""
    shape: dict[str, Any] = {"num_stages": NUM_STAGES, "num_microbatches": NUM_MICROBATCHES}
    flushed = simulated(sync(NUM_BATCHES, **shape))
    # Longer than the picture, so that the pipeline does not drain in it.
    no_phases: dict[str, Any] = {"synchronous_start": 0, "synchronous_cooldown": 0}
    free = simulated(pipedream_2bw(2 * NUM_BATCHES, **shape, **no_phases))
    path.write_text(vl_convert.vegalite_to_svg(specification(flushed, free)))


def simulated(schedule: Schedule) -> Timeline:
    """The schedule's whole training, by `COSTS`."""
    operations = schedule.operations(0, schedule.num_updates)
    return simulate(operations, [COSTS] * schedule.num_ranks)


def specification(flushed: Timeline, free: Timeline) -> dict[str, Any]:
    """The Vega-Lite specification: both pipelines, for as long as the flushed one takes."""
    end = flushed.makespan
    panels = [
        panel(
            flushed,
            end,
            f"1F1B with a flush: {period(flushed):g} units of time per batch, "
            f"of which a rank is idle for {flushed.bubble:.0%}",
        ),
        panel(
            free,
            end,
            f"PipeDream-2BW, no flush: {period(free):g} units of time per batch, "
            "idle only while the pipeline fills",
        ),
    ]
    look: dict[str, Any] = {"background": "white", "font": "sans-serif", "aria": False}
    picture = alt.vconcat(*panels, spacing=14).configure(**look)
    return picture.configure_view(stroke=None).configure_title(anchor="start").to_dict()


def period(timeline: Timeline) -> float:
    """Units of time per batch once the pipeline is full: from one update of rank 0 to the next."""
    ends = [stop for op, _, stop in timeline.spans[0] if op.kind == "U"]
    return ends[2] - ends[1]


def panel(timeline: Timeline, end: float, title: str) -> Panel:
    """A row for each rank, from 0 to `end`, each operation with the number of its batch."""
    rows = [row for rank in range(len(timeline.spans)) for row in _rows(timeline, rank, end)]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("rank:N", title=None, axis=alt.Axis(domain=False, ticks=False))
    )
    x = alt.X("start:Q", axis=None, scale=alt.Scale(domain=[0, end], nice=False, clamp=True))
    color = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=[*COLORS], range=[*COLORS.values()]),
        legend=alt.Legend(title="number: the batch", orient="bottom", direction="horizontal"),
    )
    bars = base.mark_bar(stroke="white", strokeWidth=0.6, height={"band": 0.92})
    numbers = base.mark_text(fontSize=9).encode(
        x=alt.X("middle:Q", axis=None),
        text=alt.Text("batch:N"),
        color=alt.condition("datum.kind == 'backward'", alt.value("white"), alt.value("black")),
    )
    return alt.layer(
        bars.encode(x=x, x2=alt.X2("end:Q"), color=color),
        numbers,
        width=WIDTH,
        height=ROW * len(timeline.spans),
        title=alt.TitleParams(title, fontSize=13),
    )


def _rows(timeline: Timeline, rank: int, end: float) -> list[dict[str, Any]]:
    """The bars of a rank; the gaps between them are idle time."""
    rows, free = [], 0.0
    for op, start, stop in timeline.spans[rank]:
        if start >= end:
            break
        if start > free:
            rows.append(_bar(rank, "idle (bubble)", "", free, start))
        rows.append(_bar(rank, KINDS[op.kind], str(op.batch), start, min(stop, end)))
        free = stop
    return [*rows, *([_bar(rank, "idle (bubble)", "", free, end)] if free < end else [])]


def _bar(rank: int, kind: str, batch: str, start: float, end: float) -> dict[str, Any]:
    middle = (start + end) / 2
    return {
        "rank": f"rank {rank}",
        "kind": kind,
        "batch": batch,
        "start": start,
        "end": end,
        "middle": middle,
    }


if __name__ == "__main__":
    main(Path(*(sys.argv[1:] or ["docs/pipelines.svg"])))
