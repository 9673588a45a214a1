"""What a page holds, and how it becomes HTML."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from pipegap.analysis.claims import ALL_PARTS, Outcome, Verdict
from pipegap.analysis.claims.rule import MOST_SEEDS
from pipegap.analysis.figures import Figure, Plot, panels
from pipegap.analysis.figures.colors import PAPER, colors_of, on_dark
from pipegap.analysis.figures.curves import FEWEST
from pipegap.analysis.figures.files import kept, usual_faces
from pipegap.analysis.figures.style import CONFIG
from pipegap.analysis.report.answer import MICROBATCHES, STAGES, StoreAnswer
from pipegap.analysis.report.facts import Overview, TrialNow
from pipegap.analysis.report.page.listing import Listing
from pipegap.analysis.table.metrics import spaced
from pipegap.analysis.table.names import prose

VENDOR_SCRIPTS = ("vendor/dataTables.min.js", "vendor/dataTables.buttons.min.js")
VENDOR_STYLES = ("vendor/dataTables.dataTables.min.css", "vendor/buttons.dataTables.min.css")
"""DataTables with its extension Buttons, as published on npm; each file names its version."""
MOST_REMARKS = 30
MOST_PLAIN = 50
"""Rows of a table where scripts are off; its CSV has all."""
MOST_POINTS = 3_000
"""Rows of one data set of a figure on the page; its CSV, SVG and PNG have all."""
OVER_TRAINING = "tokens"
"""The column that rows of a curve over training have."""

Row = dict[str, Any]


class Drawn(NamedTuple):
    """A figure on the page. `folder` holds its files; it is empty or ends with a slash."""

    figure: Figure
    folder: str
    specs: Sequence[dict[str, Any]]
    num_points: int
    num_all: int

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
    claims that it states; where nothing was drawn, what it `lacks`, and the command for that."""

    name: str
    title: str
    shown: Sequence[Thumbnail]
    outcomes: Sequence[tuple[Outcome, int]]
    lacks: str
    command: str


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


class Opening(NamedTuple):
    """What the page of one sweep begins with: question, verdicts, rule."""

    question: str
    verdicts: Sequence[Verdict]
    rule: str


class Page(NamedTuple):
    """All that a page shows. `made`: when, in words."""

    source: str
    made: str
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
            lead, *rest = chapter.figures
            return lead, [
                *chapters[:number],
                chapter._replace(figures=rest),
                *chapters[number + 1 :],
            ]
    return None, [*chapters]


def drawn(shown: Plot, folder: str) -> Drawn:
    """Return a figure with as many points as a page can hold."""
    specs = panels(shown)
    num_points, num_all = thin(specs)
    return Drawn(shown.figure, folder, specs, num_points, num_all)


def thin(specs: list[dict[str, Any]]) -> tuple[int, int]:
    """Keep about MOST_POINTS rows in the data sets of a figure's panels together.

    The rows that stay are evenly spaced, with the first and the last; of a curve these are FEWEST
    or more. Means and intervals are rows of their own, made of all points. Returns how many rows
    there are now, and how many there were.
    """
    sizes = {name: len(rows) for spec in specs for name, rows in spec["datasets"].items()}
    before = sum(sizes.values())
    share = min(1.0, MOST_POINTS / max(1, before))
    for spec in specs:
        spec["datasets"] = {
            name: [row for curve in _curves(rows) for row in spaced(curve, _most(curve, share))]
            for name, rows in spec["datasets"].items()
        }
    return sum(len(rows) for spec in specs for rows in spec["datasets"].values()), before


def _curves(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each curve over training; other rows stay together."""
    curves: dict[object, list[Row]] = {}
    for row in rows:
        curve = (row.get("trial_id"), row.get("series")) if OVER_TRAINING in row else None
        curves.setdefault(curve, []).append(row)
    return [*curves.values()]


def _most(rows: Sequence[Row], share: float) -> int:
    """Return how many rows stay of a share."""
    least = FEWEST if OVER_TRAINING in rows[0] else 2
    return max(least, int(share * len(rows)))


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
            most_remarks=MOST_REMARKS,
            most_plain=MOST_PLAIN,
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


def _dark(page: Page) -> str:
    """Return the style sheet by which the charts are on a dark ground, on the screen alone."""
    lead = [page.lead] if page.lead else []
    shown = [*lead, *(figure for chapter in page.chapters for figure in chapter.figures)]
    found = {color for figure in shown for spec in figure.specs for color in colors_of(spec)}
    rules = [
        f'.chart [{kind}="{color}"]{{{kind}:{on_dark(color)}}}'
        for color in sorted(found.union(colors_of(CONFIG)))
        for kind in ("fill", "stroke")
    ]
    rules.append(f".chart svg{{background:{on_dark(PAPER)}!important}}")
    return f"@media screen and (prefers-color-scheme:dark){{{''.join(rules)}}}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("pipegap.analysis.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["prose"] = prose
    made.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    return made


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed."""
    code = "window.vegaEmbed = vegaEmbed;"
    made_of = ("bundle", version("vl-convert-python"), code)
    return kept(lambda: vl_convert.javascript_bundle(code).encode(), *made_of).decode()


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")
