"""The chapters of a report: figures, tables and verdicts of each scope, written as files."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from pipegap.analysis.claims import CLAIMS, Verdict, audited, judged, not_run
from pipegap.analysis.figures import FIGURES, Figure, Plot, plot, save
from pipegap.analysis.report.missing import command
from pipegap.analysis.report.page.listing import Listing, listed, write_latex
from pipegap.analysis.report.page.page import Chapter, drawn
from pipegap.analysis.report.paper_tables import TABLES, Table
from pipegap.analysis.report.scopes import Scope, StoreView
from pipegap.analysis.table import names
from pipegap.trainer.base.children import Worker
from pipegap.trainer.store.records import Record

WITH_FIGURE = frozenset(sweep for figure in FIGURES for sweep in figure.sweeps)
"""The sweeps that have a figure of their own."""
EXPECTED = sorted(
    WITH_FIGURE.union(*(table.sweeps for table in TABLES), *(claim.sweeps for claim in CLAIMS))
)
"""The sweeps that figures, tables or claims need."""
RATES = ("decided_if_placebo", "decided")
"""Rates of an audit (`analysis.claims.rates`), each with the ends of its 95 % interval."""
OF_PART = [
    *("scale", "claim", "place", "verdict", "part", "counts", "says", "numbers", "why"),
    *(f"{name}{end}" for name in RATES for end in ("", "_low", "_high")),
    *("seeds_to_decide", "rule"),
]


def write_chapter(scope: Scope, out: Path, store: str, worker: Worker) -> Chapter:
    """Write the figures and tables of a scope to its folder in `out`, and return its chapter.

    Pictures and LaTeX are there when `worker` ends. `store` is the word of a command that names the
    store.
    """
    folder = out / scope.folder
    folder.mkdir(parents=True, exist_ok=True)
    figures = []  # first: pictures are drawn meanwhile
    for shown in figures_of(scope, [figure.name for figure in FIGURES]):
        save(shown, folder, worker)
        figures.append(drawn(shown, scope.prefix))
    return Chapter(
        scope.title,
        verdicts(scope, store),
        [(record.label, record.verdict) for record in scope.records if record.verdict],
        figures,
        [*_tables(scope, out, worker)],
    )


def verdicts(scope: Scope, store: str) -> list[Verdict]:
    """Return the verdict on each claim at a scale that has a record.

    A scope of one sweep has verdicts on its own claims alone.
    """
    if not scope.scale:
        return []
    made = []
    for claim in CLAIMS:
        view = scope.of_sweeps(claim.sweeps)
        if view is not None:
            made.append(audited(judged(claim, view.trials)))
        elif not scope.general:
            words = [f"sweep={claim.sweeps[0]}", f"scale={scope.scale}"]
            made.append(not_run(claim, command(words, store)))
    return made


def figures_of(scope: Scope, names: Collection[str]) -> Iterator[Plot]:
    """Draw the figures of these names that show something of a scope.

    Figures of any trials are drawn for the sweeps without a figure of their own.
    """
    own = [record for record in scope.records if record.sweep not in WITH_FIGURE]
    for figure in FIGURES:
        for sweep, view in _views(scope, figure, own) if figure.name in names else ():
            data = figure.data(*view)
            if not data.empty:
                name, title = f"{figure.name}_{sweep}", f"{figure.title}: {sweep}"
                yield plot(figure._replace(name=name, title=title) if sweep else figure, data)


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
                arms = names.arms(view.trials)
                listing = listed(
                    title, data, table.note_at(scope.scale), scope.prefix + file, arms=arms
                )
                worker.do(write_latex, listing, out)
                yield listing


def _views(
    scope: Scope, shown: Figure | Table, records: Sequence[Record]
) -> Iterator[tuple[str, StoreView]]:
    """Yield the trials that a figure or table shows, with the name of the sweep if it is one alone.

    A figure or table of any trials is made for each of `records`, since the points of a sweep
    differ in little, unless it shows them together.
    """
    if shown.sweeps:
        view = scope.of_sweeps(shown.sweeps)
        views = [("", view)] if view is not None else []
    elif shown.together:
        views = [("", scope.asked_for())]
    elif scope.general:
        views = [("", scope.whole())]
    else:
        views = [(record.sweep, scope.of_records([record])) for record in records]
    yield from ((sweep, view) for sweep, view in views if not view.trials.empty)


def claims_table(chapters: Sequence[Chapter]) -> pd.DataFrame:
    """Return one row per part of a claim and scale; columns: OF_PART.

    `counts` says whether the part judges the paper, as parts of other optimizers do not. The rates
    are those of the claim. `seeds_to_decide` is missing where more than were tried are needed.
    """
    rows = [
        {"scale": chapter.title, **row}
        for chapter in chapters
        for verdict in chapter.verdicts
        for row in _parts_of(verdict)
    ]
    return pd.DataFrame(rows, columns=OF_PART).astype({"seeds_to_decide": "Int64"})


def _parts_of(verdict: Verdict) -> Iterator[dict[str, object]]:
    claim = verdict.claim
    of_claim = {"claim": claim.statement, "place": claim.place, "rule": claim.rule}
    for counts, parts in ((True, verdict.parts), (False, verdict.others)):
        for part in parts:
            numbers = "; ".join(map(str, part.numbers))
            of_part = {"part": part.what, "counts": counts, "says": part.outcome, "why": part.why}
            rates = {"verdict": verdict.outcome, **_rates(verdict)}
            yield {**of_claim, **of_part, "numbers": numbers, **rates}


def _rates(verdict: Verdict) -> dict[str, object]:
    if verdict.audit is None:
        return {}
    rates: dict[str, object] = {"seeds_to_decide": verdict.audit.seeds}
    for name in RATES:
        rate = getattr(verdict.audit, name)
        low, high = rate.interval
        rates |= {name: rate.share, f"{name}_low": low, f"{name}_high": high}
    return rates
