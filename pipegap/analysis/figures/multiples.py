"""The panels of a figure: of many series each has one of its own, on the axes of all."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from pipegap.analysis.figures.rows import PANEL, in_lines

MOST_CURVES = 5
"""Series in one panel."""
BESIDE = ("sync", "delay")
"""Arms that each of several panels shows: the others are compared with them."""


class Panel(NamedTuple):
    """`rows` are those of the panel, `same_axes` those of all panels that have its axes."""

    title: alt.TitleParams
    rows: pd.DataFrame
    same_axes: pd.DataFrame

    def of(self, rows: pd.DataFrame, more: str = "") -> "Panel":
        """Return the panel of these rows, with `more` words in its name."""
        title = alt.TitleParams(f"{self.title['text']}{more}", subtitle=self.title["subtitle"])
        return self._replace(title=title, rows=rows)


def panels_of(
    data: pd.DataFrame, order: Iterable[str] = (), beside: Collection[str] | None = None
) -> Iterator[Panel]:
    """Yield the panels, in the order of the rows.

    One with more than MOST_CURVES of the series in `order` becomes several. Each has one series
    beside those of `beside`, by default those of BESIDE. Series of several `size` are first parted
    by it.
    """
    for (panel, subtitle), rows in data.groupby(PANEL, sort=False):
        for name, part in _parted(rows, [*order], beside):
            first, *subtitles = filter(None, [name, str(panel)])
            yield Panel(titled(first, in_lines([*subtitles, str(subtitle)])), part, rows)


def _parted(
    rows: pd.DataFrame, order: Sequence[str], beside: Collection[str] | None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each panel, and what tells it from the others."""
    if not order or rows["series"].nunique() <= MOST_CURVES:
        yield "", rows
    elif "size" in rows and rows["size"].nunique() > 1:
        for _, of_size in rows.groupby("size"):
            first, *other_words = (name.split() for name in of_size["series"].unique())
            name = " ".join(word for word in first if all(word in words for words in other_words))
            for more, part in _parted(of_size, order, beside):
                yield more or name, part
    else:
        of_each = _beside(rows) if beside is None else beside
        for name in (name for name in order if name not in of_each):
            if (is_size := rows["series"] == name).any():
                yield name, rows[is_size | rows["series"].isin(of_each)]


def _beside(rows: pd.DataFrame) -> frozenset[str]:
    """Return the series of BESIDE, unless they alone fill a panel, as optimizers of one arm do."""
    of_others = rows.loc[~rows["arm"].isin(BESIDE), "series"]
    series_here = frozenset(rows["series"]) - frozenset(of_others)
    return series_here if len(series_here) < MOST_CURVES else frozenset()


def titled(name: str, *subtitles: str) -> alt.TitleParams:
    """Return the title of a panel: its name, and below it in small letters the `subtitles`."""
    lines = [line for subtitle in subtitles for line in subtitle.splitlines()]
    return alt.TitleParams(name, subtitle=lines or alt.Undefined)
