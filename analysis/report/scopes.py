"""The parts of a report: the trials of each scale, as the records of sweeps list them."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from pipegap.analysis.statistics.gaps import gaps
from pipegap.analysis.statistics.text import notes
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.records import Record


class StoreView(NamedTuple):
    """Trials that are compared, and their gaps."""

    trials: pd.DataFrame
    gaps: pd.DataFrame


@dataclass
class StoreViews:
    """Views of a store. Each is made once, since many figures show the same trials.

    `_known` holds them by the trials that were asked for, and by the trials that the store has of
    these.
    """

    store: pd.DataFrame
    records: Sequence[Record]
    """What each sweep asked for."""
    _known: dict[frozenset[str], StoreView] = field(default_factory=dict)

    def of(self, trial_ids: frozenset[str]) -> StoreView:
        """Return the view of the trials that the store has of these."""
        if trial_ids not in self._known:
            trials = self.store[self.store["trial_id"].isin(trial_ids)]
            there = frozenset(trials["trial_id"])
            if there not in self._known:
                self._known[there] = StoreView(trials, gaps(trials))
            self._known[trial_ids] = self._known[there]
        return self._known[trial_ids]

    def whole(self) -> StoreView:
        """Return the view of the whole store."""
        return self.of(frozenset(self.store["trial_id"]))


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
        named = [record for record in self.records if record.sweep in sweeps]
        return self.of_records(named) if named else None

    def of_records(self, records: Sequence[Record]) -> StoreView:
        """Return the trials that these sweeps compare."""
        return self.views.of(_compared(records))

    def whole(self) -> StoreView:
        """Return all trials of the scope."""
        return self.views.of(self.trial_ids)

    def asked_for(self) -> StoreView:
        """Return all trials of the scope, and the others that its sweeps asked for.

        Among these are the longer runs that no table compares and that tell a tax.
        """
        return self.views.of(self.trial_ids.union(*(record.trials for record in self.records)))

    def remarks(self) -> Iterator[str]:
        """Yield remarks on each sweep by itself: it does not need the arms and seeds of others."""
        for record in self.records:
            view = self.of_records([record])
            remarks = [*(notes(*view) if len(view.trials) else []), *record.remarks]
            yield from (f"{record.label}: {remark}" for remark in remarks)
        if not self.records:
            yield from notes(*self.whole())


def scopes(views: StoreViews, label: str | None = None) -> list[Scope]:
    """Return one scope per scale, the costliest first, and one for the trials of no record.

    Trials that were compiled in another way have a scope of their own.

    With `label` there is one scope, of the trials that this sweep compares, for its own figures and
    those of any trials. Raises BadInput for a `label` without a record.
    """
    if label is not None:
        record = _of_label(views.records, label)
        return [Scope(label, "", record.compared, views, [record], record.scale)]
    known = frozenset().union(*(record.trials for record in views.records))
    rest = frozenset(views.store["trial_id"]) - known
    no_sweep = [Scope("Trials of no sweep", "", rest, views)] if rest else []
    return [*_by_scale(views), *no_sweep]


def _of_label(records: Sequence[Record], label: str) -> Record:
    for record in records:
        if record.label == label:
            return record
    known = ", ".join(record.label for record in records) or "none"
    raise BadInput("label", label, f"must be a sweep that left a record in the store ({known})")


def _by_scale(views: StoreViews) -> Iterator[Scope]:
    by_conditions: dict[str, list[Record]] = {}
    for record in views.records:
        by_conditions.setdefault(record.conditions, []).append(record)
    for title, own in sorted(by_conditions.items(), key=lambda item: -_cost(item[1])):
        folder = re.sub(r"[ =]", "-", title)
        yield Scope(title, folder, _compared(own), views, own, own[0].scale, general=False)


def _compared(records: Sequence[Record]) -> frozenset[str]:
    return frozenset().union(*(record.compared for record in records))


def _cost(records: Sequence[Record]) -> float:
    """Return the floating-point operations of the largest trial, or else its tokens."""
    trials = [trial for record in records for trial in record.trials.values()]
    return max((trial.flops or float(trial.tokens or 0) for trial in trials), default=0.0)
