"""A figure as files: SVG, PNG and PDF with letters that every machine shows, and a CSV.

The font, Source Sans Pro (SIL Open Font License 1.1), comes as a package. vl-convert places words
by its widths; a viewer that lacked it would draw wider letters, and cut titles. So every SVG
embeds the letters that it uses.
"""

import base64
import hashlib
import io
import re
import string
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from string import digits as DIGITS
from typing import Any, NamedTuple
from xml.etree import ElementTree

import font_source_sans_pro
import fontTools
import vl_convert
from fontTools import subset
from fontTools.ttLib import TTFont

from pipegap.analysis.figures.colors import dark
from pipegap.analysis.figures.figure import Plot, Spec, beside, whole
from pipegap.analysis.figures.style import FAMILY
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.children import Worker
from pipegap.trainer.base.places import cache_folder


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
    head, _, tail = svg.partition(">")
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
    font = TTFont(source, recalcTimestamp=False)
    font.flavor = flavor
    options = subset.Options(
        layout_features=["kern"], hinting=False, name_IDs=[], notdef_outline=False
    )
    cutter = subset.Subsetter(options)
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
LETTER = 5.6
"""Pixels that a letter of a caption takes on average, or a little more."""
FIRST_GUESS, TRIES = 200, 3
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
    across, svg = float(FIRST_GUESS), ""
    for _ in range(TRIES):
        wide = drawn._replace(specs=[{**panel, "width": across} for panel in drawn.specs])
        spec = beside(wide, columns, line=int(pixels / LETTER))
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
