"""Batch size × learning rate: loss of every arm and its gap, a heat map each (figure 13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures.figure import Chart
from analysis.figures.loss_by_number import mean_of
from analysis.figures.marks import rounded, titled
from analysis.figures.paired_seeds import OF_GAP
from analysis.figures.swept import along
from analysis.pairs import results

ROWS, COLUMN = "batch_size", "optimizer.lr"
COLUMNS = ["panel", "quantity", ROWS, COLUMN, *OF_GAP, "best"]
CAPTION = (
    "means over n seeds (hover: interval and n); frame: the lowest loss where nothing diverged",
    "× k/n: k of n diverged; nats per token; colours stop at four times the middle of the values",
)
CELL = 44  # pixels
LOSSES, GAPS = ("#f7fbff", "#6baed6"), ("#b2abd2", "#f7f7f7", "#fdb863")
"""Pale enough for black words."""
CUT = 4.0


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a cell: `quantity` is the loss of an arm or its gap, in nats per token; `pairs` trials
    (or pairs whose sync completed), of which `diverged` are not in the mean."""
    points = along(trials, [ROWS, COLUMN]).drop_duplicates(["panel", ROWS, COLUMN])
    done = results(trials)
    cells = [
        {"panel": at["panel"], ROWS: at[ROWS], COLUMN: at[COLUMN], **cell}
        for point, at in points.iterrows()
        for cell in _cells(done[done["point"] == point], gaps[gaps["point"] == point])
    ]
    table = pd.DataFrame(cells, columns=COLUMNS[:-1])
    whole = table.loc[(table["diverged"] == 0) & table["quantity"].str.endswith("loss")]
    best = whole.groupby(["panel", "quantity"])["mean"].idxmin().dropna()
    order = table["quantity"].str.endswith("gap") + (table["quantity"] != "sync loss").astype(int)
    table = table.assign(best=table.index.isin(best), order=order)
    return table.sort_values(["panel", "order", "quantity", ROWS, COLUMN])[COLUMNS].reset_index(
        drop=True
    )


def _cells(done: pd.DataFrame, gaps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for arm, of_arm in done.groupby("arm"):
        yield {"quantity": f"{arm} loss", **mean_of(of_arm["final_val_loss"])}
    for row in gaps[gaps["pairs"] > 0].rename(columns={"gap": "mean"}).to_dict("records"):
        yield {"quantity": f"{row['arm']} gap", **{name: row[name] for name in OF_GAP}}


def charts(data: pd.DataFrame) -> list[Chart]:
    """A row of maps an optimizer; all losses have one scale of colours, and all gaps another."""
    is_gap = data["quantity"].str.endswith("gap")
    losses, gaps = data.loc[~is_gap, "mean"].dropna(), data.loc[is_gap, "mean"].abs().dropna()
    low = losses.min()
    high = low + min(losses.max() - low, CUT * (losses.median() - low) or losses.max() - low)
    most = min(gaps.max(), CUT * gaps.median()) if len(gaps) else 1.0
    of_losses = alt.Scale(domain=[low, high], range=LOSSES, clamp=True, nice=False, zero=False)
    of_gaps = alt.Scale(domain=[-most, 0, most], range=GAPS, clamp=True, nice=False)
    return [
        _panel(
            rows, f"{quantity}: {title}", of_gaps if str(quantity).endswith("gap") else of_losses
        )
        for (title, quantity), rows in data.groupby(["panel", "quantity"], sort=False)
    ]


def _panel(rows: pd.DataFrame, title: str, scale: alt.Scale) -> Chart:
    cells = rounded(rows, ["quantity", *OF_GAP, "best"]).assign(
        batch=rows[ROWS].map("{:g}".format),
        rate=rows[COLUMN].map("{:g}".format),
        words=[_words(row) for row in rows.to_dict("records")],
    )
    down = sorted(rows[ROWS].unique(), reverse=True)
    x = alt.X(
        "rate:O",
        title=COLUMN,
        sort=[f"{v:g}" for v in sorted(rows[COLUMN].unique())],
        axis=alt.Axis(labelAngle=0),
    )
    y = alt.Y("batch:O", title=ROWS, sort=[f"{value:g}" for value in down])
    chart = alt.Chart(cells).encode(x=x, y=y, tooltip=["quantity", "batch", "rate", *OF_GAP])
    color = alt.Color("mean:Q", scale=scale, legend=None)
    return alt.layer(
        chart.mark_rect().encode(color=color),
        chart.transform_filter("datum.best").mark_rect(
            fillOpacity=0, stroke="#000000", strokeWidth=2
        ),
        chart.mark_text(lineBreak="\n", lineHeight=10).encode(text="words:N"),
        title=titled(title),
        height=CELL * len(down),
    )


def _words(row: dict[Any, Any]) -> str:
    form = "+.3f" if row["quantity"].endswith("gap") else ".3f"
    lines = [f"{row['mean']:{form}}"] if row["n"] else []
    lines += [f"× {row['diverged']}/{row['pairs']}"] if row["diverged"] else []
    return "\n".join(lines)
