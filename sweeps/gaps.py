"""The gap table so far, for a view that must never fail."""

from __future__ import annotations

from pathlib import Path

from sweeps.progress import ENDED, Progress


class Gaps:
    """Text of the gap table of a sweep's trials in a store."""

    def __init__(self, results: Path) -> None:
        self.text = ""
        """The table, or why there is none; empty while there is no pair."""
        self._results, self._num_ended = results, 0

    def refresh(self, progress: Progress, width: int | None) -> None:
        """Makes it again, `width` columns wide or in Markdown, if trials ended meanwhile.

        A store that is away for a moment, or trials that cannot be compared, end no sweep.
        """
        from analysis.so_far import gaps_so_far

        num_ended = sum(progress.counts[status] for status in ENDED)
        if num_ended == self._num_ended:
            return
        try:
            self.text = gaps_so_far(self._results, [*progress.trials], width)
            self._num_ended = num_ended
        except Exception as error:
            self.text = f"no gaps now: {error}"
