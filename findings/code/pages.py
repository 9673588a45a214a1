"""Documents with parts that are made: tables, and sentences in lines of WIDTH.

A part stands between `<!-- table: NAME -->` or `<!-- text: NAME -->` and `<!-- end -->`. What is
between them is made from the CSVs in docs/ by the function of that name in PARTS.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from bench.documents.parts import PARTS, Part

ROOT = Path(__file__).parents[2]
PAGES = ("findings", "advise", "theory", "forecast", "evaluation")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in PAGES))
PLACE = re.compile(r"(<!-- (table|text): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 120
"""Columns of the prose."""


def written(text: str, parts: Mapping[str, Part] = PARTS) -> str:
    """A document with every part made again. Raises KeyError for a name that is not in `parts`."""

    def made(place: re.Match[str]) -> str:
        start, kind, name, end = place.groups()
        content = parts[name]()
        return f"{start}{content if kind == 'table' else wrapped(content)}\n{end}"

    return PLACE.sub(made, text)


def wrapped(text: str) -> str:
    """Each line as a paragraph or a point of a list, in lines of WIDTH."""
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip(" -"))),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )
