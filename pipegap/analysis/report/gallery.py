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
    place_names, kind = [], ""
    for of_kind, first, last, number, letter in PLACE.findall(words.partition("(")[0]):
        kind = of_kind or kind
        if letter:
            place_names.append(f"appendix {letter}")
        elif not of_kind:
            numbers = range(int(first or number), int(last or number) + 1)
            place_names += [f"{kind} {place_number}" for place_number in numbers]
    return frozenset(place_names)


def gallery(
    exhibits_made: Sequence[Made],
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
        places_here = places(name)
        known_exhibits = [
            thumbnails for thumbnails in SHOWN if places(thumbnails.source) & places_here
        ]
        drawn = [exhibit for exhibit in exhibits_made if places(exhibit.shown.source) & places_here]
        thumbnails = [
            Thumbnail(exhibit.shown.title, exhibit.anchor, exhibit.picture) for exhibit in drawn
        ]
        stated = tally(
            [verdict for verdict in verdicts if places(verdict.claim.place) & places_here]
        )
        outcomes = [(outcome, count) for outcome, count in stated if count]
        lacks = ("", "") if thumbnails else _lacks(known_exhibits[0], sweeps, scale, store)
        exhibits.append(Exhibit(name, known_exhibits[0].title, thumbnails, outcomes, *lacks))
    return exhibits if any(exhibit.shown for exhibit in exhibits) else []


def _lacks(
    exhibit: Figure | Table, sweeps: Collection[str], scale: str, store: str
) -> tuple[str, str]:
    """Return in words why something was not drawn, and the command of its sweep."""
    if not exhibit.sweeps:
        return UNANSWERED, ""
    if {*exhibit.sweeps} & {*sweeps}:
        return UNFINISHED, ""
    words = [f"sweep={exhibit.sweeps[-1]}", f"scale={scale}"]
    return "its sweep was not run", command(words, store)
