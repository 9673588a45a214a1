"""Heat maps of the loss of every arm and of its gap: batch size × learning rate (figure 13)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from pipegap.analysis.figures.colors import ON_COLOR
from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.multiples import titled
from pipegap.analysis.figures.rows import MEAN, PANEL, along, mean_of
from pipegap.analysis.figures.style import counted, rounded, tooltips
from pipegap.analysis.statistics.pairs import results
from pipegap.analysis.table import names
from pipegap.analysis.table.tasks import in_order

DOWN, ACROSS = "batch_size", "optimizer.lr"
MAP = [*PANEL, "quantity", "arm"]
"""Columns that tell maps apart."""
COLUMNS = [*MAP, DOWN, ACROSS, *MEAN, "series", "best"]
CAPTION = (
    "means over n seeds (hover: 95 % interval); frame: the lowest loss where nothing diverged",
    "× k/n: k of n diverged; nats per token; the colours are logarithmic beyond the middle values",
)
CELL = 52  # pixels
LOSSES, GAPS = ("#f2f8fd", "#6baed6"), ("#a79fd0", "#f4f4f4", "#fdb863")
"""Pale enough for black words."""
COLUMN = {"loss": "above", "gap": "mean"}
"""What the colour shows: of a loss, how far it lies above the lowest one."""
BARS = {"loss": "loss above the lowest", "gap": "gap to sync"}


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: `quantity` is the `loss` of an arm or its `gap`, in nats per token.

    `pairs` counts trials (or pairs whose sync completed), of which `diverged` are not in the mean.
    `best` marks the lowest loss of each arm where nothing diverged.
    """
    points = along(trials, [DOWN, ACROSS]).drop_duplicates([*PANEL, DOWN, ACROSS])
    done = results(trials)
    cells = [
        {**at, **cell}
        for point, at in points[[*PANEL, DOWN, ACROSS]].to_dict("index").items()
        for cell in _cells(done[done["point"] == point], gaps[gaps["point"] == point])
    ]
    table = pd.DataFrame(cells, columns=COLUMNS[:-2])
    table["series"] = table["arm"].map(names.arms(trials))
    whole = table.loc[(table["diverged"] == 0) & (table["quantity"] == "loss")]
    best = whole.groupby(MAP)["mean"].idxmin().dropna()
    table = table.assign(
        best=table.index.isin(best),
        is_gap=table["quantity"] == "gap",
        is_arm=table["arm"] != "sync",
    )
    order = [*PANEL, "is_gap", "is_arm", "arm", DOWN, ACROSS]
    return in_order(table, order)[COLUMNS].reset_index(drop=True)


def _cells(done: pd.DataFrame, gaps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for arm, of_arm in done.groupby("arm"):
        yield {"quantity": "loss", "arm": arm, **mean_of(of_arm["final_val_loss"])}
    for row in gaps[gaps["pairs"] > 0].rename(columns={"gap": "mean"}).to_dict("records"):
        yield {"quantity": "gap", "arm": row["arm"], **{name: row[name] for name in MEAN}}


def charts(data: pd.DataFrame) -> list[Chart]:
    """One chart per map of `data.loss_and_gap`; all losses have one scale of colours, and all gaps
    another."""
    is_loss = data["quantity"] == "loss"
    data = data.assign(above=(data["mean"] - data.loc[is_loss, "mean"].min()).where(is_loss))
    scales = {
        "loss": _scale(data.loc[is_loss, "above"], LOSSES, centred=False),
        "gap": _scale(data.loc[~is_loss, "mean"], GAPS, centred=True),
    }
    panels: list[Chart] = []
    for (panel, subtitle, quantity, _), rows in data.groupby(MAP, sort=False):
        name = f"{panel}: {quantity} of {rows['series'].iloc[0]}"
        title = titled(name, str(subtitle), counted(rows["n"]))
        panels.append(_panel(rows, title, scales[str(quantity)]))
    return panels


def _scale(values: pd.Series, colors: Sequence[str], *, centred: bool) -> alt.Scale:
    """Symlog, so that no colour is the same for the middle and for the largest values."""
    sizes = values.abs()
    sizes = sizes[sizes > 0]
    most = float(sizes.max()) if len(sizes) else 1.0
    constant = float(sizes.median()) if len(sizes) else 1.0
    domain = [-most, 0, most] if centred else [0, most]
    return alt.Scale(type="symlog", constant=constant, domain=domain, range=colors, nice=False)


def _panel(rows: pd.DataFrame, title: alt.TitleParams, scale: alt.Scale) -> Chart:
    quantity = str(rows["quantity"].iloc[0])
    cells = rounded(rows, ["series", "quantity", *MEAN, "above", "best"]).assign(
        batch=rows[DOWN].map("{:g}".format),
        rate=rows[ACROSS].map("{:g}".format),
        words=[_words(row) for row in rows.to_dict("records")],
    )
    down = sorted(rows[DOWN].unique(), reverse=True)
    x = alt.X(
        "rate:O",
        title=names.key(ACROSS),
        sort=[f"{v:g}" for v in sorted(rows[ACROSS].unique())],
        axis=alt.Axis(labelAngle=0),
    )
    y = alt.Y("batch:O", title=names.key(DOWN), sort=[f"{value:g}" for value in down])
    chart = alt.Chart(cells).encode(
        x=x, y=y, tooltip=tooltips(["series", "quantity", "batch", "rate", *MEAN])
    )
    bar = alt.Legend(
        title=BARS[quantity], orient="right", gradientLength=CELL * len(down) - 30, tickCount=4
    )
    color = alt.Color(f"{COLUMN[quantity]}:Q", scale=scale, legend=bar)
    return alt.layer(
        chart.mark_rect().encode(color=color),
        chart.transform_filter("datum.best").mark_rect(
            fillOpacity=0, stroke=ON_COLOR, strokeWidth=2
        ),
        chart.mark_text(lineBreak="\n", lineHeight=13, color=ON_COLOR).encode(
            text=alt.Text("words:N")
        ),
        title=title,
        height=CELL * len(down),
    )


def _words(row: Mapping[Any, Any]) -> str:
    mean = f"{row['mean']:.3f}" if row["quantity"] == "loss" else names.signed(row["mean"])
    lines = [mean] if row["n"] else []
    lines += [f"× {row['diverged']}/{row['pairs']}"] if row["diverged"] else []
    return "\n".join(lines)


BATCH_SIZE = Figure(
    name="batch_size",
    title="Loss and gap by batch size and learning rate",
    data=data,
    charts=charts,
    caption=CAPTION,
)
