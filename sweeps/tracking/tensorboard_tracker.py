"""Tracks a trial by TensorBoard's event files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sweeps.tracking.tracker import About, numbers, summary
from trainer.folder.record import Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorboardTracker:
    """One folder per trial, one event file per attempt; the step is `update`.

    At the first row of an attempt TensorBoard drops the rows of earlier attempts from there on.
    """

    def __init__(self, about: About, *, dir: str) -> None:
        self._folder = about.store / dir / about.sweep / about.arm / about.trial_id
        self._config = about.config
        self._writer: SummaryWriter | None = None
        self._last = 0

    def log(self, row: Row) -> None:
        """See `Tracker`."""
        step = self._last = row["update"]
        self._writer = self._writer or self._open(step)
        for key, value in numbers(row):
            if key != "update":
                self._writer.add_scalar(key, value, step)

    def _open(self, step: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self._folder), purge_step=step)
        writer.add_text("config", _text(dict(self._config)), step)
        return writer

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""
        assert self._writer is not None, "a tracker is made for a row"
        self._writer.add_text("result", _text(summary(outcome)), self._last)
        self._writer.close()


def _text(content: object) -> str:
    """Markdown, as TensorBoard shows it."""
    return f"```\n{json.dumps(content, indent=1)}\n```"
