"""What a report needs that its trials do not change, made while they run."""

import gc
import threading
from contextlib import ExitStack

from pipegap.trainer.base.children import Worker

MANY = 50
"""Trials whose pictures and files take longer to make than a process takes to start."""


class Ahead(ExitStack):
    """A context in which a report begins before its trials are known.

    `begin` starts a process that draws pictures as soon as they are known, for its first one takes
    a second, and imports what makes reports, which takes another. A report of fewer than MANY
    trials begins with its trials: it needs no process.
    """

    def __init__(self, num_trials: int) -> None:
        super().__init__()
        self.worker: Worker | None = None
        """For `report`, once `begin` was called."""
        self._is_large = num_trials >= MANY

    def begin(self) -> None:
        """Begin in a thread, and return at once; later calls do nothing."""
        if self._is_large and self.worker is None:
            self.worker = self.enter_context(Worker())
            self.worker.do(_draw)
            threading.Thread(target=_judge, daemon=True).start()


def _draw() -> None:
    from pipegap.analysis.figures.files import warm_up

    warm_up()
    _import()


def _judge() -> None:
    from pipegap.analysis.figures.taxes import speed_ups

    speed_ups()
    _import()


def _import() -> None:
    import pandas.io.formats.style  # noqa: F401

    from pipegap.analysis.report import report  # noqa: F401

    gc.freeze()  # what was imported stays: a look at it takes tenths of a second, again and again
