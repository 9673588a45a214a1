"""What a figure is, its one Vega-Lite specification for files and page, and its files."""

import base64
import hashlib
import io
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from string import digits as DIGITS
from textwrap import wrap
from typing import Any, NamedTuple, TypeAlias, TypeVar
from xml.etree import ElementTree

import altair as alt
import font_source_sans_pro
import fontTools
import pandas as pd
import vl_convert
from fontTools import subset
from fontTools.ttLib import TTFont

from pipegap.analysis.figures.style import CONFIG, FAMILY, counted, dark
from pipegap.analysis.table.metrics import spaced
from pipegap.analysis.table.names import signed
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.children import Worker
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import cache_folder

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
Spec: TypeAlias = dict[str, Any]

COLUMNS = 3
"""Panels beside each other in a file."""
MOST_PANELS, MOST_SMALL = 12, 36
"""Panels of the usual size in one figure, and those of a SMALL one: the CSV has the others."""
SMALL = {"width": 130, "height": 100}
"""Pixels of a panel among many."""
MOST_POINTS = 3_000
"""Rows of seeds in a picture; the CSV has all. More could not be told apart."""
FEWEST = 16
"""Points of a curve over training that a picture shows, or more."""
OVER_TRAINING = "tokens"
"""The column that rows of a curve over training have."""
NAMES_A_MEAN = ("panel", "subtitle", "quantity", "group", "row", "series", "value")
"""Columns that say what a mean is of."""


class Figure(NamedTuple):
    """A data function and a draw function, with the words around them.

    `data(trials, gaps)` returns a table, which is also the CSV; an empty table is no figure. It
    knows nothing of drawing. Each row is a trial, or a moment of it, with its `trial_id`, or else a
    mean with its ends `low` and `high`: tests look for every one of them in the picture.
    `charts(data)` draws the table: one chart per panel, and one axis for all panels that show one
    quantity.

    `name` is the name of the files. `source` says where the paper has the figure, and is empty if
    the paper has none. `sweeps` are the sweeps whose trials it shows; without any it shows any
    trials. `caption` says in lines how to read it. A figure of any trials is drawn for each sweep;
    with `together` it is drawn once for all sweeps of a scale, with their longer runs.
    """

    name: str
    title: str
    data: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
    charts: Callable[[pd.DataFrame], Sequence[Chart]]
    caption: tuple[str, ...] = ()
    source: str = ""
    sweeps: tuple[str, ...] = ()
    columns: int = COLUMNS
    together: bool = False


class Plot(NamedTuple):
    """A figure of `data`, with the specification of each of its panels."""

    figure: Figure
    data: pd.DataFrame
    specs: Sequence[Spec]


Row = dict[str, Any]
_T = TypeVar("_T")


def plot(figure: Figure, data: pd.DataFrame) -> Plot:
    """Draw a figure once for its files and the page, since altair is slow.

    Of many seeds MOST_POINTS or a few more are drawn, and many panels are small, with their axes
    named in the caption, which says so. A chart whose `usermeta` has a `caption` needs other words
    than those of its figure; `columns` of the first chart are those of this data. Raises
    BadInput for data without a row.
    """
    if data.empty:
        raise BadInput("figure", figure.name, "must have a row of data: nothing is to be shown")
    # Altair's limit of rows is meant for notebooks. Tests hold every figure to Vega-Lite's schema.
    with alt.data_transformers.enable("default", max_rows=None):
        charts = figure.charts(data)
        specs = [chart.to_dict(validate=False) for chart in charts[:MOST_SMALL]]
    meta = [spec.pop("usermeta", {}) for spec in specs]
    figure = figure._replace(columns=meta[0].get("columns", figure.columns))
    words = [of_chart.get("caption", figure.caption) for of_chart in meta]
    caption = [*dict.fromkeys(line for lines in words for line in lines), *thin(specs)]
    if len(charts) > len(specs):
        caption.append(f"the first {len(specs)} of {len(charts)} panels: the CSV has all")
    if len(specs) > MOST_PANELS and not any("height" in spec for spec in specs):
        caption += _made_small(specs, data)
        figure = figure._replace(columns=6)
    figure = figure._replace(caption=tuple(caption))
    return Plot(figure, data, [{**spec, "config": CONFIG} for spec in specs])  # not Altair's


def _made_small(specs: Sequence[Spec], data: pd.DataFrame) -> Iterator[str]:
    """Make panels SMALL, without titles of axes, and with the legend of the first one alone; yield
    what they leave unsaid."""
    encodings = [layer["encoding"] for spec in specs for layer in spec["layer"]]
    titles = [title for axis in ("x", "y") for title in _titles_taken(encodings, axis)]
    yield "axes: " + "; ".join(dict.fromkeys(titles))
    for number, spec in enumerate(specs):
        spec.update(SMALL)
        for channel in (c for layer in spec["layer"] for c in layer["encoding"].values()):
            # The first panel's legend serves all; one of a single series says nothing.
            if "legend" in channel and (number or len(channel["scale"]["domain"]) == 1):
                channel["legend"] = None
    if "n" in data:
        yield counted(data["n"].dropna())


def _titles_taken(encodings: Sequence[Spec], axis: str) -> Iterator[str]:
    for channel in (encoding[axis] for encoding in encodings if axis in encoding):
        if title := channel.get("title"):
            channel["title"] = None
            yield title if isinstance(title, str) else ", ".join(title)


def thin(specs: Sequence[Spec]) -> Iterator[str]:
    """Keep about MOST_POINTS rows of seeds in the panels' data sets together, and say so.

    Of curves over training the first and the last point stay, and FEWEST or more; if these are too
    many, some curves go. What stays is evenly spaced. Means and intervals stay: they are rows
    without a trial, made of all seeds.
    """
    # Vega-Lite's named data sets: rows of seeds have a `trial_id`, rows of means have none.
    sets = [(spec["datasets"], name) for spec in specs for name in spec["datasets"]]
    seeds = [(of, name) for of, name in sets if any("trial_id" in row for row in of[name][:1])]
    num_before = sum(len(of[name]) for of, name in seeds)
    if num_before <= MOST_POINTS:
        return
    share = MOST_POINTS / num_before
    for of, name in seeds:
        of[name] = _thinned(of[name], share)
    num_after = sum(len(of[name]) for of, name in seeds)
    yield f"{num_after:,} of {num_before:,} points of seeds: the CSV has all"


def _thinned(rows: Sequence[Row], share: float) -> Sequence[Row]:
    if OVER_TRAINING not in rows[0]:
        return _part(rows, share)
    curves: dict[Any, list[Row]] = {}
    for row in rows:
        curves.setdefault((row["trial_id"], row["series"]), []).append(row)
    # As many curves as have room with FEWEST points each; then their points share that room.
    room = share * len(rows)
    fewer_curves = _part([*curves.values()], room / (FEWEST * len(curves)))
    of_curve = room / sum(map(len, fewer_curves))
    return [row for curve in fewer_curves for row in _part(curve, of_curve, FEWEST)]


def _part(items: Sequence[_T], share: float, fewest: int = 2) -> Sequence[_T]:
    return spaced(items, max(fewest, int(share * len(items))))


def whole(drawn: Plot) -> Spec:
    """Return one specification: the panels beside and below each other, under title and caption."""
    columns = min(drawn.figure.columns, len(drawn.specs))
    # Above a panel there is room for 60 letters of a caption. A figure of one column is as wide as
    # two panels: its rows have long names.
    return beside(drawn, columns, line=60 * (2 if drawn.figure.columns == 1 else columns))


def panels(drawn: Plot) -> list[Spec]:
    """Return one specification per panel, as wide as the element of the page that holds it."""
    words = described(drawn.figure.title, drawn.figure.caption, drawn.data)
    return [{**panel, "width": "container", "description": words} for panel in drawn.specs]


def beside(drawn: Plot, columns: int, *, line: int) -> Spec:
    """Return one specification with so many panels beside each other.

    The caption has lines of at most `line` letters. `alt.concat` would copy every chart, so the
    specification is put together by hand.
    """
    figure, data, specs = drawn
    title = {
        "text": wrap(figure.title, int(line * 0.7)),
        "subtitle": [part for words in figure.caption for part in wrap(words, line)],
        "fontSize": 15,
        "offset": 12,
    }
    shared = ("$schema", "config", "datasets")  # which stand once, for all panels
    return {
        "$schema": specs[0]["$schema"],
        "config": CONFIG,
        "title": title,
        "description": described(figure.title, figure.caption, data),
        "columns": columns,
        "concat": [
            {name: part for name, part in panel.items() if name not in shared} for panel in specs
        ],
        # Each panel has its own legend, which counts that panel's trials, and its own order of
        # arms: a shared one would be by name.
        "resolve": {
            "scale": dict.fromkeys(("color", "strokeDash", "shape", "yOffset"), "independent")
        },
        "datasets": {name: rows for panel in specs for name, rows in panel["datasets"].items()},
    }


def described(title: str, caption: Sequence[str], data: pd.DataFrame) -> str:
    """Return a figure in words, for readers who do not see it.

    The words are the title, what is shown, the means with their intervals unless they are many, and
    the caption.
    """
    parts = [title, *_shown(data)]
    if "mean" in data and "update" not in data:
        means = data.drop_duplicates([name for name in NAMES_A_MEAN if name in data] or None)
        means = means[means["mean"].notna()]
        if len(means) <= 40:  # more numbers are not read out: the CSV has all of them
            parts.append("; ".join(map(_mean, means.to_dict("records"))))
    return ". ".join(filter(None, [*parts, *caption])) + "."


def _shown(data: pd.DataFrame) -> Iterator[str]:
    for column, words in (("panel", "Panels"), ("series", "Shown")):
        values = [*dict.fromkeys(data[column].dropna())] if column in data else []
        if any(values):
            yield f"{words}: {', '.join(map(str, values))}"


def _mean(row: Mapping[Any, Any]) -> str:
    parts = [row[name] for name in NAMES_A_MEAN if name in row and name != "subtitle"]
    name = " ".join(str(part) for part in parts if part != "" and not pd.isna(part))
    mean, low, high = (float(row[name]) for name in ("mean", "low", "high"))
    interval = "" if pd.isna(low) else f" [{signed(low)}, {signed(high)}]"
    return f"{name} {signed(mean)}{interval}"


# A figure as files: SVG, PNG and PDF with letters that every machine shows, and a CSV.
#
# The font, Source Sans Pro (SIL Open Font License 1.1), comes as a package. vl-convert places
# words by its widths; a viewer that lacked it would draw wider letters, and cut titles. So every
# SVG embeds the letters that it uses.


def kept(make: Callable[[], bytes], *made_of: str) -> bytes:
    """Return what `make` makes, or what another process made before of the same `made_of`.

    It lies in `~/.cache/pipegap/kept` (or below XDG_CACHE_HOME), after its digest: a damaged file
    is made again. Where nothing can be written, nothing is kept.
    """
    path = cache_folder() / "kept" / hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    with suppress(OSError):
        digest, _, content = path.read_bytes().partition(b"\n")
        if digest == _digest(content):
            return content
    content = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _digest(content) + b"\n" + content)
    return content


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


FACES = {400: "SourceSansPro-Regular.ttf", 600: "SourceSansPro-Semibold.ttf"}
"""Weight → file."""
FOLDER = Path(font_source_sans_pro.__file__).parent / "files"
USUAL = frozenset(string.printable.strip() + " ×±−–—…°·λβτ≥≤₀₁₂∞")
"""Letters of which nearly all pictures are made."""
TEXT = "{http://www.w3.org/2000/svg}text"


@cache
def register() -> None:
    """Make the family known to vl-convert, once for a process."""
    vl_convert.register_font_directory(str(FOLDER))


def with_font(svg: str) -> str:
    """Return the picture with the letters that it uses, as a style sheet in its head."""
    used: dict[int, set[str]] = {weight: set() for weight in FACES}
    for text in ElementTree.fromstring(svg).iter(TEXT):
        weight = 600 if text.get("font-weight") == "600" else 400
        used[weight].update(*text.itertext())  # with the letters of its lines, if it has several
    faces = "".join(_face(weight, frozenset(used[weight])) for weight in FACES if used[weight])
    head, _, tail = svg.partition(">")  # after the tag <svg …>
    return f"{head}><style>{faces}</style>{tail}"


def usual_faces() -> str:
    """Return a style sheet with the usual letters, for a page on which a browser draws figures."""
    return "".join(_face(weight, USUAL) for weight in FACES)


@cache
def _face(weight: int, letters: frozenset[str]) -> str:
    # To cut a few letters out of the whole font takes ten times as long.
    source = io.BytesIO(_usual(weight)) if letters <= USUAL else FOLDER / FACES[weight]
    data = base64.b64encode(_cut(source, letters, "woff")).decode()
    return (
        f'@font-face{{font-family:"{FAMILY}";font-weight:{weight};'
        f"src:url(data:font/woff;base64,{data})}}"
    )


@cache
def _usual(weight: int) -> bytes:
    """Return the font with the usual letters alone."""
    path = FOLDER / FACES[weight]
    made_of = str(weight), str(path.stat().st_size), fontTools.version, "".join(sorted(USUAL))
    return kept(lambda: _cut(path, USUAL), "letters", *made_of)


def _cut(source: Path | io.BytesIO, letters: frozenset[str], flavor: str | None = None) -> bytes:
    """Return the font of these letters alone, as TrueType or in another `flavor`."""
    font = TTFont(source, recalcTimestamp=False)  # equal letters give equal bytes
    font.flavor = flavor
    what = {"layout_features": ["kern"], "hinting": False, "name_IDs": [], "notdef_outline": False}
    cutter = subset.Subsetter(subset.Options(**what))
    cutter.populate(text="".join(letters))
    cutter.subset(font)
    buffer = io.BytesIO()
    font.save(buffer)
    return buffer.getvalue()


SCALE, TALL = 2, 8_000
"""Pixels of a PNG per pixel of the specification; one where that is taller than TALL."""
PER_INCH = 96
"""Pixels of a specification, as browsers count them."""
POINTS = 72
NUMBERED = re.compile(r"(?:clip|gradient_)\d+")
SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


class Width(NamedTuple):
    """The width of a picture in inches, and how many `columns` of panels it has at most."""

    inches: float
    columns: int


WIDTHS = {"one": Width(3.25, 1), "two": Width(6.75, 2)}
"""One or two columns of a paper."""


def save(drawn: Plot, out: Path, worker: Worker | None = None) -> None:
    """Write NAME.svg, NAME.png, NAME.pdf and NAME.csv to `out`.

    Equal data give equal bytes, but for the order of a PDF's objects. With a `worker` pictures are
    there when the worker ends.
    """
    drawn.data.to_csv(out / f"{drawn.figure.name}.csv", index=False)
    what = whole(drawn), out / drawn.figure.name
    worker.do(_draw, *what) if worker else _draw(*what)


def export(drawn: Plot, out: Path, width: str, *, is_dark: bool) -> None:
    """Write the four files in a `width`, a key of WIDTHS; `is_dark`: for a dark page."""
    drawn.data.to_csv(out / f"{drawn.figure.name}.csv", index=False)
    _write_picture(sized(drawn, WIDTHS[width], is_dark=is_dark), out / drawn.figure.name)


def _draw(spec: Spec, path: Path) -> None:
    _write_picture(picture(spec), path)


def _write_picture(svg: str, path: Path) -> None:
    """Write `path` with the endings of its three kinds."""
    Path(f"{path}.svg").write_text(with_font(svg), encoding="utf-8")
    width, height = _size(svg)
    scale = SCALE if height <= TALL else 1
    Path(f"{path}.png").write_bytes(vl_convert.svg_to_png(svg, scale=scale))
    # vl-convert takes a pixel for a point, of which an inch has fewer.
    in_points = resized(svg, width * POINTS / PER_INCH)
    Path(f"{path}.pdf").write_bytes(vl_convert.svg_to_pdf(in_points))


def picture(spec: Spec) -> str:
    """Return the specification as SVG, with its description for readers who do not see it.

    What only answers a pointer on the page is left out.
    """
    register()
    svg = _renumbered(vl_convert.vegalite_to_svg(_visible(spec)))
    head, _, tail = svg.partition(">")
    words = escape(str(spec.get("description", "")))
    return f'{head} role="img" aria-label="{words}">{tail}'


def _visible(spec: Any) -> Any:
    """Return the specification without layers of opacity 0."""
    if isinstance(spec, dict):
        # Its data are most of a specification, and hold no layer.
        return {key: value if key == "datasets" else _visible(value) for key, value in spec.items()}
    if isinstance(spec, list):
        return [_visible(item) for item in spec if not _is_hidden(item)]
    return spec


def _is_hidden(spec: Any) -> bool:
    mark = spec.get("mark") if isinstance(spec, dict) else None
    return isinstance(mark, dict) and mark.get("opacity") == 0


def _renumbered(svg: str) -> str:
    """Number clips and gradients in their order: Vega counts on for a whole process."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(NUMBERED.findall(svg)))}
    return NUMBERED.sub(lambda match: f"{match[0].rstrip(DIGITS)}{numbers[match[0]]}", svg)


def sized(drawn: Plot, width: Width, *, is_dark: bool = False) -> str:
    """Return the figure as SVG of exactly this width.

    Axes and legends take what they need: the panels are drawn, measured and drawn again with what
    is left; what remains of a difference is scaled.
    """
    columns = min(width.columns, drawn.figure.columns, len(drawn.specs))
    pixels = width.inches * PER_INCH
    across, svg = 200.0, ""  # a first guess of a panel's pixels
    for _ in range(3):
        wide = drawn._replace(specs=[{**panel, "width": across} for panel in drawn.specs])
        # `across` is of a panel alone: only the picture says what axes and legends take beside.
        spec = beside(wide, columns, line=int(pixels / 5.6))  # pixels of a letter, or a few less
        svg = picture(dark(spec) if is_dark else spec)
        too_wide = _size(svg)[0] - pixels
        if abs(too_wide) < 1:
            break
        across = max(60.0, across - too_wide / columns)
    return resized(svg, pixels)


def resized(svg: str, width: float) -> str:
    """Return the picture in this width, with all that it shows scaled."""
    natural, height = _size(svg)
    exact = f'width="{width:g}" height="{height * width / natural:g}"'
    return SIZE.sub(exact, svg, count=1)


def _size(svg: str) -> tuple[float, float]:
    size = SIZE.search(svg)
    if size is None:
        raise ValueError("an SVG without a size")
    width, height = size.groups()
    return float(width), float(height)
