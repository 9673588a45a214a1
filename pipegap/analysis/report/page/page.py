"""What a page holds, how its tables are shown, and how it becomes HTML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import accumulate
from math import nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from pipegap.analysis.claims import ALL_PARTS, Outcome, Verdict
from pipegap.analysis.claims.rule import MOST_SEEDS
from pipegap.analysis.figures import Figure, Plot, panels
from pipegap.analysis.figures.figure import kept, usual_faces
from pipegap.analysis.figures.style import CONFIG, PAPER, colors_of, on_dark
from pipegap.analysis.report.answer import MICROBATCHES, STAGES, StoreAnswer
from pipegap.analysis.report.facts import Overview, TrialNow
from pipegap.analysis.statistics.pairs import share_text
from pipegap.analysis.table import names
from pipegap.analysis.table.names import prose

# A table as the page shows it: words for people, and the numbers that it is sorted by.

LOW, HIGH = "_low", "_high"

CellData = list[Any] | str | None


class Cell(NamedTuple):
    """A cell: its words, and as in the CSV one value per column that it shows; None is missing."""

    words: str
    values: Sequence[Any]

    @property
    def data(self) -> CellData:
        """What the page holds: the words alone where they are the only value, else words and
        values; None is an empty cell."""
        if self.values == [None]:
            return None
        return self.words if self.values == [self.words] else [self.words, *self.values]


class Head(NamedTuple):
    """A shown column. `names` are the columns of the CSV that it shows, `kind` is trial, command,
    number or text."""

    title: str
    names: Sequence[str]
    kind: str


class Listing(NamedTuple):
    """A table of the page. `file` is its CSV, which has `num_rows` rows."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    note: str
    file: str
    num_rows: int

    @property
    def name(self) -> str:
        """Its place on the page."""
        return f"table-{self.file.removesuffix('.csv')}"

    @property
    def tex(self) -> str:
        """The file that `write_latex` writes."""
        return f"{self.file.removesuffix('.csv')}.tex"

    @property
    def data(self) -> dict[str, Any]:
        """The heads and columns for the script of the page."""
        cells = [[row[place].data for row in self.rows] for place in range(len(self.heads))]
        return {
            "heads": [head._asdict() for head in self.heads],
            "columns": [_shared(column) for column in cells],
        }


def _shared(column: Sequence[CellData]) -> dict[str, Any]:
    """Return the different `cells` of a column and `at`, the place of each row's cell among them.

    `at` is None where all cells differ. Most columns say a few things many times, and a page must
    stay small.
    """
    # By their text: a cell may be a list, which has no hash.
    texts = [repr(cell) for cell in column]
    different = dict(zip(texts, column, strict=True))
    places = {text: place for place, text in enumerate(different)}
    at = [places[text] for text in texts] if len(different) < len(column) else None
    return {"cells": [*different.values()], "at": at}


def listed(
    title: str,
    table: pd.DataFrame,
    note: str,
    file: str,
    *,
    arms: Mapping[str, str] = MappingProxyType({}),
    most: int = 500,
) -> Listing:
    """Return the listing of a table, with `most` rows; the CSV has all.

    A mean and its interval (`x`, `x_low`, `x_high`) are one column. People read names of
    optimizers and arms (`arms`); the values of the cells keep theirs.
    """
    columns = [str(name) for name in table]
    ends = {f"{name}{end}" for name in columns for end in (LOW, HIGH) if f"{name}{LOW}" in columns}
    columns_shown = {
        name: [name, *(f"{name}{end}" for end in (LOW, HIGH) if f"{name}{end}" in ends)]
        for name in columns
        if name not in ends
    }
    names_of_values = {"optimizer": names.OPTIMIZERS, "other": names.OPTIMIZERS, "arm": arms}
    # Python's own values, and None for what is missing, as JSON has them.
    plain = table.astype(object).where(table.notna(), None)
    records = plain.head(most).to_dict("records")
    rows = [
        [_cell(name, of_cell, row, names_of_values) for name, of_cell in columns_shown.items()]
        for row in records
    ]
    heads = [
        Head(names.head(name, arms), of_head, _kind(name, table[name]))
        for name, of_head in columns_shown.items()
    ]
    return Listing(title, heads, rows, note, file, len(table))


def write_latex(listing: Listing, out: Path) -> None:
    """Write the rows of the page as a LaTeX table, no wider than a line, without empty columns.

    A table of many columns becomes several below each other, so that its letters stay legible. It
    needs the packages that its first line names, and compiles with pdflatex.
    """
    columns = [[row[at].words for row in listing.rows] for at in range(len(listing.heads))]
    # A column without a word in any row is left out.
    filled = [pair for pair in zip(listing.heads, columns, strict=True) if any(pair[1])]
    tables = [r"% \usepackage{booktabs, graphicx} \usepackage[T1]{fontenc}"]
    for number, part in enumerate(_narrow_parts(filled)):
        tables += [r"\par\medskip\noindent"] if number else []
        tables += _tabular(part)
    (out / listing.tex).write_text("\n".join([*tables, ""]), encoding="utf-8")


LatexColumn = tuple[Head, list[str]]
"""A head and the words of the cells below it."""


def _narrow_parts(columns: Sequence[LatexColumn]) -> Iterator[list[LatexColumn]]:
    """Split the columns of a table into parts that fit into a line of LATEX_LINE characters.

    The columns of text with which the table begins tell its rows apart: each part repeats those of
    them that take at most half of a line.
    """
    widths = [max(map(len, [head.title, *cells])) + 2 for head, cells in columns]
    pairs = zip(columns, accumulate(widths), strict=True)
    is_label = [head.kind == "text" and end <= LATEX_LINE / 2 for (head, _), end in pairs]
    num_labels = [*is_label, False].index(False)
    part, width = [*columns[:num_labels]], sum(widths[:num_labels])
    for column, column_width in zip(columns[num_labels:], widths[num_labels:], strict=True):
        if len(part) > num_labels and width + column_width > LATEX_LINE:
            yield part
            part, width = [*columns[:num_labels]], sum(widths[:num_labels])
        part.append(column)
        width += column_width
    yield part


LATEX_LINE = 95
"""Characters of a row that a line of an article takes at about seven points."""


def _tabular(columns: Sequence[LatexColumn]) -> list[str]:
    """Return the lines of a tabular, which is made smaller if it is wider than a line."""
    aligned = "".join("r" if head.kind == "number" else "l" for head, _ in columns)
    heads = _latex_row([head.title for head, _ in columns])
    rows = [_latex_row(cells) for cells in zip(*(words for _, words in columns), strict=True)]
    return [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        *(rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", heads, r"\midrule", *rows),
        *(r"\bottomrule", r"\end{tabular}}"),
    ]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join("".join(map(_latex, cell)) for cell in cells) + r" \\"


def _latex(char: str) -> str:
    """Return a character as pdflatex prints it; one that its fonts lack by its number."""
    # T1 fonts have all letters up to ÿ.
    is_printable = ord(char) < 128 or (char.isalpha() and char <= "ÿ")
    plain = char if is_printable else rf"\texttt{{U+{ord(char):04X}}}"
    return LATEX.get(char, plain)


LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{char: f"${char}$" for char in "<>|"},
    **{char: f"{{{char}}}" for char in "[]"},  # \\\\[ would be a distance
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "±": r"$\pm$", "→": r"$\to$"},
    **{"≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "…": r"\dots{}", "—": "---", "–": "--"},
    **{"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "λ": r"$\lambda$"},
    **{"μ": r"$\mu$", "µ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$"},
    **{chr(0x2080 + digit): f"$_{digit}$" for digit in range(10)},
    **{"\n": " ", "\t": " "},
}
RATIO = re.compile(r"\b(ratio|share|tax)\b")
"""In the names of columns with an interval that are no differences: these have no sign."""


def _kind(name: str, column: pd.Series) -> str:
    kind = "number" if pd.api.types.is_numeric_dtype(column) else "text"
    return {"trial_id": "trial", "command": "command"}.get(name, kind)


def _cell(
    name: str,
    columns: Sequence[str],
    row: Mapping[Any, Any],
    names_of_values: Mapping[str, Mapping[str, str]],
) -> Cell:
    values = [row[column] for column in columns]
    is_difference = len(columns) > 1 and not RATIO.search(name)
    words = [_words(name, value, signed=is_difference) for value in values]
    if name == "removed" and len(values) > 1:
        numbers = [nan if value is None else value for value in values]
        is_shared = row.get("removed_n") or values[0] is not None  # some seed has both arms
        return Cell(names.minus(share_text(*numbers)) if is_shared else "", values)
    # A single seed has a mean without an interval.
    interval = f" [{words[1]}, {words[2]}]" if len(words) > 1 and words[1] else ""
    word = names_of_values.get(name, {}).get(words[0], words[0])
    return Cell(names.minus(word + interval), values)


def _words(name: str, value: Any, *, signed: bool) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if "removed" in name:
        return f"{value:.0%}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:+.4f}" if signed else f"{value:.4f}"


# What a page holds, and how it becomes HTML.

VENDOR_SCRIPTS = ("vendor/dataTables.min.js", "vendor/dataTables.buttons.min.js")
VENDOR_STYLES = ("vendor/dataTables.dataTables.min.css", "vendor/buttons.dataTables.min.css")
"""DataTables with its extension Buttons, as published on npm; each file names its version."""


class Drawn(NamedTuple):
    """A figure on the page. `folder` holds its files; it is empty or ends with a slash."""

    figure: Figure
    folder: str
    specs: Sequence[dict[str, Any]]

    @property
    def name(self) -> str:
        """The path of its files, without their endings."""
        return f"{self.folder}{self.figure.name}"


def tally(verdicts: Sequence[Verdict]) -> list[tuple[Outcome, int]]:
    """Return how many verdicts there are of each outcome."""
    outcomes = [verdict.outcome for verdict in verdicts]
    return [(outcome, outcomes.count(outcome)) for outcome in Outcome]


class Thumbnail(NamedTuple):
    """A figure or table in the gallery. `anchor` is its place on the page; `picture` is a file,
    empty for a table."""

    title: str
    anchor: str
    picture: str


class Exhibit(NamedTuple):
    """A figure or table of the paper, its name there: what was drawn of it, and the outcomes of the
    claims that it states; where nothing was drawn, what it `lacks`, the command for that, and
    whether a sweep that draws it `was_run`."""

    name: str
    title: str
    thumbnails: Sequence[Thumbnail]
    outcomes: Sequence[tuple[Outcome, int]]
    lacks: str
    command: str
    was_run: bool


class Chapter(NamedTuple):
    """The part of a page about one scale, one sweep, or the trials of no sweep."""

    title: str
    verdicts: Sequence[Verdict]
    rules: Sequence[tuple[str, str]]
    """Labels of sweeps and the rules of their verdicts."""
    figures: Sequence[Drawn]
    tables: Sequence[Listing]
    gallery: Sequence[Exhibit] = ()

    @property
    def counts(self) -> list[tuple[Outcome, int]]:
        """How many claims there are of each outcome."""
        return tally(self.verdicts)

    @property
    def decided(self) -> list[Verdict]:
        """The verdicts that say something."""
        return [verdict for verdict in self.verdicts if verdict.outcome != Outcome.UNDECIDED]

    @property
    def undecided(self) -> list[Verdict]:
        """The verdicts that are folded away."""
        return [verdict for verdict in self.verdicts if verdict.outcome == Outcome.UNDECIDED]


class GapRow(NamedTuple):
    """What a delay costs one optimizer at the best setting of sync, in words."""

    optimizer: str
    delay: str
    feedback: str
    removed: str
    tax: str


class Opening(NamedTuple):
    """What the page of one sweep begins with: question, gaps, verdicts, rule."""

    question: str
    gaps: Sequence[GapRow]
    """None where the sweep has neither the delay nor Error Feedback."""
    verdicts: Sequence[Verdict]
    rule: str

    @property
    def claims(self) -> str:
        """The verdicts in a line, with the smallest and the largest false alarm rate."""
        counts = ", ".join(f"{n} {outcome}" for outcome, n in tally(self.verdicts) if n)
        rates = [
            verdict.audit.decided_if_placebo.share
            for verdict in self.verdicts
            if verdict.audit and verdict.outcome != Outcome.UNDECIDED
        ]
        alarm = ""
        if rates:
            ends = dict.fromkeys(f"{100 * rate:.1f}" for rate in (min(rates), max(rates)))
            alarm = f"; false alarm rate of a rule {' to '.join(ends)} %"
        return f"Claims of the paper that this sweep judges: {counts}{alarm}"


class Page(NamedTuple):
    """All that a page shows. `date`: when it was made, in words."""

    source: str
    date: str
    summary: str
    opening: Opening | None
    """None unless there is one sweep alone."""
    answer: StoreAnswer
    overviews: Sequence[Overview]
    taxes: Sequence[str]
    """The main token taxes of each chapter, in words."""
    lead: Drawn | None
    """The figure of the first screen."""
    running: Sequence[TrialNow]
    remarks: Sequence[str]
    chapters: Sequence[Chapter]
    """Their figures without the lead."""
    missing: Listing
    cost: str
    makers: Listing
    trials: Listing
    configs: Mapping[str, str]
    """The settings of each trial in words, by its id: shown for the one under the pointer."""


def with_lead(chapters: Sequence[Chapter]) -> tuple[Drawn | None, list[Chapter]]:
    """Return the first figure of the first chapter that has one, and the chapters without it."""
    for number, chapter in enumerate(chapters):
        if chapter.figures:
            lead, *other_figures = chapter.figures
            without_lead = chapter._replace(figures=other_figures)
            return lead, [*chapters[:number], without_lead, *chapters[number + 1 :]]
    return None, [*chapters]


def drawn(plot_shown: Plot, folder: str) -> Drawn:
    """Return a figure as the page has it."""
    return Drawn(plot_shown.figure, folder, panels(plot_shown))


def html(page: Page) -> str:
    """Return the document, which needs no network."""
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            stages=STAGES,
            microbatches=MICROBATCHES,
            all_parts=ALL_PARTS,
            most_seeds=MOST_SEEDS,
            most_remarks=30,
            most_plain=50,  # rows of a table where scripts are off; its CSV has all
            vega=_vega(),
            vendor_style="".join(map(_text, VENDOR_STYLES)),
            vendor_script="".join(map(_text, VENDOR_SCRIPTS)),
            licence=_text("vendor/LICENSE.txt"),
            style=usual_faces() + _text("style.css"),
            look=CONFIG,
            dark=_dark(page),
            script=_text("script.js"),
        )
    )


def tables_alone() -> tuple[str, str]:
    """Return the style sheet and the script of tables that can be sorted, with their licence, for
    another page than a report's."""
    licence = _text("vendor/LICENSE.txt")
    return f"/*\n{licence}*/\n{_text(VENDOR_STYLES[0])}", _text(VENDOR_SCRIPTS[0])


def _dark(page: Page) -> str:
    """Return the style sheet by which the charts are on a dark ground, on the screen alone."""
    figures = [figure for chapter in page.chapters for figure in chapter.figures]
    figures += [page.lead] if page.lead else []
    specs = [CONFIG, *(spec for figure in figures for spec in figure.specs)]
    rules = [
        f'.chart [{kind}="{color}"]{{{kind}:{on_dark(color)}}}'
        for color in sorted({color for spec in specs for color in colors_of(spec)})
        for kind in ("fill", "stroke")
    ]
    # A chart has its ground as a style of its own, which only `!important` overrules.
    rules.append(f".chart svg{{background:{on_dark(PAPER)}!important}}")
    return f"@media screen and (prefers-color-scheme:dark){{{''.join(rules)}}}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipegap.analysis.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    # Equal pages have equal bytes, and a page must stay small.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    return environment


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed."""
    code = "window.vegaEmbed = vegaEmbed;"
    made_of = ("bundle", version("vl-convert-python"), code)
    return kept(lambda: vl_convert.javascript_bundle(code).encode(), *made_of).decode()


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")
