"""The gap table of trials that are still running."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path

from analysis.paired import gaps
from analysis.store import load
from analysis.tables import printed_gaps


def gaps_so_far(results: Path, trial_ids: Collection[str], width: int | None) -> str:
    """The gaps among these trials of a store; empty while there is no pair.

    In `width` columns, or in Markdown.
    Raises as `load` and `gaps` do; what they warn of is left to the report at the end.
    """
    if not results.is_dir():
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = gaps(load(results, trial_ids))
    return printed_gaps(table, width)
