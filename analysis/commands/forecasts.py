"""Recorded forecasts beside what was measured since."""

import warnings
from pathlib import Path

from analysis.objects.mirror import pulled
from trainer.base.cli import Given
from trainer.base.errors import BadInput
from trainer.base.places import require_folder

KEYS = {
    "record": "the folder of the forecasts (default: findings/forecasts)",
    "results": "the store (default: results)",
}


def main(given: Given) -> None:
    """Prints one row per forecast; raises BadInput."""
    record, results = given.get("record", "findings/forecasts"), given.get("results", "results")
    require_folder("record", record)
    folder = Path(record)
    if not folder.is_dir():
        raise BadInput("record", folder, "must be a folder of forecasts (no such folder)")
    from analysis.forecast.register import checks, text
    from analysis.table.load import load

    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the report says them
        print(text(checks(folder, load(pulled(results)))))
