"""The figures and tables of the paper in its order: what was drawn of each, and what was not."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pipegap.analysis.claims import Verdict
from pipegap.analysis.figures import FIGURES, Figure
from pipegap.analysis.report.facts import command
from pipegap.analysis.report.page.page import Exhibit, Thumbnail, tally
from pipegap.analysis.report.paper_tables import TABLES, Table

PAPER = (
    *("tables 1, 2", *(f"figure {number}" for number in range(2, 6)), "table 3", "table 4"),
    *(*(f"figure {number}" for number in range(6, 19)), "appendix A.9"),
    *("figure 19", "figure 20", "appendix F"),
)
"""What arXiv 2606.30634 shows, in its order."""
SHOWN: tuple[Figure | Table, ...] = (*FIGURES, *TABLES)
PLACE = re.compile(r"(table|figure)s?\b|(\d+) to (\d+)|(\d+)|\b([A-Z](?:\.\d+)?)(?= |$)")
UNFINISHED = "its sweep has no finished pair of trials yet"
UNANSWERED = "no trial has answered its tasks yet"


class Made(NamedTuple):
    """A figure or table that was drawn: its place on the page, and its file if it is a picture."""

    shown: Figure | Table
    anchor: str
    picture: str


def places(words: str) -> frozenset[str]:
    """Return what a source or a claim names of the paper, without what stands in brackets.

    `tables 1 to 3, figure 2 (360M)` names table 1, table 2, table 3 and figure 2; `A.9` is of the
    appendix.
    """
    found, kind = [], ""
    for of_kind, first, last, number, letter in PLACE.findall(words.partition("(")[0]):
        kind = of_kind or kind
        if letter:
            found.append(f"appendix {letter}")
        elif not of_kind:
            numbers = range(int(first or number), int(last or number) + 1)
            found += [f"{kind} {one}" for one in numbers]
    return frozenset(found)


def gallery(
    made: Sequence[Made],
    verdicts: Sequence[Verdict],
    sweeps: Collection[str],
    scale: str,
    store: str,
) -> list[Exhibit]:
    """Return an entry for each of PAPER, or none if nothing of it was drawn.

    Each has the outcomes of the claims that its place in the paper states. `sweeps` are those with
    a record at this scale; `store` is the word of a command that names the store.
    """
    exhibits = []
    for name in PAPER:
        here = places(name)
        known = [shown for shown in SHOWN if places(shown.source) & here]
        drawn = [each for each in made if places(each.shown.source) & here]
        shown = [Thumbnail(each.shown.title, each.anchor, each.picture) for each in drawn]
        stated = tally([one for one in verdicts if places(one.claim.place) & here])
        outcomes = [(outcome, count) for outcome, count in stated if count]
        lacks = ("", "") if shown else _lacks(known[0], sweeps, scale, store)
        exhibits.append(Exhibit(name, known[0].title, shown, outcomes, *lacks))
    return exhibits if any(each.shown for each in exhibits) else []


def _lacks(
    shown: Figure | Table, sweeps: Collection[str], scale: str, store: str
) -> tuple[str, str]:
    """Return in words why something was not drawn, and the command of its sweep."""
    if not shown.sweeps:
        return UNANSWERED, ""
    if {*shown.sweeps} & {*sweeps}:
        return UNFINISHED, ""
    words = [f"sweep={shown.sweeps[-1]}", f"scale={scale}"]
    return "its sweep was not run", command(words, store)
