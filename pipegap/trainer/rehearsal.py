"""The first updates of a trial, straight through, and again with a stop and a resume in between.

Both must end in the same numbers, to the bit. They evaluate, write a checkpoint, stop, resume and
write final weights as the trial itself will, so that what fails there fails in a minute.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, NamedTuple

import numpy as np

from pipegap.trainer.base.atomic import file_hash
from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.data.shards import Dataset, Source, Tokens
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.models.export import FINAL
from pipegap.trainer.ranks.spawn import Launch, run_gang
from pipegap.trainer.trial import run_trial

UPDATES, STOPS_AFTER = 6, 3  # an evaluation in the middle, and as many updates on either side
SHORT = {
    "num_updates": UPDATES,
    "tokens_per_parameter": None,  # only one of the two lengths may be given
    "eval_every": STOPS_AFTER,
    "eval_tokens": None,  # `Excerpt` limits the evaluation, and must keep its shorter last batch
    "save_final": True,
    "trace": False,
}
"""Keys of a trial of few updates, in which everything happens that happens in a long one."""
STRAIGHT, STOPPED = "straight", "stopped"
"""Folders of the two runs."""
CHECKPOINT_EVERY = {STRAIGHT: UPDATES, STOPPED: STOPS_AFTER}
"""One checkpoint in all, which may take seconds: in the background, when the trial is stopped."""
OF_CLOCK = {"tokens_per_second", "wall_seconds"}

Config = Mapping[str, Any]


class Excerpt:
    """The data that `source` names, with few windows to validate on: one whole batch of `rows`
    and, where the split has a shorter last one, that, since either has a graph of its own."""

    def __init__(
        self, *, source: Mapping[str, Any], path: str | None, rows: int, seq_len: int
    ) -> None:
        self._source: Source = build(source)
        self._rows, self._seq_len = rows, seq_len

    @property
    def hash(self) -> str | None:
        """That of the source."""
        return self._source.hash

    @property
    def num_validation_tokens(self) -> int:
        """Those of the source."""
        return self._source.num_validation_tokens

    def open(self) -> Dataset:
        """Verifies and opens all of the data; raises as the source does."""
        whole = self._source.open()
        num_windows = (len(whole.validation) - 1) // self._seq_len
        num_taken = min(num_windows, self._rows + num_windows % self._rows)
        # + 1: a window of seq_len inputs has one more token, the target of its last input.
        first = whole.validation.read(0, num_taken * self._seq_len + 1).astype(np.uint32)
        return replace(whole, validation=Tokens([first]))


class Rehearsed(NamedTuple):
    """The outcome of a rehearsal.

    `stopped_after` is the number of updates before the stop; None if the trial ended before it was
    asked to stop, as a very short one may. `difference` says in words what differs between the two
    runs; None if nothing does. `tokens_per_second` is a mean over all updates after the
    evaluation: at the end of a run a delayed update ends right after the one before it, so the last
    update alone would seem too fast. `peak_bytes` is the peak of the rank with the highest one.
    """

    status: str
    stopped_after: int | None
    difference: str | None
    tokens_per_second: float
    peak_bytes: int


def begin(config: Config, folder: Path, launch: Launch = run_gang) -> None:
    """Trains the first updates of a trial twice, in `folder`: to their end, and to a stop.

    Raises what `run_trial` raises.
    """
    run_trial(_short(config, folder, STRAIGHT), launch=launch)
    num_done = 0

    def report(row: Row) -> None:
        nonlocal num_done
        num_done = row["update"] + 1

    with suppress(Stopped):  # not raised if the trial ended before it was asked
        short = _short(config, folder, STOPPED)
        run_trial(short, report, lambda: num_done >= STOPS_AFTER, launch)


def resume(config: Config, folder: Path, launch: Launch = run_gang) -> Rehearsed:
    """Resumes what `begin` stopped, in this process or another one; compares the two ends.

    Nothing is compared with `deterministic=false`. Raises what `run_trial` raises.
    """
    straight, stopped = folder / STRAIGHT, folder / STOPPED
    has_stopped = not (stopped / "result.json").exists()
    stopped_after = len(_rows(stopped)) if has_stopped else None
    result = run_trial(_short(config, folder, STOPPED), launch=launch)
    return Rehearsed(
        str(result["status"]),
        stopped_after,
        _difference(straight, stopped) if config["deterministic"] else None,
        # Harmonic: the rows have equally many tokens, so their seconds add up.
        harmonic_mean(row["tokens_per_second"] for row in _rows(straight)[STOPS_AFTER:]),
        result["peak_memory_bytes"],
    )


def _short(config: Config, folder: Path, run: str) -> Config:
    data = {
        "_target_": f"{Excerpt.__module__}.{Excerpt.__name__}",
        "path": config["data"].get("path"),  # which errors name
        "source": config["data"],
        "rows": config["eval_batch_size"],
        "seq_len": config["seq_len"],
    }
    run_keys = {"data": data, "checkpoint_every": CHECKPOINT_EVERY[run], "out": str(folder / run)}
    return {**config, **SHORT, **run_keys}


def _difference(straight: Path, stopped: Path) -> str | None:
    """The first number in which the two runs differ, in words; None if there is none."""
    for row, row_stopped in zip(_rows(straight), _rows(stopped), strict=True):
        for key in sorted({*row, *row_stopped} - OF_CLOCK):
            if row.get(key) != row_stopped.get(key):
                return f"{key} of update {row['update']}: {row.get(key)} and {row_stopped.get(key)}"
    if file_hash(straight / FINAL) != file_hash(stopped / FINAL):
        return "the final weights"
    return None


def _rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
