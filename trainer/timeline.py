"""A picture of what every rank did when, measured above and simulated below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from trainer.clock import Span
from trainer.simulate import Timeline

BATCHES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Colours that colour-blind eyes tell apart (Okabe and Ito 2008), in turn."""
SHADES = {"F": 0.45, "B": 1.0, "I": 1.0, "W": 0.7}
"""How much of its batch's colour a kind of operation has."""
UPDATE, WAIT = "#000000", "#e0e0e0"


class Bar(NamedTuple):
    """Something in a rank's row, `start` and `end` in seconds from the picture's left side."""

    kind: str
    batch: int
    microbatch: int
    start: float
    end: float


def draw(
    path: Path, measured: Sequence[Sequence[Span]], simulated: Timeline, batches: range
) -> None:
    """Writes the picture as SVG, from the start of `batches` to the end of their last backward.

    `measured`, by rank of one replica, and `simulated` may hold later batches too.
    """
    # Not a wait: the recording rank may have written a checkpoint meanwhile.
    zero = min(span.start for of_rank in measured for span in of_rank if span.kind in SHADES)
    above = [
        [Bar(s.kind, s.batch, s.microbatch, s.start - zero, s.end - zero) for s in of_rank]
        for of_rank in measured
    ]
    below = [
        [Bar(op.kind, op.batch, op.microbatch, start, end) for op, start, end in of_rank]
        for of_rank in simulated.spans
    ]
    canvas = Figure(figsize=(13, 1.6 + 0.7 * len(measured)), layout="constrained")
    panels = canvas.subplots(2, 1, sharex=True)
    for axes, rows, name in zip(panels, (above, below), ("measured", "simulated"), strict=True):
        end = max(bar.end for bars in rows for bar in bars if _is_shown(bar, batches))
        _draw_rows(axes, rows, end)
        axes.set_title(f"{name}: {end * 1e3:.1f} ms", loc="left", fontsize=9)
    panels[1].set(xlabel="milliseconds", xlim=(0, None))
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    panels[0].legend(handles=_legend(), ncols=6, fontsize=8, frameon=False, **place)
    title = f"Batches {batches.start} to {batches.stop - 1}, after a drain"
    canvas.suptitle(title, x=0.01, ha="left", fontsize=10)
    canvas.savefig(path, metadata={"Date": None})


def _is_shown(bar: Bar, batches: range) -> bool:
    """Whether the picture goes on at least to this bar's end."""
    return bar.kind in SHADES and bar.batch in batches


def _draw_rows(axes: Axes, rows: Sequence[Iterable[Bar]], end: float) -> None:
    for row, bars in enumerate(rows):
        for bar in bars:
            if bar.kind != "reduce" and bar.start < end:
                _draw_bar(axes, row, bar)
    axes.set_yticks(range(len(rows)), [f"rank {row}" for row in range(len(rows))])
    axes.invert_yaxis()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_bar(axes: Axes, row: int, bar: Bar) -> None:
    start, width = bar.start * 1e3, (bar.end - bar.start) * 1e3
    if bar.kind.startswith("wait"):
        axes.broken_barh([(start, width)], (row - 0.12, 0.24), facecolor=WAIT)
        return
    if bar.kind == "U":
        axes.broken_barh([(start, width)], (row - 0.45, 0.9), facecolor=UPDATE, edgecolor=UPDATE)
        return
    color = BATCHES[bar.batch % len(BATCHES)]
    axes.broken_barh(
        [(start, width)],
        (row - 0.4, 0.8),
        facecolor=(color, SHADES[bar.kind]),
        edgecolor="white",
        linewidth=0.4,
    )


def _legend() -> list[Patch]:
    kinds = {"forward": "F", "backward (or its input half)": "B", "its weight half": "W"}
    shaded = [
        Patch(facecolor=(BATCHES[0], SHADES[kind]), label=name) for name, kind in kinds.items()
    ]
    plain = [Patch(facecolor=UPDATE, label="update"), Patch(facecolor=WAIT, label="wait")]
    return [*shaded, *plain, Patch(facecolor="white", label="a colour a batch")]
