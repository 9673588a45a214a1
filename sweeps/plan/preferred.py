"""Overrides that a sweep prefers: added to all of its trials, or to none.

The first command of a sweep decides, by the machine and by its trials. The sweep's record then
holds the overrides that were added among its words, and every later command keeps to the record.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from analysis.table.records import records
from sweeps.request.expand import Trial
from trainer.base.compiler import require_compiler
from trainer.config.combinations import require_graphs


def recorded(words: Sequence[str], results: Path, label: str) -> bool | None:
    """Return whether the record of a sweep has all of these words; None without a record."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a report warns of damaged records
        found = [record for record in records(results) if record.label == label]
    return {*words} <= {*found[0].words} if found else None


def require_all_compiled(trials: Iterable[Trial]) -> None:
    """Raise BadInput for an update that would be compiled, but not here or not all of it."""
    compiled = [trial.config for trial in trials if trial.config["compile"] == "update"]
    if compiled:
        require_compiler()
    for config in compiled:
        require_graphs(config)
