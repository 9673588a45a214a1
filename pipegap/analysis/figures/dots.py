"""Figures that put the numbers of all arms beside each other: dots and heat maps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.panels import (
    MEAN,
    OF_SEED,
    PANEL,
    SERIES,
    along,
    best_points,
    gap_axis,
    linear,
    loss_axis,
    mean_of,
    over_decades,
    paired_seeds,
    panels_of,
    results_along,
    titled,
    with_means,
    with_variant,
)
from pipegap.analysis.figures.style import (
    FAINT,
    ON_COLOR,
    ROW_LINE,
    ROW_PAD,
    SeriesLook,
    Style,
    arm_styles,
    counted,
    is_long,
    legend,
    names_above,
    reference,
    reference_in_rows,
    rounded,
    tooltips,
    whiskers,
    words_beside,
)
from pipegap.analysis.statistics.diagnostics import downstream
from pipegap.analysis.statistics.pairs import results
from pipegap.analysis.statistics.text import diverged_text
from pipegap.analysis.table import names
from pipegap.analysis.table.metrics import ACCURACY, BITS
from pipegap.analysis.table.metrics import title as task_title
from pipegap.analysis.table.names import signed
from pipegap.analysis.table.points import in_order, updates_asked

# Numbers of every arm beside each other, one dot per arm: final losses and gaps, with one row per
# optimizer or value of a key, and downstream scores beside those of sync, with one row per task.

LOSS, GAP = "loss", "gap"
COLUMNS = [*PANEL, "quantity", "group", *SERIES, "setting", "of_seed", *OF_SEED, *MEAN]
"""One row per trial and `quantity`, which is LOSS or GAP; its value is `of_seed`, in nats per
token, and MEAN is over the seeds of its arm in its `group`."""
OF_MEAN = [*PANEL, "group", "series"]
CAPTION = (
    "dots: means over n seeds; lines: 95 % intervals; hollow: a single seed; faint: each seed",
    "gap: final loss minus that of sync at the same seed, beside its mean, n and × what diverged",
)
BEST = "each optimizer at the point where sync ends lowest; the optimizer of the lowest loss first"
HOVER = ["group", "series", "setting", "n", "mean", "low", "high", "diverged", "pairs"]
MEASURES = {
    ACCURACY: "accuracy: more is better",
    BITS: "bits per byte of right answers: less is better",
}
"""Measures of downstream tasks that are drawn, and what a panel says of them."""
OF_SCORES = [
    *(*PANEL, "measure", "task", "questions", "optimizer", "series", "arm", "setting"),
    *("n", "mean", "low", "high", "of"),
]
NAME = ""
"""The line of a row that has its name."""
OF_TASK = ["task", "series", "setting", "n", "questions", "mean", "low", "high"]


def by_optimizer(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of COLUMNS of the trials at the best points; a `group` is an optimizer.

    There is one panel per size of the model and data.
    """
    points = best_points(trials, gaps)
    if points.empty:
        return pd.DataFrame(columns=COLUMNS)
    group = points["optimizer"].map(names.optimizer)
    points = points.assign(group=group, setting=points["subtitle"], subtitle="")
    return _rows(points.assign(panel=_comparable(points)), trials, gaps)


def _comparable(points: pd.DataFrame) -> pd.Series:
    """Return the panel of each trial: models of several sizes, or several data, have their own.

    A panel also says how many updates its trials make, if all of them make as many.
    """
    panels = pd.Series("", index=points.index)
    if points["num_parameters"].nunique() > 1:
        updates = updates_asked(points).groupby(points["num_parameters"], dropna=False)
        sizes = points["num_parameters"].map(names.parameters) + " parameters"
        panels = sizes + updates.transform(_length)
    if points["data_hash"].nunique() > 1:
        panels = (panels + ", " + points["data"].astype(str)).str.removeprefix(", ")
    return panels


def _length(updates: pd.Series) -> str:
    lengths = updates.dropna().unique()
    return f", {lengths[0]:,} updates" if len(lengths) == 1 else ""


def by_value(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return rows of COLUMNS with one panel per optimizer; a `group` is a value of `key`.

    Groups are sorted from the smallest value on; a group is `none` where the value is null.
    """
    # Keys in the group `key` are a part of its value, as the warm-up of a schedule is.
    results = results_along(trials, [key], part_of=key)
    results["group"] = results[key].map(names.value)
    return _rows(results.assign(setting=""), trials, gaps)


def _rows(points: pd.DataFrame, trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    if points.empty:
        return pd.DataFrame(columns=COLUMNS)
    losses = points.assign(quantity=LOSS, of_seed=points["final_val_loss"])
    paired = paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]]
    of_gaps = points.merge(paired, on="trial_id").assign(quantity=GAP)
    of_gaps["of_seed"] = of_gaps.pop("gap")
    # The means of gaps come from the table of gaps; those of losses are made here.
    losses = with_means(losses, "of_seed", OF_MEAN)
    return pd.concat([of_gaps[COLUMNS], losses[COLUMNS]], ignore_index=True)


def optimizer_rows(data: pd.DataFrame) -> list[Chart]:
    """Draw the gaps and the losses of `by_optimizer`, each with one row per optimizer, in the order
    of the data."""
    return _charts(data, None)


def value_rows(data: pd.DataFrame, title: str) -> list[Chart]:
    """Draw `by_value` with one row per value, in the order of the data; `title` names the key."""
    return _charts(data, title)


def _charts(data: pd.DataFrame, key: str | None) -> list[Chart]:
    styles, order = arm_styles(data), data.loc[data["quantity"] == LOSS, "group"].unique()
    charts: list[Chart] = []
    for (panel, subtitle), rows in data.groupby(PANEL, sort=False):
        present = {*rows["group"]}
        groups = [name for name in order if name in present]
        # Rows of gaps and of losses, where sync has a line too, stand beside each other.
        y = _Rows("group", groups, len(styles), key)
        for quantity, quantity_title in ((GAP, "gap to sync"), (LOSS, "final loss")):
            quantity_rows = rows[rows["quantity"] == quantity]
            if len(quantity_rows):
                words = ", ".join(filter(None, [str(panel), quantity_title]))
                title = titled(words[:1].upper() + words[1:], str(subtitle))
                means = quantity_rows.drop_duplicates(["group", "series"])
                labels = [_words(row, quantity) for row in means.to_dict("records")]
                means = means.assign(words=labels)
                seeds = quantity_rows.dropna(subset="of_seed").drop(columns="mean")
                frame = _frame(means, _axis(quantity, data), y, styles)
                # Renamed: all layers of a panel share the field of the x axis, `mean`.
                points = _seeds(frame, seeds.rename(columns={"of_seed": "mean"}))
                charts.append(_chart(frame, means, HOVER, title, points, zero=quantity == GAP))
    return charts


def _axis(quantity: str, data: pd.DataFrame) -> alt.X:
    rows = data[data["quantity"] == quantity]
    values = pd.concat([rows[name].astype(float) for name in ("of_seed", "mean", "low", "high")])
    if quantity == GAP:
        symlog = over_decades(rows.drop_duplicates(OF_MEAN)["mean"])  # each mean once, not per seed
        return gap_axis(alt.X("mean:Q"), values, symlog=symlog)
    return loss_axis(alt.X("mean:Q"), values)


class _Rows(NamedTuple):
    """The named rows of a panel: each value of `column` has a line for each of its arms."""

    column: str
    names: Sequence[str]
    num_arms: int
    title: str | None = None


class _Frame(NamedTuple):
    """The channels that the layers of a panel share, and its height in pixels."""

    x: alt.X
    y: alt.Y
    offset: alt.YOffset
    look: SeriesLook
    height: int
    names: Sequence[alt.Chart]
    """Above the rows, where they are long."""

    def layer(self, rows: pd.DataFrame) -> alt.Chart:
        """Return a chart of these rows, without a mark and without a place on the x axis."""
        return alt.Chart(rows).encode(y=self.y, yOffset=self.offset, color=self.look.color)


def _frame(rows: pd.DataFrame, x: alt.X, of: _Rows, styles: Mapping[str, Style]) -> _Frame:
    series, is_above = [name for name in styles if name in {*rows["series"]}], is_long(of.names)
    axis = alt.Axis(labels=not is_above, domain=False, ticks=False, labelPadding=6)
    y = alt.Y(f"{of.column}:N", title=of.title, sort=[*of.names], axis=axis)
    lines = [NAME, *series] if is_above else series  # the line of the name comes first
    offset = alt.YOffset("series:N", sort=lines, scale=alt.Scale(domain=lines))
    names = pd.DataFrame({of.column: of.names, "series": NAME})
    look = legend({name: name for name in series}, styles)
    height = len(of.names) * (ROW_LINE * (of.num_arms + is_above) + ROW_PAD)
    texts = names_above(names, y, yOffset=offset) if is_above else []
    return _Frame(x, y, offset, look, height, texts)


def _seeds(frame: _Frame, rows: pd.DataFrame) -> alt.Chart:
    seed_rows = rounded(rows, ["group", "series", "mean", *OF_SEED])
    points = frame.layer(seed_rows).mark_point(filled=True, size=16, opacity=1, fillOpacity=FAINT)
    return points.encode(x=frame.x, tooltip=tooltips(["series", "mean", *OF_SEED]))


def _chart(
    frame: _Frame,
    means: pd.DataFrame,
    columns: Sequence[str],
    title: alt.TitleParams,
    *below: alt.Chart,
    zero: bool = True,
) -> Chart:
    """Draw `means` with their intervals over the layers `below`, and their column `words` beside
    them; a mean of a single seed is hollow."""
    x, shape = frame.x, frame.look.shape
    mean_rows = rounded(means, [*columns, "words"])
    rows = frame.layer(mean_rows)
    dots = rows.transform_filter("isValid(datum.mean)").encode(x=x, tooltip=tooltips(columns))
    several, single = (dots.transform_filter(f"datum.n {sign} 1") for sign in (">", "=="))
    # In pieces where the names of rows stand above them.
    zero_line = reference_in_rows(0.0, rows, ROW_LINE) if frame.names else reference(0.0, frame.x)
    layers = [
        *([zero_line] if zero else []),
        *below,
        whiskers(rows, alt.X("low:Q", title=x["title"], scale=x["scale"])),
        several.mark_point(filled=True, size=55, opacity=1).encode(shape=shape),
        single.mark_point(filled=False, size=45, strokeWidth=1.6, opacity=1).encode(shape=shape),
        words_beside(mean_rows, frame.y, yOffset=frame.offset),
        *frame.names,
    ]
    return alt.layer(*layers, title=title, height=frame.height)


def _words(row: Mapping[Any, Any], quantity: str) -> str:
    """Return `+0.278  n=3  × 1 of 4`."""
    mean = signed(row["mean"]) if quantity == GAP else f"{row['mean']:.3f}"
    note = f"× {diverged_text(row)}" if row["diverged"] else ""
    return "  ".join(filter(None, [mean if row["n"] else "", f"n={row['n']:g}", note]))


def score_differences(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per optimizer, point, arm and downstream task, for accuracy and for bits.

    `mean`, `low` and `high` are the difference to sync over `n` seeds and all `questions`, and its
    interval. With one seed (`of` is two checkpoints) the interval is over questions alone.
    """
    scores = downstream(trials)
    rows = scores[scores["measure"].isin([*MEASURES])].reset_index(drop=True)
    if rows.empty:
        return pd.DataFrame(columns=OF_SCORES)
    subtitles = rows["measure"].map(MEASURES) + "\n" + rows["setting"].astype(str)
    table = rows.assign(
        panel=rows["optimizer"].map(names.optimizer),
        subtitle=subtitles.str.rstrip("\n"),
        series=with_variant(rows, rows["arm"].map(names.arms(trials))),
        mean=rows["difference"],
        task=rows["task"].map(task_title),
    )
    return table[OF_SCORES].sort_values(["panel", "measure"], kind="stable", ignore_index=True)


def task_rows(data: pd.DataFrame) -> list[Chart]:
    """Draw one chart per panel of `score_differences`, with one row per task; the charts of one
    measure have one axis."""
    styles = arm_styles(data)
    charts = []
    for title, rows, *_ in panels_of(data):
        same = data[data["measure"] == rows["measure"].iloc[0]]  # in all panels: one axis
        values = pd.concat([same[name].astype(float) for name in ("mean", "low", "high")])
        scale, axis = linear(pd.concat([values, pd.Series([0.0])])), alt.Axis(tickCount=5)
        x = alt.X("mean:Q", title="difference to sync", scale=scale, axis=axis)
        words = [
            f"{row['mean']:+.3f}  n={row['n']} × {row['questions']:,}"
            for row in rows.to_dict("records")
        ]
        y = _Rows("task", [*dict.fromkeys(rows["task"])], rows["series"].nunique())
        frame = _frame(rows, x, y, styles)
        charts.append(_chart(frame, rows.assign(words=words), OF_TASK, title))
    return charts


BY_OPTIMIZER = Figure(
    name="final_losses",
    title="What the delay costs each optimizer",
    data=by_optimizer,
    charts=optimizer_rows,
    caption=(*CAPTION, BEST),
    columns=2,
)
DOWNSTREAM = Figure(
    name="downstream",
    title="Downstream scores beside those of sync",
    data=score_differences,
    charts=task_rows,
    caption=(
        "dots: the arm's mean score minus that of sync; lines: 95 % intervals over n seeds and "
        "the task's questions; hollow: of two checkpoints, over questions alone",
    ),
    source="table 4 (10B MoE)",
    columns=2,
)
FIGURES = (BY_OPTIMIZER,)


# Heat maps of the loss of every arm and of its gap: batch size × learning rate (figure 13).

DOWN, ACROSS = "batch_size", "optimizer.lr"
MAP = [*PANEL, "quantity", "arm"]
"""Columns that tell maps apart."""
MAP_COLUMNS = [*MAP, DOWN, ACROSS, *MEAN, "series", "best"]
MAP_CAPTION = (
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
    """Return one row per cell: `quantity` is the `loss` of an arm or its `gap`, in nats per token.

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
    table = pd.DataFrame(cells, columns=MAP_COLUMNS[:-2])
    table["series"] = table["arm"].map(names.arms(trials))
    # A mean without the seeds that diverged may be too low: it is not called the best.
    whole = table.loc[(table["diverged"] == 0) & (table["quantity"] == "loss")]
    best = whole.groupby(MAP)["mean"].idxmin().dropna()
    table = table.assign(
        best=table.index.isin(best),
        is_gap=table["quantity"] == "gap",
        is_arm=table["arm"] != "sync",
    )
    order = [*PANEL, "is_gap", "is_arm", "arm", DOWN, ACROSS]
    return in_order(table, order)[MAP_COLUMNS].reset_index(drop=True)


def _cells(done: pd.DataFrame, gaps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for arm, of_arm in done.groupby("arm"):
        yield {"quantity": "loss", "arm": arm, **mean_of(of_arm["final_val_loss"])}
    for row in gaps[gaps["pairs"] > 0].rename(columns={"gap": "mean"}).to_dict("records"):
        yield {"quantity": "gap", "arm": row["arm"], **{name: row[name] for name in MEAN}}


def charts(data: pd.DataFrame) -> list[Chart]:
    """Draw one chart per map of the table of `data`; all losses have one scale of colours, and all
    gaps another."""
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
    """Return a symlog scale: on a linear one, most cells would have nearly the colour of 0."""
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
        words=[_cell_words(row) for row in rows.to_dict("records")],
    )
    rates = [f"{rate:g}" for rate in sorted(rows[ACROSS].unique())]
    batches = [f"{size:g}" for size in sorted(rows[DOWN].unique(), reverse=True)]
    height = CELL * len(batches)
    chart = alt.Chart(cells).encode(
        x=alt.X("rate:O", title=names.key(ACROSS), sort=rates, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("batch:O", title=names.key(DOWN), sort=batches),
        tooltip=tooltips(["series", "quantity", "batch", "rate", *MEAN]),
    )
    bar = alt.Legend(title=BARS[quantity], orient="right", gradientLength=height - 30, tickCount=4)
    color = alt.Color(f"{COLUMN[quantity]}:Q", scale=scale, legend=bar)
    best, words = chart.transform_filter("datum.best"), chart.encode(text=alt.Text("words:N"))
    return alt.layer(
        chart.mark_rect().encode(color=color),
        best.mark_rect(fillOpacity=0, stroke=ON_COLOR, strokeWidth=2),
        words.mark_text(lineBreak="\n", lineHeight=13, color=ON_COLOR),
        title=title,
        height=height,
    )


def _cell_words(row: Mapping[Any, Any]) -> str:
    mean = f"{row['mean']:.3f}" if row["quantity"] == "loss" else names.signed(row["mean"])
    lines = [mean] if row["n"] else []
    lines += [f"× {row['diverged']}/{row['pairs']}"] if row["diverged"] else []
    return "\n".join(lines)


BATCH_SIZE = Figure(
    name="batch_size",
    title="Loss and gap by batch size and learning rate",
    data=data,
    charts=charts,
    caption=MAP_CAPTION,
)
