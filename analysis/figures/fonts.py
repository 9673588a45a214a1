"""The font of the figures: the same letters on every machine, embedded in every SVG.

Source Sans Pro (SIL Open Font License 1.1) comes as a package. vl-convert places words by its
widths; a viewer that lacked it would draw wider letters, and cut titles.
"""

import base64
import io
import string
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import font_source_sans_pro
import fontTools
import vl_convert
from fontTools import subset
from fontTools.ttLib import TTFont

from analysis.figures.kept import kept

FAMILY = "Source Sans Pro"
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
    head, _, rest = svg.partition(">")
    return f"{head}><style>{faces}</style>{rest}"


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
