"""Tracks a trial by TensorBoard's event files."""

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipegap.sweeps.tracking.tracker import About, hyperparameters, numbers, summary
from pipegap.trainer.base.places import cut
from pipegap.trainer.folder.wellformed import Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

NOT_IN_A_NAME = re.compile(r"[^\w.,=()+-]+")
LONGEST_NAME = 150
"""Bytes of a folder's name before the trial's id."""
METRICS = ("val_loss", "train_loss")
"""The curves whose last value HParams shows."""


class TensorboardTracker:
    """One folder per trial, one event file per attempt; the step is `update`.

    A trial of several sweeps lies in the folder of the first one; in those of the others is a link.
    At the first row of an attempt TensorBoard drops the rows of earlier attempts from there on.
    """

    def __init__(self, about: About, *, dir: str) -> None:
        name = cut(NOT_IN_A_NAME.sub("-", about.name), LONGEST_NAME)
        first, *other_folders = (
            about.store / dir / sweep / f"{name}-{about.trial_id}" for sweep in about.sweeps
        )
        self._about, self._folder, self._links = about, first, other_folders
        self._writer: SummaryWriter | None = None
        self._last = 0

    def log(self, row: Row) -> None:
        """See `Tracker`."""
        step = self._last = row["update"]
        self._writer = self._writer or self._open(step)
        for key, value in numbers(row):
            if key != "update":
                self._writer.add_scalar(key, value, step)

    def _open(self, step: int) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        writer = SummaryWriter(str(self._folder), purge_step=step)
        writer.add_text("config", _text(dict(self._about.config)), step)
        # `add_hparams` would open a second folder, and show each trial as two runs.
        file_writer: Any = writer.file_writer  # which torch declares as None
        for part in hparams(hyperparameters(self._about), dict.fromkeys(METRICS, 0.0)):
            file_writer.add_summary(part)
        for link in self._links:
            with suppress(OSError):  # it is there, or the file system has no links
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(os.path.relpath(self._folder, link.parent))
        return writer

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""
        assert self._writer is not None, "a tracker is made for a row"
        self._writer.add_text("result", _text(summary(outcome)), self._last)
        self._writer.close()


def _text(content: object) -> str:
    """Return the content as Markdown, which TensorBoard shows."""
    return f"```\n{json.dumps(content, indent=1)}\n```"
