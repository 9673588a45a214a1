"""How the figures look: colours by their contrast, and the colour and dash of each optimizer and
arm.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, product
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from pipegap.analysis.figures.panels import MOST_CURVES, column_of

# Colours by their contrast: what is drawn on a dark ground instead, and words in a colour.
#
# Contrast is that of WCAG 2.2: 4.5 : 1 is what it asks of words.

READABLE = 4.5
"""The least contrast of words."""
STEP = 0.02
"""Share of black or white by which a colour is changed at a time."""
COLOR = re.compile("#[0-9a-f]{6}")
INK, SOFT, GRID = "#1b1b1b", "#5d5d5d", "#e4e4e4"
"""Words and the line of 0; words beside these; grid lines."""
ON_COLOR = "#010101"
"""Words and frames of cells, which are pale on a dark page too."""
PAPER, NIGHT = "#ffffff", "#161616"
"""The two grounds."""
DARK: Mapping[str, str] = {
    PAPER: NIGHT,
    "#000000": "#f2f2f2",
    INK: "#ececec",
    SOFT: "#a8a8a8",
    GRID: "#333333",
    ON_COLOR: ON_COLOR,
}
"""Colours that are not only lightened on a dark ground → what is drawn there instead."""


def contrast(color: str, background: str) -> float:
    """Return the ratio of the luminances of two colours, from 1 to 21."""
    darker, lighter = sorted(map(_luminance, (color, background)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    parts = [part / 255 for part in parts_of(color)]
    # sRGB to linear light, then the weights by which the eye takes red, green and blue for bright.
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def parts_of(color: str) -> list[int]:
    """Return red, green and blue, of 255."""
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def mixed(color: str, target: str, share: float) -> str:
    """Return the colour between two, with a `share` of the other."""
    pairs = zip(parts_of(color), parts_of(target), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def readable(color: str) -> str:
    """Return the colour, so dark that words in it can be read on paper."""
    return _changed(color, "#000000", PAPER)


def on_dark(color: str) -> str:
    """Return what is drawn in place of a colour on a dark ground, with the contrast of words."""
    return DARK.get(color) or _changed(color, "#ffffff", NIGHT)


def _changed(color: str, toward: str, ground: str) -> str:
    share, candidate = 0.0, color
    while contrast(candidate, ground) < READABLE:
        share += STEP
        candidate = mixed(color, toward, share)
    return candidate


def dark(spec: Any) -> Any:
    """Return a specification for a dark ground; its data stay."""
    if isinstance(spec, dict):
        return {key: part if key == "datasets" else dark(part) for key, part in spec.items()}
    if isinstance(spec, list):
        return [dark(part) for part in spec]
    return on_dark(spec) if isinstance(spec, str) and COLOR.fullmatch(spec) else spec


def colors_of(spec: Any) -> Iterator[str]:
    """Yield the colours of a specification."""
    if isinstance(spec, dict):
        spec = [part for key, part in spec.items() if key != "datasets"]
    if isinstance(spec, list):
        for part in spec:
            yield from colors_of(part)
    elif isinstance(spec, str) and COLOR.fullmatch(spec):
        yield spec


# A fixed colour for each optimizer and arm, a fixed dash for each arm; and the parts of charts that
# several figures have: legends, titles, rows, whiskers, words.
#
# The palettes are made for colour-blind eyes: arms have the colours of Okabe and Ito (2008),
# optimizers those of Tol (2021, `muted`), and what has an order (sizes, β₂, numbers of stages)
# those of viridis. What differs in colour differs in shape or dash too.


class Style(NamedTuple):
    """`dash`: lengths of line and space in pixels; `shape`: a point of Vega-Lite."""

    color: str
    dash: tuple[int, ...]
    shape: str


Styles = Callable[[pd.DataFrame], dict[str, Style]]
"""A style for each `series` of the rows of a figure, in the order of its legend."""
FAMILY = "Source Sans Pro"
"""Of all letters; `files` brings the font."""
LETTERS = 12
"""Pixels of the smallest letters."""
SOLID = (1, 0)
ARMS: Mapping[str, Style] = {
    "sync": Style("#000000", SOLID, "circle"),
    "delay": Style("#d55e00", (6, 3), "square"),
    "delay_ef": Style("#0072b2", (6, 2, 1, 2), "triangle-up"),
}
OTHER_COLORS = (
    *("#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#332288", "#777777"),
    *("#e69f00", "#882255", "#44aa99", "#aa4499"),
)
OTHER_DASHES = ((2, 2), (9, 2), (4, 1, 1, 1, 1, 1))
OTHER_SHAPES = ("diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
"""Colours, dashes and shapes are combined in turn, which gives 30 arms a look of their own."""
OPTIMIZERS: Mapping[str, Style] = {
    "adamw": Style("#cc6677", SOLID, "circle"),
    "muon": Style("#332288", SOLID, "square"),
    "soap": Style("#117733", SOLID, "triangle-up"),
    "adan": Style("#88ccee", SOLID, "diamond"),
    "mars": Style("#882255", SOLID, "triangle-down"),
    "normuon": Style("#44aa99", SOLID, "cross"),
    "lion": Style("#999933", SOLID, "triangle-right"),
    "nadamw": Style("#ddaa33", SOLID, "triangle-left"),
}
OTHER_OPTIMIZERS = ("#aa4499", "#777777", "#bb5566", "#004488")
ORDERED = ("#440154", "#3b528b", "#21918c", "#3d9a38", "#8c8200", "#c07a00")
"""From the smallest on; each has a contrast of 3 : 1 or more on white."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")

_LABELS = {
    **{"labelColor": INK, "labelFontSize": LETTERS},
    **{"titleColor": INK, "titleFontSize": LETTERS, "titleFontWeight": "normal"},
}
CONFIG: Mapping[str, Any] = {
    "background": PAPER,
    "font": FAMILY,
    "aria": False,
    "view": {
        "stroke": None,
        **{"continuousWidth": 270, "discreteWidth": 270},
        **{"continuousHeight": 210, "discreteHeight": 210},
    },
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 13,
        "fontWeight": 600,
        "subtitleColor": SOFT,
        "subtitleFontSize": LETTERS,
    },
    "axis": {
        **_LABELS,
        "gridColor": GRID,
        "labelOverlap": "greedy",
        "domainColor": "#888888",
        "tickColor": "#888888",
    },
    "legend": {
        "orient": "bottom",
        "title": None,
        **_LABELS,
        "labelLimit": 0,
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
        "rowPadding": 1,
    },
    "axisX": {"grid": False, "labelFlush": False, "labelSeparation": 4},
    "concat": {"spacing": 24},
    "range": {"category": [ARMS["delay_ef"].color, ARMS["delay"].color]},
    "text": {"fontSize": LETTERS, "color": INK},
}
"""Vega-Lite's `config` of every chart."""


def arm_styles(rows: pd.DataFrame) -> dict[str, Style]:
    """Return styles of series that stand for arms: the main arms first, then by name.

    Where several series stand for one main arm, none of them has the looks of that arm. Names that
    differ in their number alone, such as λ, are in its order, and have the colours of it.
    """
    arm_rows = rows[rows["arm"].isin([*ARMS])].drop_duplicates(["series", "arm"])
    # `keep=False` drops every series of an arm that has several.
    alone = arm_rows[~arm_rows["arm"].duplicated(keep=False)].set_index("arm")["series"]
    main = {str(alone[arm]): style for arm, style in ARMS.items() if arm in alone.index}
    looks = map(Style, cycle(OTHER_COLORS), cycle(OTHER_DASHES), cycle(OTHER_SHAPES))
    # By their words, then by their numbers.
    other_names = sorted(
        {*map(str, rows["series"])} - {*main},
        key=lambda name: (NUMBER.sub("", name), [*map(float, NUMBER.findall(name))]),
    )
    names_by_arm: dict[str, list[str]] = {}
    for name in other_names:
        names_by_arm.setdefault(NUMBER.sub("", name), []).append(name)
    styles = main | dict(zip(other_names, looks, strict=False))
    for several in names_by_arm.values():  # those that differ in a number alone
        styles |= ordered_styles(several) if len(several) >= 3 else {}
    return styles


def optimizer_styles(rows: pd.DataFrame) -> dict[str, Style]:
    """Return styles of series that are optimizers, in the order of the rows: a colour and a shape,
    solid lines."""
    names = rows.drop_duplicates("series").set_index("series")["optimizer"]
    other_names = sorted({*names} - {*OPTIMIZERS})
    looks = map(Style, cycle(OTHER_OPTIMIZERS), cycle([SOLID]), cycle(SHAPES))
    styles = {**OPTIMIZERS, **dict(zip(other_names, looks, strict=False))}
    return {str(series): styles[name] for series, name in names.items()}


def ordered_styles(names: list[str]) -> dict[str, Style]:
    """Return styles of series that have an order, from the smallest on."""
    last = len(ORDERED) - 1
    # Of few, neighbours on the ramp would be hard to tell apart; of many, some lie between two.
    step = 2.0 if len(names) <= 3 else last / (len(names) - 1)
    places = [place * step for place in range(len(names))]
    if len(names) <= len(ORDERED):
        places = [float(round(place)) for place in places]
    return {
        name: Style(_on_ramp(place), dash, shape)
        for name, place, dash, shape in zip(
            names, places, cycle((SOLID, *OTHER_DASHES)), cycle(SHAPES), strict=False
        )
    }


def _on_ramp(place: float) -> str:
    """Return the colour at a place of ORDERED, mixed of two where it lies between them."""
    low = min(int(place), len(ORDERED) - 2)  # the last place has no colour above it
    return mixed(ORDERED[low], ORDERED[low + 1], place - low)


def size_styles(rows: pd.DataFrame) -> dict[str, Style]:
    """Return styles of series that are a size and an arm; `rows` have columns `size` and `arm`.

    Each size has a colour, from the smallest on, and each arm its dashes and shape; its own colour
    too where each size has a panel.
    """
    looks = arm_styles(rows.assign(series=rows["arm"]))
    series_by_size = rows.groupby(["size", "arm"])["series"].unique()
    sizes = sorted(set(rows["size"]))
    colors = {size: style.color for size, style in ordered_styles(sizes).items()}
    is_one = rows["series"].nunique() <= MOST_CURVES
    return {
        str(series): looks[arm]._replace(color=colors[size]) if is_one else looks[arm]
        for size, arm in product(colors, looks)
        for series in series_by_size.get((size, arm), [])
    }


DIGITS = 6
"""Significant digits of a number in a specification; the CSV has all."""
LEGEND, SYMBOL = 50, 6
"""Letters of a legend below a panel, and what a symbol takes of them."""
FAINT = 0.35
ROW_LINE, ROW_PAD = 15, 9
"""Pixels of the line of an arm in a row, and between rows."""
LONG = 14
"""Letters of a name that stands beside its row; longer ones stand above it."""


class SeriesLook(NamedTuple):
    """Encodings of the field `series`, in one legend: `shape` for points, `dash` for lines."""

    color: alt.Color
    dash: alt.StrokeDash
    shape: alt.Shape


def rounded(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return these columns of `data` with DIGITS significant digits, for a specification."""
    copy = data[[*columns]].copy()
    for name in copy.select_dtypes(include=["float64", "Float64"]):
        copy[name] = [float(f"{value:.{DIGITS}g}") for value in copy[name]]
    return copy


def tooltips(columns: Iterable[str]) -> list[alt.Tooltip]:
    """Return what a pointer shows: Altair is a hundred times slower with plain names."""
    return [alt.Tooltip(name) for name in columns]


def legend(
    labels: Mapping[str, str], styles: Mapping[str, Style], *, lines: bool = False
) -> SeriesLook:
    """Return colours, dashes and shapes of the series, with their legend.

    `labels` has the name of each series in the legend, `styles` its look. With `lines` the legend
    shows lines with their dashes, else the shapes of points.
    """
    looks = {name: style for name, style in styles.items() if name in labels}
    longest = max(len(labels[name]) for name in looks)
    points = {"symbolSize": 70, "symbolStrokeWidth": 0}
    words = alt.Legend(
        columns=max(1, LEGEND // (longest + SYMBOL)),
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        **({"symbolType": "stroke", "symbolSize": 300} if lines else points),
    )
    colors = alt.Scale(domain=[*looks], range=[style.color for style in looks.values()])
    dashes = alt.Scale(domain=[*looks], range=[[*style.dash] for style in looks.values()])
    shapes = alt.Scale(domain=[*looks], range=[style.shape for style in looks.values()])
    return SeriesLook(
        alt.Color("series:N", legend=words, scale=colors),
        alt.StrokeDash("series:N", legend=words, scale=dashes),
        alt.Shape("series:N", legend=words, scale=shapes),
    )


def dodged(names: Sequence[str]) -> dict[str, float]:
    """Return the pixels by which each of several series is moved, so that none hides another."""
    middle = (len(names) - 1) / 2
    return {name: 5.0 * (place - middle) for place, name in enumerate(names)}


def counted(n: pd.Series) -> str:
    """Return in words how many seeds are behind each mean: `n=3`, `n=1 to 3`."""
    return f"n={n.min():g}" if n.min() == n.max() else f"n={n.min():g} to {n.max():g}"


def is_long(names: Iterable[str]) -> bool:
    """Return whether names beside rows would leave a narrow screen no room for the data."""
    return max(map(len, names)) > LONG


def reference(value: float, x: alt.X) -> alt.Chart:
    """Return an upright line at a value of `mean`."""
    return alt.Chart(pd.DataFrame({"mean": [value]})).mark_rule(color=INK).encode(x=x)


def reference_in_rows(value: float, rows: alt.Chart, height: float) -> alt.Chart:
    """Return that line in pieces, one so high (in pixels) at each row: names stand in between."""
    pieces = rows.mark_tick(orient="vertical", thickness=1, size=height, opacity=1)
    return pieces.encode(x=alt.datum(value), color=alt.value(INK))


def whiskers(rows: alt.Chart, low: alt.X, width: float = 1.6) -> alt.Chart:
    """Return a line from `low` to `high` for each row that has an interval."""
    bounded = rows.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=width)
    return bounded.encode(x=low, x2=alt.X2("high:Q"))


def words_beside(rows: pd.DataFrame, y: alt.Y, **channels: alt.YOffset) -> alt.Chart:
    """Return the column `words` of each row, to the right of the panel."""
    text = alt.Chart(rows).mark_text(align="left", dx=6, color=SOFT)
    return text.encode(y=y, x=alt.XValue("width"), text=alt.Text("words:N"), **channels)


def names_above(
    rows: pd.DataFrame, y: alt.Y, dy: float = 0, **channels: alt.YOffset
) -> list[alt.Chart]:
    """Return the names of rows at their left, moved by `dy`, over whatever line crosses them."""
    words = alt.Text(f"{column_of(y)}:N")
    texts = []
    for halo in (4, 0):  # the wide one, in the colour of the paper, interrupts lines behind words
        text = alt.Chart(rows).mark_text(
            align="left", dy=dy, limit=0, stroke=PAPER, strokeWidth=halo
        )
        texts.append(text.encode(y=y, x=alt.XValue(0), text=words, **channels))
    return texts
