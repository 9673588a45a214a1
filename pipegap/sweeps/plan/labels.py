"""The label of a sweep in its store: every request has its own, and so its own record and report.

A label is NAME-SCALE, and for further requests of the same sweep NAME-SCALE-2, -3, …. Trials are
shared all the same: a sweep with one more seed runs that seed alone.
"""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count

from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.expand import GridPoint
from pipegap.sweeps.request.schema import Sweep
from pipegap.trainer.store.records import Record, asked_by, of_sweep

RULES = {"seeds", "tune", "shared", "search", "early_stop", "advice"}
"""Keys of a sweep that ask for trials beside those of its points."""
LATER = {"tuning"}
"""Such keys that are younger than the hashes in stores: left out while they say nothing."""


@dataclass(frozen=True)
class Asked:
    """A sweep as one request asks for it, beside the other requests that its store has of it."""

    name: str
    """Of the sweep, without the scale."""
    scale: str
    request: str
    """A hash of what decides its trials; empty while its data is not prepared, by which trials are
    known."""
    words: frozenset[str]
    """Those of the command line that ask for trials."""
    records: Sequence[Record]
    """Of all requests of this sweep at this scale."""

    @classmethod
    def of(cls, request: Request, label: str, swept: Sequence[GridPoint]) -> "Asked":
        """Return what is asked of the sweep NAME-SCALE with these points."""
        name, words = label.removesuffix(f"-{request.scale}"), asked_by(request.words)
        records = of_sweep(request.results, name, request.scale)
        return cls(name, request.scale, _hash(request.sweeps[label], swept), words, records)

    @property
    def record(self) -> Record | None:
        """The record of this request, if there is one."""
        return next(filter(self._is_of, self.records), None)

    def _is_of(self, record: Record) -> bool:
        if record.request and self.request:
            return record.request == self.request
        return record.asked == self.words

    @property
    def label(self) -> str:
        """That of its record, or else the first that is free."""
        if self.record is not None:
            return self.record.label
        labels_taken = {record.label for record in self.records}
        first = f"{self.name}-{self.scale}"
        labels = chain([first], (f"{first}-{number}" for number in count(2)))
        return next(label for label in labels if label not in labels_taken)

    @property
    def others(self) -> str:
        """The other requests, each by its label and words; empty if there are none."""
        other_records = [record for record in self.records if not self._is_of(record)]
        return "; ".join(
            f"{other_record.label} is {shlex.join(other_record.given)}"
            for other_record in other_records
        )


def _hash(sweep: Sweep, swept: Sequence[GridPoint]) -> str:
    trials = [trial for point in swept for trial in point.trials(sweep.seeds[:1])]
    if any(trial.plan.data_hash is None for trial in trials):
        return ""
    ids = sorted(trial.trial_id for trial in trials)
    rules = sweep.model_dump(include=RULES) | sweep.model_dump(include=LATER, exclude_defaults=True)
    whole = json.dumps([ids, rules], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
