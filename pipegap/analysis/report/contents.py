"""The chapters of a report, and the gallery of the paper's figures and tables."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from pipegap.analysis.advice.verdict import TINY
from pipegap.analysis.claims import CLAIMS, Verdict, audited, deciding, judged, not_run
from pipegap.analysis.figures import FIGURES, Figure, Plot, plot, save
from pipegap.analysis.report.facts import command
from pipegap.analysis.report.page.page import (
    Chapter,
    Exhibit,
    Listing,
    Thumbnail,
    drawn,
    listed,
    tally,
    write_latex,
)
from pipegap.analysis.report.paper_tables import TABLES, Table
from pipegap.analysis.statistics.gaps import gaps
from pipegap.analysis.statistics.pairs import side_by_side
from pipegap.analysis.statistics.text import notes
from pipegap.analysis.table import names
from pipegap.analysis.table.points import BESIDE, by_loss, ranked
from pipegap.trainer.base.children import Worker
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.records import Record

# The figures and tables of the paper in its order: what was drawn of each, and what was not.

PAPER = (
    *("tables 1, 2", *(f"figure {number}" for number in range(2, 6)), "table 3", "table 4"),
    *(*(f"figure {number}" for number in range(6, 19)), "appendix A.9"),
    *("figure 19", "figure 20", "appendix F"),
)
"""What arXiv 2606.30634 shows, in its order."""
EXHIBITS: tuple[Figure | Table, ...] = (*FIGURES, *TABLES)
PLACE = re.compile(r"(table|figure)s?\b|(\d+) to (\d+)|(\d+)|\b([A-Z](?:\.\d+)?)(?= |$)")
UNFINISHED = "its sweep has no finished pair of trials yet"


def places(words: str) -> frozenset[str]:
    """Return what a source or a claim names of the paper, without what stands in brackets.

    `tables 1 to 3, figure 2 (360M)` names table 1, table 2, table 3 and figure 2; `A.9` is of the
    appendix.
    """
    place_names, kind = [], ""
    # A number is of the kind that was named last: `tables 1, 2` names table 2 too.
    for of_kind, first, last, number, letter in PLACE.findall(words.partition("(")[0]):
        kind = of_kind or kind
        if letter:
            place_names.append(f"appendix {letter}")
        elif not of_kind:
            numbers = range(int(first or number), int(last or number) + 1)
            place_names += [f"{kind} {place_number}" for place_number in numbers]
    return frozenset(place_names)


def gallery(
    thumbnails: Sequence[tuple[str, Thumbnail]],
    verdicts: Sequence[Verdict],
    sweeps: Collection[str],
    scale: str,
    store: str,
) -> list[Exhibit]:
    """Return an entry for each of PAPER, or none if nothing of it was drawn.

    `thumbnails`: what was drawn, each after the words that say where the paper has it. Each entry
    has the outcomes of the claims that its place in the paper states. `sweeps` are those with a
    record at this scale; `store` is the word of a command that names the store.
    """
    exhibits = []
    for name in PAPER:
        entry = places(name)
        # One that could be drawn: it says what the paper shows here, and which sweep draws it.
        first = next(exhibit for exhibit in EXHIBITS if places(exhibit.source) & entry)
        drawn_here = [thumbnail for source, thumbnail in thumbnails if places(source) & entry]
        stated = tally([verdict for verdict in verdicts if places(verdict.claim.place) & entry])
        outcomes = [(outcome, count) for outcome, count in stated if count]
        lacks = ("", "") if drawn_here else _lacks(first, sweeps, scale, store)
        was_run = bool(drawn_here) or lacks[0] == UNFINISHED
        exhibits.append(Exhibit(name, first.title, drawn_here, outcomes, *lacks, was_run))
    return exhibits if any(exhibit.thumbnails for exhibit in exhibits) else []


def _lacks(
    exhibit: Figure | Table, sweeps: Collection[str], scale: str, store: str
) -> tuple[str, str]:
    """Return in words why something was not drawn, and the command of its sweep."""
    if not exhibit.sweeps:
        return "no trial has answered its tasks yet", ""
    if {*exhibit.sweeps} & {*sweeps}:
        return UNFINISHED, ""
    words = [f"sweep={exhibit.sweeps[-1]}", f"scale={scale}"]
    return "its sweep was not run", command(words, store)


# The chapters of a report: the trials of each scale, as the records of sweeps list them, and
# their figures, tables and verdicts, written as files.


class StoreView(NamedTuple):
    """Trials that are compared, and their gaps."""

    trials: pd.DataFrame
    gaps: pd.DataFrame


@dataclass
class StoreViews:
    """Views of a store. Each is made once, since many figures show the same trials."""

    store: pd.DataFrame
    records: Sequence[Record]
    """What each sweep asked for."""
    _views: dict[tuple[frozenset[str], tuple[str, ...]], StoreView] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A view has a part of the trials; whatever ran beside them in the store shared a machine.
        self.store = self.store.assign(**{BESIDE: side_by_side(self.store)})

    def of(self, trial_ids: frozenset[str], order: tuple[str, ...] = ()) -> StoreView:
        """Return the view of the trials that the store has of these, its optimizers in `order`."""
        ids_here = trial_ids & self._ids
        # With the order: two scopes may show the same trials, each by its own losses.
        if (key := (ids_here, order)) not in self._views:
            trials = self.store[self.store["trial_id"].isin(ids_here)]
            trials = ranked(trials, order) if order else trials
            self._views[key] = StoreView(trials, gaps(trials))
        return self._views[key]

    def whole(self) -> StoreView:
        """Return the view of the whole store."""
        return self.of(self._ids)

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(self.store["trial_id"])


@dataclass(frozen=True)
class Scope:
    """A part of a report: the trials `trial_ids`, and those that `records` compare.

    `folder` is the folder of its files within that of the report. `scale` is empty without a
    record.
    """

    title: str
    folder: str
    trial_ids: frozenset[str]
    views: StoreViews
    records: Sequence[Record] = ()
    scale: str = ""
    general: bool = True
    """Whether figures and tables of any trials show all of its trials; else one sweep each."""

    @property
    def prefix(self) -> str:
        """The folder, with a slash unless it is that of the report."""
        return f"{self.folder}/" if self.folder else ""

    def of_sweeps(self, sweeps: Collection[str]) -> StoreView | None:
        """Return the trials that these sweeps compare, taken together; None without a record."""
        matching = [record for record in self.records if record.sweep in sweeps]
        return self.of_records(matching) if matching else None

    def of_records(self, records: Sequence[Record]) -> StoreView:
        """Return the trials that these sweeps compare."""
        return self.views.of(_compared(records), self.order)

    def whole(self) -> StoreView:
        """Return all trials of the scope."""
        return self.views.of(self.trial_ids, self.order)

    def asked_for(self) -> StoreView:
        """Return all trials of the scope, and the others that its sweeps asked for.

        Among these are the longer runs that no table compares and that tell a tax.
        """
        return self.views.of(self._asked_ids, self.order)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The optimizers by the losses of all its trials: one order for each of its views."""
        store = self.views.store
        return tuple(by_loss(store[store["trial_id"].isin(self._asked_ids)]))

    @property
    def _asked_ids(self) -> frozenset[str]:
        return self.trial_ids.union(*(record.trials for record in self.records))

    def remarks(self) -> Iterator[str]:
        """Yield remarks on each sweep by itself: it does not need the arms and seeds of others."""
        for record in self.records:
            view = self.of_records([record])
            remarks = [*(notes(*view) if len(view.trials) else []), *record.remarks]
            yield from (f"{record.label}: {remark}" for remark in remarks)
        # Beside sweeps the trials of none are tries, which owe nobody a pair.
        if not self.records:
            yield from notes(*self.whole(), asks_pairs=not self.views.records)


def scopes(views: StoreViews, label: str | None = None) -> list[Scope]:
    """Return one scope per scale, the costliest first, and one for the trials of no record.

    Trials that were compiled in another way have a scope of their own.

    With `label` there is one scope, of the trials that this sweep compares, for its own figures and
    those of any trials. Raises BadInput for a `label` without a record.
    """
    if label is not None:
        record = _of_label(views.records, label)
        return [Scope(label, "", record.compared, views, [record], record.scale)]
    ids_of_sweeps = frozenset().union(*(record.trials for record in views.records))
    remaining_ids = frozenset(views.store["trial_id"]) - ids_of_sweeps
    no_sweep = [Scope("Trials of no sweep", "", remaining_ids, views)] if remaining_ids else []
    return [*_by_scale(views), *no_sweep]


def _of_label(records: Sequence[Record], label: str) -> Record:
    for record in records:
        if record.label == label:
            return record
    labels = ", ".join(record.label for record in records) or "none"
    raise BadInput("label", label, f"must be a sweep that left a record in the store ({labels})")


def _by_scale(views: StoreViews) -> Iterator[Scope]:
    by_conditions: dict[str, list[Record]] = {}
    for record in views.records:
        by_conditions.setdefault(record.conditions, []).append(record)
    for title, rows in sorted(by_conditions.items(), key=lambda item: -_cost(item[1])):
        # The title may have spaces and `=`, as of trials that were compiled otherwise.
        folder = re.sub(r"[ =]", "-", title)
        yield Scope(title, folder, _compared(rows), views, rows, rows[0].scale, general=False)


def _compared(records: Sequence[Record]) -> frozenset[str]:
    return frozenset().union(*(record.compared for record in records))


def _cost(records: Sequence[Record]) -> float:
    """Return the floating-point operations of the largest trial, or else its tokens."""
    trials = [trial for record in records for trial in record.trials.values()]
    return max((trial.flops or float(trial.tokens or 0) for trial in trials), default=0.0)


WITH_FIGURE = frozenset(sweep for figure in FIGURES for sweep in figure.sweeps)
"""The sweeps that have a figure of their own."""
EXPECTED = sorted(
    WITH_FIGURE.union(*(table.sweeps for table in TABLES), *(claim.sweeps for claim in CLAIMS))
)
"""The sweeps that figures, tables or claims need."""
RATES = ("decided_if_placebo", "decided")
"""Rates of an audit (`claims.rule.Audit`), each with the ends of its 95 % interval."""
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
    for exhibit in figures_of(scope, [figure.name for figure in FIGURES]):
        save(exhibit, folder, worker)
        figures.append(drawn(exhibit, scope.prefix))
    judged_here, tables = verdicts(scope, store), [*_tables(scope, out, worker)]
    entries = [
        (at.figure.source, Thumbnail(at.figure.title, f"figure-{at.name}", f"{at.name}.svg"))
        for at in figures
    ]
    entries += [(at.source, Thumbnail(at.title, listing.name, "")) for at, listing in tables]
    sweeps = {record.sweep for record in scope.records}
    return Chapter(
        scope.title,
        judged_here,
        [(record.label, record.verdict) for record in scope.records if record.verdict],
        figures,
        [listing for _, listing in tables],
        gallery(entries, judged_here, sweeps, scope.scale, store) if scope.records else (),
    )


def verdicts(scope: Scope, store: str) -> list[Verdict]:
    """Return the verdict on each claim at a scale that has a record.

    A scope of one sweep has verdicts on its own claims alone.
    """
    if not scope.scale:
        return []
    verdicts = []
    decides = {"scale": scope.scale}
    if deciding(scope.whole().trials).empty:
        decides |= TINY
    for claim in CLAIMS:
        view = scope.of_sweeps(claim.sweeps)
        if view is not None:
            verdicts.append(audited(judged(claim, view.trials)))
        elif not scope.general:
            words = [f"sweep={claim.sweeps[0]}", f"scale={decides['scale']}"]
            verdicts.append(not_run(claim, command(words, store)))
    return verdicts


def figures_of(scope: Scope, names: Collection[str]) -> Iterator[Plot]:
    """Draw the figures of these names that show something of a scope.

    Those of a sweep come first. Figures of any trials are drawn for the sweeps without a figure of
    their own.
    """
    without_figure = [record for record in scope.records if record.sweep not in WITH_FIGURE]
    # False sorts before True.
    chosen_figures = [figure for figure in FIGURES if figure.name in names]
    for figure in sorted(chosen_figures, key=lambda figure: not figure.sweeps):
        for sweep, view in _views(scope, figure, without_figure):
            data = figure.data(*view)
            if not data.empty:
                name, title = f"{figure.name}_{sweep}", f"{figure.title}: {sweep}"
                yield plot(figure._replace(name=name, title=title) if sweep else figure, data)


def _tables(scope: Scope, out: Path, worker: Worker) -> Iterator[tuple[Table, Listing]]:
    folder = out / scope.folder
    for table in TABLES:
        for sweep, view in _views(scope, table, scope.records):
            data = table.data(*view, scope.scale)
            if not data.empty:
                file = f"{table.name}_{sweep}.csv" if sweep else f"{table.name}.csv"
                data.to_csv(folder / file, index=False)
                title = f"{table.title}: {sweep}" if sweep else table.title
                title += f" ({table.source})" if table.source else ""
                note, arms = table.note_at(scope.scale), names.arms(view.trials)
                listing = listed(title, data, note, scope.prefix + file, arms=arms)
                worker.do(write_latex, listing, out)
                yield table, listing


def _views(
    scope: Scope, exhibit: Figure | Table, records: Sequence[Record]
) -> Iterator[tuple[str, StoreView]]:
    """Yield the trials that a figure or table shows, with the name of the sweep if it is one alone.

    A figure or table of any trials is made for each of `records`, since the points of a sweep
    differ in little, unless it shows them together.
    """
    if exhibit.sweeps:
        view = scope.of_sweeps(exhibit.sweeps)
        views = [("", view)] if view is not None else []
    elif exhibit.together:
        views = [("", scope.asked_for())]
    elif scope.general:  # trials of no sweep, or those of one sweep, unless `records` leave it out
        views = [("", scope.whole())] if records or not scope.records else []
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
    for counts, parts in ((True, verdict.parts), (False, verdict.other_parts)):
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
        # RATES are names of fields of an audit, and of columns here.
        rate = getattr(verdict.audit, name)
        low, high = rate.interval
        rates |= {name: rate.share, f"{name}_low": low, f"{name}_high": high}
    return rates
