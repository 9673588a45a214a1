"""Lists trials of a store.

e.g. pipegap list status=failed optimizer=muon
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipegap.trainer.base.cli import DONE, Given, parse, take_choice
from pipegap.trainer.store.opened import pulled

if TYPE_CHECKING:
    from pipegap.analysis.table.selection import Selection

KEYS = """\
results=    the store (default: results): a folder, or s3://BUCKET/PREFIX
COLUMN=     only trials with this value in a column of the table of trials: status=failed,
            optimizer=muon, optimizer.lr=0.004, seed=0,1, arm=delay*, correction.coefficient=none"""
FORMATS = ("text", "csv", "json")
OPTIONS = f"""\
{KEYS}
columns=    of the list, separated by commas: any of the table of trials
format=     {", ".join(FORMATS)}"""


def main(words: Sequence[str]) -> int:
    """Exit code 0, also if there is nothing to list; raises BadInput."""
    from pipegap.analysis.table.selection import SHOWN

    values = parse(words, "pipegap list", __doc__ or "", OPTIONS)
    form = take_choice(values, "format", FORMATS)
    columns = values.pop("columns", ",".join(SHOWN)).split(",")
    print(select(values).text(columns, form))
    return DONE


def select(values: Given) -> "Selection":
    """Return the trials in the store `results` that fulfil all other conditions of `values`.

    Raises BadInput, and warns as `selection.select`. Prints what could be selected if nothing is.
    """
    from pipegap.analysis.table import selection

    # Columns are not checked here: the table of trials alone knows them.
    conditions = {key: value for key, value in values.items() if key != "results"}
    selected = selection.select(pulled(values.get("results", "results")), conditions)
    if selected.why_empty:
        print(selected.why_empty, file=sys.stderr)
    return selected
