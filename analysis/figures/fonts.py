"""The font of the figures: the same letters on every machine, embedded in every SVG.

Source Sans Pro (SIL Open Font License 1.1) comes as a package. vl-convert places words by its
widths; a viewer that lacked it would draw wider letters, and cut titles.
"""

from __future__ import annotations

import base64
import io
import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import font_source_sans_pro
import vl_convert
from fontTools import subset
from fontTools.ttLib import TTFont

FAMILY = "Source Sans Pro"
QUICK = "Source Sans Pro Usual"
"""The same font, of the letters USUAL alone. vl-convert opens the file of a font anew for each
letter that it measures or draws, so a small file takes half the time."""
FACES = {400: "SourceSansPro-Regular.ttf", 600: "SourceSansPro-Semibold.ttf"}
"""Weight → file."""
FOLDER = Path(font_source_sans_pro.__file__).parent / "files"
USUAL = frozenset(string.printable.strip() + " ×±−–—…°·λβτ≥≤₀₁₂∞")
"""Letters of which nearly all pictures are made."""
TEXT = "{http://www.w3.org/2000/svg}text"


@cache
def register() -> TemporaryDirectory[str]:
    """Makes both families known to vl-convert, once for a process; returns the folder of QUICK,
    which must be there as long as the process."""
    folder = TemporaryDirectory(prefix="pipegap-fonts-")
    for file in FACES.values():
        font = TTFont(io.BytesIO(_usual(file)))
        for record in font["name"].names:
            record.string = record.toUnicode().replace(FAMILY, QUICK)
        font.save(Path(folder.name, file))
    vl_convert.register_font_directory(folder.name)
    vl_convert.register_font_directory(str(FOLDER))
    return folder


def is_usual(svg: str) -> bool:
    """Whether QUICK has all letters of a picture."""
    return USUAL.issuperset(set().union(*_letters(svg).values()))


def in_family(svg: str, family: str) -> str:
    """The picture with its words in QUICK or in FAMILY."""
    other = FAMILY if family == QUICK else QUICK
    return svg.replace(f'font-family="{other}"', f'font-family="{family}"')


def _letters(svg: str) -> dict[int, set[str]]:
    """The letters that a picture uses, by their weight."""
    used: dict[int, set[str]] = {weight: set() for weight in FACES}
    for text in ElementTree.fromstring(svg).iter(TEXT):
        weight = 600 if text.get("font-weight") == "600" else 400
        used[weight].update(*text.itertext())  # with those of its lines, if it has several
    return used


def with_font(svg: str) -> str:
    """The picture with the letters that it uses, as a style sheet in its head."""
    used = _letters(svg)
    faces = "".join(_face(weight, frozenset(used[weight])) for weight in FACES if used[weight])
    head, _, rest = svg.partition(">")
    return f"{head}><style>{faces}</style>{rest}"


def faces() -> str:
    """A style sheet with the usual letters, for a page on which a browser draws the figures."""
    return "".join(_face(weight, USUAL) for weight in FACES)


@cache
def _face(weight: int, letters: frozenset[str]) -> str:
    data = base64.b64encode(_subset(FACES[weight], letters)).decode()
    return (
        f'@font-face{{font-family:"{FAMILY}";font-weight:{weight};'
        f"src:url(data:font/woff;base64,{data})}}"
    )


def _subset(file: str, letters: frozenset[str]) -> bytes:
    """A WOFF font of these letters."""
    usual = letters <= USUAL
    font = TTFont(io.BytesIO(_usual(file)) if usual else FOLDER / file, recalcTimestamp=False)
    font.flavor = "woff"
    return _cut(font, letters)


@cache
def _usual(file: str) -> bytes:
    """The font of USUAL: to cut a few letters out of the whole font takes ten times as long."""
    return _cut(TTFont(FOLDER / file, recalcTimestamp=False), USUAL, names=["*"])


def _cut(font: TTFont, letters: frozenset[str], names: Sequence[str] = ()) -> bytes:
    options = subset.Options(
        layout_features=["kern"], hinting=False, name_IDs=[*names], notdef_outline=False
    )
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=[ord(letter) for letter in letters])
    cutter.subset(font)
    buffer = io.BytesIO()
    font.save(buffer)
    return buffer.getvalue()
