"""Results → tidy table → paired gaps with uncertainty → figures and a report."""

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "analysis":  # found beside the package, in a checkout
    raise ImportError("pipegap: its packages have one name: import pipegap.analysis")

if TYPE_CHECKING:
    import pandas as pd

    from pipegap.analysis.advice.advise import advise
    from pipegap.analysis.statistics.diagnostics import downstream
    from pipegap.analysis.statistics.gaps import best, gaps

__all__ = ["advise", "best", "downstream", "gaps", "load"]

WHERE = {
    "advise": "pipegap.analysis.advice.advise",
    "best": "pipegap.analysis.statistics.gaps",
    "downstream": "pipegap.analysis.statistics.diagnostics",
    "gaps": "pipegap.analysis.statistics.gaps",
}
"""Name → its module, which is imported when it is asked for: a trial that talks to a bucket needs
neither pandas nor scipy."""


def load(results: str | Path, trial_ids: Collection[str] | None = None) -> "pd.DataFrame":
    """Return the table of the trials in `results`, as `analysis.table.load.load` does.

    `results` may also be the URL of an object store: what changed there is fetched first. Raises
    StoreAway if the store does not answer.
    """
    from pipegap.analysis.table.load import load as load_folder
    from pipegap.trainer.store.opened import pulled

    return load_folder(pulled(results), trial_ids, stacklevel=3)


def __getattr__(name: str) -> Any:
    if name in WHERE:
        return getattr(import_module(WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
