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
from pipegap.analysis.figures.files import kept, usual_faces
from pipegap.analysis.figures.style import CONFIG
from pipegap.analysis.report.answer import MICROBATCHES, STAGES, StoreAnswer
from pipegap.analysis.report.facts import Overview, TrialNow
from pipegap.analysis.report.page.listing import Listing
from pipegap.analysis.table.names import prose

VENDOR_SCRIPTS = ("vendor/dataTables.min.js", "vendor/dataTables.buttons.min.js")
VENDOR_STYLES = ("vendor/dataTables.dataTables.min.css", "vendor/buttons.dataTables.min.css")
"""DataTables with its extension Buttons, as published on npm; each file names its version."""
MOST_REMARKS = 30
MOST_PLAIN = 50
"""Rows of a table where scripts are off; its CSV has all."""


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
        ends = (
            [*dict.fromkeys(f"{100 * rate:.1f}" for rate in (min(rates), max(rates)))]
            if rates
            else []
        )
        alarm = f"; false alarm rate of a rule {' to '.join(ends)} %" if ends else ""
        return f"Claims of the paper that this sweep judges: {counts}{alarm}"


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
            lead, *other_figures = chapter.figures
            return lead, [
                *chapters[:number],
                chapter._replace(figures=other_figures),
                *chapters[number + 1 :],
            ]
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
    figures_shown = [*lead, *(figure for chapter in page.chapters for figure in chapter.figures)]
    colors_found = {
        color for figure in figures_shown for spec in figure.specs for color in colors_of(spec)
    }
    rules = [
        f'.chart [{kind}="{color}"]{{{kind}:{on_dark(color)}}}'
        for color in sorted(colors_found.union(colors_of(CONFIG)))
        for kind in ("fill", "stroke")
    ]
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
