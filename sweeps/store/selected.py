"""The trials of a store that the words of a command select."""

import sys
from typing import TYPE_CHECKING

from analysis.objects.mirror import pulled
from trainer.base.cli import Given

if TYPE_CHECKING:
    from analysis.table.selection import Selection

KEYS = """\
results=    the store (default: results): a folder, or s3://, gs://, az://BUCKET/PREFIX
COLUMN=     only trials with this value in a column of the table of trials: status=failed,
            optimizer=muon, optimizer.lr=0.004, seed=0,1, arm=delay*, correction.coefficient=none"""


def select(given: Given) -> "Selection":
    """Return the trials in the store `results` that fulfil all other conditions of `given`.

    Raises BadInput, and warns as `selection.select`. Prints what could be selected if nothing is.
    """
    from analysis.table import selection

    conditions = {key: value for key, value in given.items() if key != "results"}
    selected = selection.select(pulled(given.get("results", "results")), conditions)
    if selected.why_empty:
        print(selected.why_empty, file=sys.stderr)
    return selected
