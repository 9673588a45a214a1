"""What a report holds: the figures, tables and verdicts of each of its scopes, written as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.claims import CLAIMS, Verdict, judged, not_run
from analysis.figures import FIGURES, Figure, save
from analysis.figures.figure import Chart
from analysis.page import Chapter, Drawn, Listing, drawn, listing
from analysis.paper_tables import TABLES
from analysis.records import Record
from analysis.scopes import Scope, View

SHOWN = frozenset(sweep for figure in FIGURES for sweep in figure.sweeps)
"""The sweeps that a figure is of."""
NAMED = sorted(
    SHOWN.union(*(table.sweeps for table in TABLES), *(claim.sweeps for claim in CLAIMS))
)
"""The sweeps that figures, tables or claims are of."""


def write_chapter(scope: Scope, out: Path) -> Chapter:
    """Writes the figures and tables of a scope to its folder in `out`."""
    folder = out / scope.folder
    folder.mkdir(parents=True, exist_ok=True)
    return Chapter(
        scope.title,
        verdicts(scope),
        [(record.label, record.verdict) for record in scope.records],
        [*_figures(scope, folder)],
        [*_tables(scope, folder)],
    )


def verdicts(scope: Scope) -> list[Verdict]:
    """On each claim, at a scale that has a record; of one sweep alone on its own claims."""
    if not scope.scale:
        return []
    found = []
    for claim in CLAIMS:
        view = scope.of_sweeps(claim.sweeps)
        if view is not None:
            found.append(judged(claim, *view))
        elif not scope.general:
            found.append(not_run(claim, scope.scale))
    return found


def _figures(scope: Scope, folder: Path) -> Iterator[Drawn]:
    """Of a sweep that no figure names, those of any trials."""
    own = [record for record in scope.records if record.sweep not in SHOWN]
    for figure in FIGURES:
        for sweep, view in _views(scope, figure.sweeps, own):
            data = figure.data(*view)
            if not data.empty:
                named = _of_sweep(figure, sweep, figure.charts(data))
                save(named, data, folder)
                yield drawn(named, data, _prefix(scope))


def _of_sweep(figure: Figure, sweep: str, charts: Sequence[Chart]) -> Figure:
    """With charts that are made once, for the files and the page."""
    made = figure._replace(charts=lambda data: charts)
    if not sweep:
        return made
    return made._replace(name=f"{figure.name}_{sweep}", title=f"{figure.title}: {sweep}")


def _tables(scope: Scope, folder: Path) -> Iterator[Listing]:
    for table in TABLES:
        for sweep, view in _views(scope, table.sweeps, scope.records):
            data = table.data(*view, scope.scale)
            if not data.empty:
                file = f"{table.name}_{sweep}.csv" if sweep else f"{table.name}.csv"
                data.to_csv(folder / file, index=False)
                title = f"{table.title}: {sweep}" if sweep else table.title
                title += f" ({table.source})" if table.source else ""
                yield listing(title, data, table.notes(scope.scale), _prefix(scope) + file)


def _views(
    scope: Scope, sweeps: Sequence[str], records: Sequence[Record]
) -> Iterator[tuple[str, View]]:
    """What an item is of, with the name of a sweep where it is of that alone.

    An item of any trials is made of each of `records` by itself, whose points differ in little.
    """
    if sweeps:
        view = scope.of_sweeps(sweeps)
        found = [("", view)] if view is not None else []
    elif scope.general:
        found = [("", scope.whole())]
    else:
        found = [(record.sweep, scope.of_records([record])) for record in records]
    yield from ((sweep, view) for sweep, view in found if not view.trials.empty)


def _prefix(scope: Scope) -> str:
    return f"{scope.folder}/" if scope.folder else ""
