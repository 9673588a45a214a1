"""The gap table of the trials that have ended, for a view that must never fail."""

import warnings
from collections.abc import Collection
from pathlib import Path

from sweeps.view.progress import Progress
from trainer.base.status import ENDED

LIBRARIES = ("analysis.statistics.gaps", "analysis.statistics.text", "analysis.table.load")
"""What a table needs. To import it takes seconds, which no callback may."""


class GapTable:
    """The text of the gap table of a sweep's trials."""

    def __init__(self, results: Path) -> None:
        self.text = ""
        """The table, or why it cannot be made; empty while there is no pair."""
        self._results, self._num_ended = results, 0

    def refresh(self, progress: Progress, width: int | None) -> None:
        """Make the table again if trials have ended since, `width` columns wide; None: in Markdown.

        If that fails, the error is the text: a sweep must not end because of its view.
        """
        num_ended = sum(progress.counts[status] for status in ENDED)
        if num_ended == self._num_ended:
            return
        try:
            self.text = _gaps_so_far(self._results, [*progress.trials], width)
            self._num_ended = num_ended
        except Exception as error:
            self.text = f"no gaps now: {error}"


def _gaps_so_far(results: Path, trial_ids: Collection[str], width: int | None) -> str:
    """Return the gaps among these trials of a store; empty while there is no pair.

    Raises as `load` and `gaps` do; the report at the end repeats their warnings.
    """
    from analysis.statistics.gaps import gaps
    from analysis.statistics.text import printed_gaps
    from analysis.table.load import load

    if not results.is_dir():
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = gaps(load(results, trial_ids))
    return printed_gaps(table, width)
