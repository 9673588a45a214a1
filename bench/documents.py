"""Writes the tables, sentences and figures of README.md and docs/, and what the notebook shows.

All are made from published trials.

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

from analysis.figures import FIGURES
from analysis.figures.draw.fonts import with_font
from analysis.figures.figure import Spec, whole
from analysis.figures.files import picture
from bench import document_parts, notebook, theory_parts
from bench.document_parts import LENGTHS, Part, View, of_sweep, view
from trainer.base.atomic import write_atomically

ROOT = Path(__file__).parents[1]
PAGES = ("findings", "advise", "theory")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in PAGES))
PARTS: Mapping[str, Part] = {**document_parts.PARTS, **theory_parts.PARTS}
PLACE = re.compile(r"(<!-- (table|text): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 120
"""Columns of the prose."""
PICTURES: Mapping[str, tuple[str, str]] = {
    "final_losses": ("final_losses", "main"),
    "optimizers": ("fig02_optimizers", "synchronous_start"),
    "gradient_feedback": ("final_losses", "gradient_feedback"),
    "taylor": ("fig14_taylor", "taylor"),
    "momentum": ("fig04_momentum", "momentum"),
    "coefficient": ("fig15_coefficient", "coefficient"),
    "batch_size": ("fig13_batch_size", "batch_size"),
    "token_tax": ("token_tax", ""),
    "break_even": ("break_even", ""),
}
"""SVG in docs/ → the figure of the report, and the sweep whose trials it shows; without one, the
trials of several lengths. A CSV has no curves, and so no figure over training is among them."""


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


def pictured(name: str) -> Spec:
    """The specification of one of PICTURES."""
    figure_name, sweep = PICTURES[name]
    [figure] = [figure for figure in FIGURES if figure.name == figure_name]
    shown: View = of_sweep(sweep) if sweep else view(LENGTHS)
    return whole(figure, figure.data(*shown))


def main() -> None:
    """Writes the documents and pictures that change, and says which documents."""
    warnings.simplefilter("ignore", UserWarning)  # of commits: a document's trials are of several
    for path in DOCUMENTS:
        text = path.read_text()
        new = written(text)
        if new != text:
            write_atomically(path, new.encode())
            print(f"changed: {path.relative_to(ROOT)}")
    for name in PICTURES:
        svg = with_font(picture(pictured(name)))
        write_atomically(ROOT / "docs" / f"{name}.svg", svg.encode())
    notebook.write()


if __name__ == "__main__":
    main()
