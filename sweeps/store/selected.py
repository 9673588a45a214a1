"""The trials that the words of a command select in a store."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.words import Given

if TYPE_CHECKING:
    from analysis.selection import Selection

KEYS = """\
results=    the store (default: results)
COLUMN=     only trials with this value in a column of the table of trials: status=failed,
            optimizer=muon, optimizer.lr=0.004, seed=0,1, arm=delay*, correction.coefficient=none"""


def select(given: Given) -> Selection:
    """What all of `given` says but `results`; raises BadInput. Prints what `load` warns of."""
    from analysis import selection

    results = Path(given.get("results", "results"))
    conditions = {key: value for key, value in given.items() if key != "results"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = selection.select(results, conditions)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    return found
