"""The chapters of a report: figures, tables and verdicts of each scope, written as files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from analysis.claims import CLAIMS, Verdict, audited, judged, not_run
from analysis.figures import FIGURES, Figure, Plot, plot, save
from analysis.report.missing import command
from analysis.report.page.listing import Listing, listed, write_latex
from analysis.report.page.page import Chapter, Drawn, drawn
from analysis.report.paper_tables import TABLES, Table
from analysis.report.scopes import Scope, View
from analysis.table import names
from analysis.table.records import Record
from trainer.base.children import Worker

WITH_FIGURE = frozenset(sweep for figure in FIGURES for sweep in figure.sweeps)
"""The sweeps that have a figure of their own."""
EXPECTED = sorted(
    WITH_FIGURE.union(*(table.sweeps for table in TABLES), *(claim.sweeps for claim in CLAIMS))
)
"""The sweeps that figures, tables or claims need."""


def write_chapter(scope: Scope, out: Path, results: str, worker: Worker) -> Chapter:
    """Writes the figures and tables of a scope of the store `results` to its folder in `out`;
    pictures and LaTeX are there when `worker` ends."""
    folder = out / scope.folder
    folder.mkdir(parents=True, exist_ok=True)
    figures = [*_figures(scope, folder, worker)]  # first: pictures are drawn meanwhile
    return Chapter(
        scope.title,
        verdicts(scope, results),
        [(record.label, record.verdict) for record in scope.records if record.verdict],
        figures,
        [*_tables(scope, out, worker)],
    )


def verdicts(scope: Scope, results: str) -> list[Verdict]:
    """The verdict on each claim at a scale that has a record; of one sweep, on its own claims."""
    if not scope.scale:
        return []
    found = []
    for claim in CLAIMS:
        view = scope.of_sweeps(claim.sweeps)
        if view is not None:
            found.append(audited(judged(claim, view.trials)))
        elif not scope.general:
            words = [f"sweep={claim.sweeps[0]}", f"scale={scope.scale}"]
            found.append(not_run(claim, command(words, results)))
    return found


def _figures(scope: Scope, folder: Path, worker: Worker) -> Iterator[Drawn]:
    for shown in figures_of(scope, [figure.name for figure in FIGURES]):
        save(shown, folder, worker)
        yield drawn(shown, _prefix(scope))


def figures_of(scope: Scope, names: Collection[str]) -> Iterator[Plot]:
    """The figures of these names that show something of a scope, drawn.

    Figures of any trials are drawn for the sweeps without a figure of their own.
    """
    own = [record for record in scope.records if record.sweep not in WITH_FIGURE]
    for figure in FIGURES:
        for sweep, view in _views(scope, figure, own) if figure.name in names else ():
            data = figure.data(*view)
            if not data.empty:
                yield plot(_of_sweep(figure, sweep) if sweep else figure, data)


def _of_sweep(figure: Figure, sweep: str) -> Figure:
    """The figure named after the sweep."""
    return figure._replace(name=f"{figure.name}_{sweep}", title=f"{figure.title}: {sweep}")


def _tables(scope: Scope, out: Path, worker: Worker) -> Iterator[Listing]:
    folder = out / scope.folder
    for table in TABLES:
        for sweep, view in _views(scope, table, scope.records):
            data = table.data(*view, scope.scale)
            if not data.empty:
                file = f"{table.name}_{sweep}.csv" if sweep else f"{table.name}.csv"
                data.to_csv(folder / file, index=False)
                title = f"{table.title}: {sweep}" if sweep else table.title
                title += f" ({table.source})" if table.source else ""
                note, arms = table.notes(scope.scale), names.arms(view.trials)
                listing = listed(title, data, note, _prefix(scope) + file, arms=arms)
                worker.do(write_latex, listing, out)
                yield listing


def _views(
    scope: Scope, shown: Figure | Table, records: Sequence[Record]
) -> Iterator[tuple[str, View]]:
    """The trials that a figure or table shows, with the name of the sweep where it shows one alone.

    One of any trials is made for each of `records`, since the points of a sweep differ in little,
    unless it shows them together.
    """
    if shown.sweeps:
        view = scope.of_sweeps(shown.sweeps)
        found = [("", view)] if view is not None else []
    elif shown.together:
        found = [("", scope.asked_for())]
    elif scope.general:
        found = [("", scope.whole())]
    else:
        found = [(record.sweep, scope.of_records([record])) for record in records]
    yield from ((sweep, view) for sweep, view in found if not view.trials.empty)


def _prefix(scope: Scope) -> str:
    return f"{scope.folder}/" if scope.folder else ""
