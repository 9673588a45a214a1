"""The table of downstream tasks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.table.answers import ACCURACY, BITS, title
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, table
from bench.documents.published import published_scores


def downstream() -> str:
    """Each arm beside sync, task by task, for the published answers of three small models."""
    found = published_scores()
    accuracy, bits = (
        found[found["measure"] == measure].to_dict("records") for measure in (ACCURACY, BITS)
    )
    rows = [
        [
            *(of["model"], name(of["optimizer"]), REPORTED_ARMS[of["arm"]], title(of["task"])),
            *(f"{of['sync']:.3f}", _scored(of), _detected(of)),
            *(f"{other['sync']:.3f}", _scored(other), f"{of['n']} × {of['questions']:,}"),
        ]
        for of, other in zip(accuracy, bits, strict=True)
    ]
    heads = ["model", "optimizer", "arm", "task", "accuracy of sync", "difference", "detectable"]
    return table([*heads, "bits per byte of sync", "difference", "n"], rows)


def _detected(row: dict[Any, Any]) -> str:
    """Nothing where no answer differs."""
    return "" if pd.isna(row["detectable"]) else f"{row['detectable']:.3f}"


def _scored(row: dict[Any, Any]) -> str:
    """A difference with its interval."""
    return gap({**row, "gap": row["difference"]})
