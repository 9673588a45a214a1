"""What a page holds, and how it becomes HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis.claims import ALL_PARTS, Outcome, Verdict
from analysis.figures import Figure, panels
from analysis.page.listing import Listing
from analysis.page.thin import thin

RELOAD = 10
"""Seconds after which a page that is watched loads itself again."""


MOST_REMARKS = 30


class Drawn(NamedTuple):
    """A figure on the page; `folder` of its files, with a slash behind it or empty."""

    figure: Figure
    folder: str
    specs: Sequence[dict[str, Any]]
    num_points: int
    num_all: int


class Chapter(NamedTuple):
    """What a page says of a scale, of a sweep, or of the trials of no sweep."""

    title: str
    verdicts: Sequence[Verdict]
    rules: Sequence[tuple[str, str]]
    """Labels of sweeps and the rules of their verdicts."""
    figures: Sequence[Drawn]
    tables: Sequence[Listing]

    @property
    def counts(self) -> list[tuple[Outcome, int]]:
        """How many claims there are of each outcome."""
        found = [verdict.outcome for verdict in self.verdicts]
        return [(outcome, found.count(outcome)) for outcome in Outcome]

    @property
    def decided(self) -> bool:
        """Whether there is a verdict to read."""
        return any(verdict.outcome != Outcome.UNDECIDED for verdict in self.verdicts)


class Page(NamedTuple):
    """`made`: when, in words. `watched`: whether it will be made again."""

    source: str
    made: str
    summary: str
    remarks: Sequence[str]
    chapters: Sequence[Chapter]
    missing: Listing
    cost: str
    makers: Listing
    provenance: Listing
    configs: Mapping[str, str]
    """What is said of a trial under the pointer, by its id."""


def drawn(figure: Figure, data: Any, folder: str) -> Drawn:
    """A figure of `data`, with as many of its points as a page can hold."""
    specs = panels(figure, data)
    num_points, num_all = thin(specs)
    return Drawn(figure, folder, specs, num_points, num_all)


def html(page: Page, *, watched: bool) -> str:
    """A document that needs no other file and no network."""
    environment = Environment(
        loader=PackageLoader("analysis", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=page,
        reload=RELOAD if watched else None,
        all_parts=ALL_PARTS,
        most_remarks=MOST_REMARKS,
        vega=_vega(),
        style=_text("style.css"),
        script=_text("script.js"),
    )


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
