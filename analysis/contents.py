"""What a report holds: the figures, tables and verdicts of each of its scopes, written as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from analysis.claims import CLAIMS, Verdict, judged, not_run
from analysis.figures import FIGURES, Figure, save
from analysis.page import Chapter, Drawn, Listing, drawn, listing
from analysis.paper_tables import TABLES, Table
from analysis.scopes import Scope, View

NAMED = tuple(
    dict.fromkeys(sweep for item in (*FIGURES, *TABLES, *CLAIMS) for sweep in item.sweeps)
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
    for figure in FIGURES:
        view = _view(scope, figure)
        if view is None:
            continue
        data = figure.data(*view)
        if not data.empty:
            save(figure, data, folder)
            yield drawn(figure, data, _prefix(scope))


def _view(scope: Scope, figure: Figure) -> View | None:
    if figure.sweeps:
        return scope.of_sweeps(figure.sweeps)
    return scope.whole() if scope.general else None


def _tables(scope: Scope, folder: Path) -> Iterator[Listing]:
    for table in TABLES:
        for suffix, view in _views(scope, table):
            data = table.data(*view, scope.scale)
            if not data.empty:
                file = f"{table.name}{suffix}.csv"
                data.to_csv(folder / file, index=False)
                name = f"{table.title}{suffix.replace('_', ': ')}"
                title = f"{name} ({table.source})" if table.source else name
                yield listing(title, data, table.notes(scope.scale), _prefix(scope) + file)


def _views(scope: Scope, table: Table) -> Iterator[tuple[str, View]]:
    """A table of any trials is made of each sweep by itself: there its points differ in little."""
    if table.sweeps:
        view = scope.of_sweeps(table.sweeps)
        yield from [("", view)] if view is not None else []
    elif scope.general:
        yield "", scope.whole()
    else:
        yield from ((f"_{record.sweep}", scope.of_records([record])) for record in scope.records)


def _prefix(scope: Scope) -> str:
    return f"{scope.folder}/" if scope.folder else ""
