"""Results → tidy table → paired gaps with uncertainty → figures and a report."""

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from analysis.advice.advise import advise
    from analysis.statistics.best import best
    from analysis.statistics.downstream import downstream
    from analysis.statistics.gaps import gaps

__all__ = ["advise", "best", "downstream", "gaps", "load"]

WHERE = {
    "advise": "analysis.advice.advise",
    "best": "analysis.statistics.best",
    "downstream": "analysis.statistics.downstream",
    "gaps": "analysis.statistics.gaps",
}
"""Name → its module, which is imported when it is asked for: a trial that talks to a bucket needs
neither pandas nor scipy."""


def load(results: str | Path, trial_ids: Collection[str] | None = None) -> "pd.DataFrame":
    """Return the table of the trials in `results`, as `analysis.table.load.load` does.

    `results` may also be the URL of an object store: what changed there is fetched first. Raises
    StoreAway if the store does not answer.
    """
    from analysis.table.load import load as load_folder
    from trainer.store.opened import pulled

    return load_folder(pulled(results), trial_ids, stacklevel=3)


def __getattr__(name: str) -> Any:
    if name in WHERE:
        return getattr(import_module(WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
