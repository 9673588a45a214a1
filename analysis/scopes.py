"""Which trials of a store a part of its report is about, by what the records of sweeps say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from analysis.paired import gaps
from analysis.records import Record

DONE = ("completed", "diverged")


class View(NamedTuple):
    """Trials that are looked at together, and their gaps."""

    trials: pd.DataFrame
    gaps: pd.DataFrame


@dataclass
class Scope:
    """A part of a report. `trials`: what figures and tables of any trials show.

    `folder`: of its files, within that of the report. `scale`: empty where no record tells.
    """

    title: str
    folder: str
    trials: pd.DataFrame
    store: pd.DataFrame
    records: Sequence[Record] = ()
    scale: str = ""
    general: bool = True
    """Whether figures of any trials belong to it; else those that name its sweeps alone."""
    _views: dict[frozenset[str], View] = field(default_factory=dict)

    def of_sweeps(self, sweeps: Collection[str]) -> View | None:
        """What the reports of these sweeps compare, taken together; None without a record."""
        named = [record for record in self.records if record.sweep in sweeps]
        return self.of_records(named) if named else None

    def of_records(self, records: Sequence[Record]) -> View:
        """The trials that these sweeps compare, as far as the store has them."""
        return self._view(frozenset().union(*(record.compared for record in records)))

    def whole(self) -> View:
        """All of its trials."""
        return self._view(frozenset(self.trials["trial_id"]))

    def _view(self, trial_ids: frozenset[str]) -> View:
        """Made once: many figures are of the same trials."""
        if trial_ids not in self._views:
            trials = self.store[self.store["trial_id"].isin(trial_ids)]
            self._views[trial_ids] = View(trials, gaps(trials))
        return self._views[trial_ids]


def scopes(store: pd.DataFrame, records: Sequence[Record], named: Collection[str]) -> list[Scope]:
    """A scope for each scale, the costliest first; then one for each sweep that no figure has
    `named`, and one for the trials of no record."""
    own = [record for record in records if record.sweep not in named]
    of_paper = [record for record in records if record.sweep in named]
    known = frozenset().union(*(record.trials for record in records))
    rest = store[~store["trial_id"].isin(known)]
    return [
        *_by_scale(store, of_paper),
        *(of_record(store, record, folder=record.label) for record in own),
        *([Scope("Trials of no sweep", "", rest, store)] if len(rest) else []),
    ]


def of_record(store: pd.DataFrame, record: Record, folder: str = "") -> Scope:
    """The trials that one sweep compares, by figures of any trials and by its own."""
    compared = store[store["trial_id"].isin(record.compared)]
    return Scope(record.label, folder, compared, store, [record], record.scale)


def _by_scale(store: pd.DataFrame, records: Sequence[Record]) -> Iterator[Scope]:
    by_scale: dict[str, list[Record]] = {}
    for record in records:
        by_scale.setdefault(record.scale, []).append(record)
    for scale, of_scale in sorted(by_scale.items(), key=lambda item: -_cost(item[1])):
        compared = frozenset().union(*(record.compared for record in of_scale))
        trials = store[store["trial_id"].isin(compared)]
        yield Scope(scale, scale, trials, store, of_scale, scale, general=False)


def _cost(records: Sequence[Record]) -> float:
    """The most floating-point operations, or else tokens, of a trial."""
    asked = [trial for record in records for trial in record.trials.values()]
    return max((trial.flops or float(trial.tokens or 0) for trial in asked), default=0.0)
