"""Final loss and gap of every arm: one row per optimizer or value of a key, one dot per arm."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.marks import (
    FAINT,
    ROW_LINE,
    ROW_PAD,
    hover,
    legend,
    reference,
    rounded,
    row_axis,
    titled,
    whiskers,
    words_beside,
)
from pipegap.analysis.figures.rows import (
    MEAN,
    OF_SEED,
    PANEL,
    SERIES,
    best_points,
    paired_seeds,
    results_along,
    with_means,
)
from pipegap.analysis.figures.scales import of_gaps, of_losses, over_decades
from pipegap.analysis.figures.style import Style, arm_styles
from pipegap.analysis.statistics.text import diverged_text
from pipegap.analysis.table import names
from pipegap.analysis.table.names import signed
from pipegap.analysis.table.tasks import updates_asked

LOSS, GAP = "loss", "gap"
COLUMNS = [*PANEL, "quantity", "group", *SERIES, "setting", "of_seed", *OF_SEED, *MEAN]
"""One row per trial and `quantity`, which is LOSS or GAP; its value is `of_seed`, in nats per
token, and MEAN is over the seeds of its arm in its `group`."""
OF_MEAN = [*PANEL, "group", "series"]
CAPTION = (
    "dots: means over n seeds; lines: 95 % intervals; hollow: a single seed; faint: each seed",
    "gap: final loss minus that of sync at the same seed, beside its mean, n and × what diverged",
)
BEST = "each optimizer at the point where sync ends lowest; sorted by the gap of the delay"
HOVER = ["group", "series", "setting", "n", "mean", "low", "high", "diverged", "pairs"]


def by_optimizer(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of COLUMNS of the trials at the best points; a `group` is an optimizer.

    There is one panel per size of the model and data.
    """
    shown = best_points(trials, gaps)
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    group = shown["optimizer"].map(names.optimizer)
    shown = shown.assign(group=group, setting=shown["subtitle"], subtitle="")
    return _rows(shown.assign(panel=_comparable(shown)), trials, gaps)


def _comparable(shown: pd.DataFrame) -> pd.Series:
    """Return the panel of each trial: models of several sizes, or several data, have their own.

    A panel also says how many updates its trials make, if all of them make as many.
    """
    panels = pd.Series("", index=shown.index)
    if shown["num_parameters"].nunique() > 1:
        updates = updates_asked(shown).groupby(shown["num_parameters"], dropna=False)
        sizes = shown["num_parameters"].map(names.parameters) + " parameters"
        panels = sizes + updates.transform(_length)
    if shown["data_hash"].nunique() > 1:
        panels = (panels + ", " + shown["data"].astype(str)).str.removeprefix(", ")
    return panels


def _length(updates: pd.Series) -> str:
    known = updates.dropna().unique()
    return f", {known[0]:,} updates" if len(known) == 1 else ""


def by_value(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return rows of COLUMNS with one panel per optimizer; a `group` is a value of `key`.

    Groups are sorted from the smallest value on; a group is `none` where the value is null.
    """
    shown = results_along(trials, [key], part_of=key)
    shown["group"] = shown[key].map(names.value)
    return _rows(shown.assign(setting=""), trials, gaps)


def _rows(shown: pd.DataFrame, trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    losses = shown.assign(quantity=LOSS, of_seed=shown["final_val_loss"])
    paired = paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]]
    of_gaps = shown.merge(paired, on="trial_id").assign(quantity=GAP)
    of_gaps["of_seed"] = of_gaps.pop("gap")
    losses = with_means(losses, "of_seed", OF_MEAN)
    return pd.concat([of_gaps[COLUMNS], losses[COLUMNS]], ignore_index=True)


def optimizer_rows(data: pd.DataFrame) -> list[Chart]:
    """Draw the gaps and the losses of `by_optimizer`, each with one row per optimizer."""
    delay = data[(data["quantity"] == GAP) & (data["arm"] == "delay")]
    gaps = delay.groupby("group")["mean"].first()
    known = [name for name in gaps.sort_values().index if pd.notna(gaps[name])]
    return _charts(data, [*known, *sorted({*data["group"]} - {*known})], None)


def value_rows(data: pd.DataFrame, title: str) -> list[Chart]:
    """Draw `by_value` with one row per value, in the order of the data; `title` names the key."""
    return _charts(data, [*dict.fromkeys(data.loc[data["quantity"] == LOSS, "group"])], title)


def _charts(data: pd.DataFrame, order: Sequence[str], key: str | None) -> list[Chart]:
    styles = arm_styles(data)
    charts: list[Chart] = []
    for (panel, subtitle), rows in data.groupby(PANEL, sort=False):
        present = {*rows["group"]}
        groups = [name for name in order if name in present]
        for quantity in (GAP, LOSS):
            shown = rows[rows["quantity"] == quantity]
            if len(shown):
                y = alt.Y("group:N", title=key, sort=groups, axis=row_axis())
                # Rows of gaps and of losses, where sync has a line too, stand beside each other.
                height = len(groups) * (ROW_LINE * len(styles) + ROW_PAD)
                said = "gap to sync" if quantity == GAP else "final loss"
                words = ", ".join(filter(None, [str(panel), said]))
                title = titled(words[:1].upper() + words[1:], str(subtitle))
                layers = _layers(shown, quantity, _axis(quantity, data), y, styles)
                charts.append(alt.layer(*layers, title=title, height=height))
    return charts


def _axis(quantity: str, data: pd.DataFrame) -> alt.X:
    rows = data[data["quantity"] == quantity]
    values = pd.concat([rows[name].astype(float) for name in ("of_seed", "mean", "low", "high")])
    if quantity == GAP:
        symlog = over_decades(rows.drop_duplicates(OF_MEAN)["mean"])
        return of_gaps(alt.X("mean:Q"), values, symlog=symlog)
    return of_losses(alt.X("mean:Q"), values)


def _layers(
    rows: pd.DataFrame, quantity: str, x: alt.X, y: alt.Y, styles: Mapping[str, Style]
) -> list[alt.Chart]:
    series = [name for name in styles if name in {*rows["series"]}]
    offset = alt.YOffset("series:N", sort=series, scale=alt.Scale(domain=series))
    look = legend({name: name for name in series}, styles)
    means = rows.drop_duplicates(["group", "series"])
    words = [_words(row, quantity) for row in means.to_dict("records")]
    shown = rounded(means.assign(words=words), [*HOVER, "words"])
    dots = alt.Chart(shown).encode(y=y, yOffset=offset, color=look.color)
    seeds = rounded(rows.dropna(subset="of_seed"), ["group", "series", "of_seed", *OF_SEED])
    points = alt.Chart(seeds.rename(columns={"of_seed": "mean"})).encode(
        x=x, y=y, yOffset=offset, color=look.color
    )
    known = dots.transform_filter("isValid(datum.mean)").encode(x=x, tooltip=hover(HOVER))
    return [
        *([reference(0.0, x)] if quantity == GAP else []),
        points.mark_point(filled=True, size=16, opacity=1, fillOpacity=FAINT).encode(
            tooltip=hover(["series", "mean", *OF_SEED])
        ),
        whiskers(dots, alt.X("low:Q", title=x["title"], scale=x["scale"])),
        known.transform_filter("datum.n > 1")
        .mark_point(filled=True, size=55, opacity=1)
        .encode(shape=look.shape),
        known.transform_filter("datum.n == 1")
        .mark_point(filled=False, size=45, strokeWidth=1.6, opacity=1)
        .encode(shape=look.shape),
        words_beside(shown, y, yOffset=offset),
    ]


def _words(row: Mapping[Any, Any], quantity: str) -> str:
    """Return `+0.278  n=3  × 1 of 4`."""
    mean = signed(row["mean"]) if quantity == GAP else f"{row['mean']:.3f}"
    lost = f"× {diverged_text(row)}" if row["diverged"] else ""
    return "  ".join(filter(None, [mean if row["n"] else "", f"n={row['n']:g}", lost]))


BY_OPTIMIZER = Figure(
    name="final_losses",
    title="What the delay costs each optimizer",
    data=by_optimizer,
    charts=optimizer_rows,
    caption=(*CAPTION, BEST),
    columns=2,
)
FIGURES = (BY_OPTIMIZER,)
