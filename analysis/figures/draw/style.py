"""How the figures look: a fixed colour for each optimizer and arm, a fixed dash for each arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle, product
from typing import Any, NamedTuple

import pandas as pd


class Style(NamedTuple):
    """`dash`: lengths of line and space in pixels; `shape`: a point of Vega-Lite."""

    color: str
    dash: tuple[int, ...]
    shape: str


Styles = Callable[[pd.DataFrame], dict[str, Style]]
"""A style for each `series` of the rows of a figure, in the order of its legend."""
SOLID = (1, 0)
ARMS: Mapping[str, Style] = {
    "sync": Style("#000000", SOLID, "circle"),
    "delay": Style("#d55e00", (6, 3), "square"),
    "delay_ef": Style("#0072b2", (6, 2, 1, 2), "triangle-up"),
}
"""Colours that colour-blind eyes tell apart (Okabe and Ito 2008); dashes for black and white."""
OTHER_COLORS = ("#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#777777")
OTHER_DASHES = ((2, 2), (9, 2), (4, 1, 1, 1, 1, 1), (1, 1))
OTHER_SHAPES = ("diamond", "triangle-down", "cross", "triangle-right", "triangle-left", "stroke")
"""They are combined in turn, which gives 20 arms a look of their own."""
OPTIMIZERS: Mapping[str, str] = {
    "adamw": "#cc6677",
    "muon": "#332288",
    "soap": "#117733",
    "adan": "#88ccee",
    "mars": "#882255",
    "normuon": "#44aa99",
    "lion": "#999933",
    "nadamw": "#ddaa33",
}
"""Other colours than those of the arms, for colour-blind eyes too (Tol 2021, `muted`)."""
OTHER_OPTIMIZERS = ("#aa4499", "#777777", "#bb5566", "#004488")
SIZES = ("#88ccee", "#332288", "#cc6677", "#117733", "#ddaa33", "#aa4499")
"""Colours of models, from the smallest on."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")

CONFIG: Mapping[str, Any] = {
    "background": "white",
    "font": "sans-serif",
    "aria": False,
    "view": {
        "stroke": None,
        "continuousWidth": 270,
        "discreteWidth": 270,
        "continuousHeight": 210,
        "discreteHeight": 210,
    },
    "title": {
        "anchor": "start",
        "fontSize": 12,
        "subtitleColor": "#444444",
        "subtitleFontSize": 10,
    },
    "axis": {
        "gridColor": "#e4e4e4",
        "labelFontSize": 10,
        "titleFontSize": 10,
        "titleFontWeight": "normal",
        "labelOverlap": "greedy",
        "domainColor": "#888888",
        "tickColor": "#888888",
    },
    "legend": {
        "orient": "bottom",
        "title": None,
        "labelFontSize": 10,
        "labelLimit": 0,
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
        "rowPadding": 1,
    },
    "axisX": {"grid": False, "labelFlush": False, "labelSeparation": 4},
    "concat": {"spacing": 24},
    "text": {"fontSize": 9},
}
"""Vega-Lite's `config` of every chart."""


def arm_styles(rows: pd.DataFrame) -> dict[str, Style]:
    """Styles of series that are arms: the main ones first, then by name."""
    names = set(rows["series"])
    looks = map(Style, cycle(OTHER_COLORS), cycle(OTHER_DASHES), cycle(OTHER_SHAPES))
    others = dict(zip(sorted(names - {*ARMS}), looks, strict=False))
    return {name: style for name, style in ARMS.items() if name in names} | others


def optimizer_styles(rows: pd.DataFrame) -> dict[str, Style]:
    """Styles of series that are optimizers, by name: a colour and a shape, with solid lines."""
    names = sorted(set(rows["series"]))
    others = zip(
        (name for name in names if name not in OPTIMIZERS), cycle(OTHER_OPTIMIZERS), strict=False
    )
    colors = {**OPTIMIZERS, **dict(others)}
    return {
        name: Style(colors[name], SOLID, shape)
        for name, shape in zip(names, cycle(SHAPES), strict=False)
    }


def size_styles(rows: pd.DataFrame) -> dict[str, Style]:
    """Styles of series that are a model size and an arm: the size has a colour, from the smallest
    on, the arm its dashes and shape. `rows` have `num_parameters` and `arm`."""
    looks = arm_styles(rows.assign(series=rows["arm"]))
    named = rows.groupby(["num_parameters", "arm"])["series"].unique()
    colors = dict(zip(sorted(set(rows["num_parameters"])), cycle(SIZES), strict=False))
    return {
        str(series): looks[arm]._replace(color=colors[size])
        for size, arm in product(colors, looks)
        for series in named.get((size, arm), [])
    }
