"""Writes the tables, sentences and tax figures of README.md and docs/, from published trials.

    python -m bench.documents

A part stands between `<!-- table: NAME -->` or `<!-- text: NAME -->` and `<!-- end -->`. What is
between them is made from the CSVs in docs/ by the function of that name in PARTS.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path

import vl_convert

from analysis.figures.figure import whole
from analysis.figures.tax import FIGURES
from bench import document_parts, theory_parts
from bench.document_parts import LENGTHS, Part, view
from trainer.base.atomic import write_atomically

ROOT = Path(__file__).parents[1]
PAGES = ("findings", "advise", "theory")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in PAGES))
PARTS: Mapping[str, Part] = {**document_parts.PARTS, **theory_parts.PARTS}
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


def pictures() -> dict[str, str]:
    """The figures of the token tax as SVG, by their names."""
    trials, gaps = view(LENGTHS)
    return {
        figure.name: vl_convert.vegalite_to_svg(whole(figure, figure.data(trials, gaps)))
        for figure in FIGURES
    }


def main() -> None:
    """Writes the documents and pictures that change, and says which documents."""
    warnings.simplefilter("ignore", UserWarning)  # of commits: a document's trials are of several
    for path in DOCUMENTS:
        text = path.read_text()
        new = written(text)
        if new != text:
            write_atomically(path, new.encode())
            print(f"changed: {path.relative_to(ROOT)}")
    for name, svg in pictures().items():
        write_atomically(ROOT / "docs" / f"{name}.svg", svg.encode())


if __name__ == "__main__":
    main()
