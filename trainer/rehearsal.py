"""The first updates of a trial, straight through, and again with a stop and a resume in between.

Both must end in the same numbers, to the bit. They evaluate, write checkpoints, stop, resume and
write final weights as the trial itself will, so that what fails there fails in a minute.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, NamedTuple

from trainer.base.atomic import file_hash
from trainer.base.errors import Stopped
from trainer.folder.record import Row
from trainer.models.export import FINAL
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Launch
from trainer.trial import run_trial

UPDATES, STOPS_AFTER, LAST_DRAIN = 6, 3, 4
SHORT = {
    "num_updates": UPDATES,
    "tokens_per_parameter": None,
    "eval_every": STOPS_AFTER,
    "checkpoint_every": LAST_DRAIN,  # once before the end: it may take seconds
    "save_final": True,
    "trace": False,
}
"""Keys of a trial of few updates, in which everything happens that happens in a long one."""
STRAIGHT, STOPPED = "straight", "stopped"
"""Folders of the two runs."""
OF_CLOCK = {"tokens_per_second", "wall_seconds"}

Config = Mapping[str, Any]


class Rehearsed(NamedTuple):
    """What became of a rehearsal.

    `stopped_after` counts updates; None if the trial was at its end before it heard that it should
    stop, as a very short one may be. `difference` says in words what differs; None if nothing does.
    `tokens_per_second` are those of all updates after LAST_DRAIN: of the last one alone they would
    be too many, as a delayed update ends right after the one before it at the end. `peak_bytes` are
    those of the fullest rank.
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
    run_trial(_short(config, folder / STRAIGHT), launch=launch)
    num_done = 0

    def report(row: Row) -> None:
        nonlocal num_done
        num_done = row["update"] + 1

    with suppress(Stopped):
        short = _short(config, folder / STOPPED)
        run_trial(short, report, lambda: num_done >= STOPS_AFTER, launch)


def resume(config: Config, folder: Path, launch: Launch = run_gang) -> Rehearsed:
    """Resumes what `begin` stopped, in this process or another one; compares the two ends.

    Nothing is compared with `deterministic=false`. Raises what `run_trial` raises.
    """
    straight, stopped = folder / STRAIGHT, folder / STOPPED
    has_stopped = not (stopped / "result.json").exists()
    stopped_after = len(_rows(stopped)) if has_stopped else None
    result = run_trial(_short(config, stopped), launch=launch)
    return Rehearsed(
        str(result["status"]),
        stopped_after,
        _difference(straight, stopped) if config["deterministic"] else None,
        harmonic_mean(row["tokens_per_second"] for row in _rows(straight)[LAST_DRAIN:]),
        result["peak_memory_bytes"],
    )


def _short(config: Config, folder: Path) -> Config:
    tokens = config["eval_batch_size"] * config["seq_len"]
    return {**config, **SHORT, "eval_tokens": tokens, "out": str(folder)}


def _difference(straight: Path, stopped: Path) -> str | None:
    """The first number that the two runs do not share, in words."""
    for row, other in zip(_rows(straight), _rows(stopped), strict=True):
        for key in sorted({*row, *other} - OF_CLOCK):
            if row.get(key) != other.get(key):
                return f"{key} of update {row['update']}: {row.get(key)} and {other.get(key)}"
    if file_hash(straight / FINAL) != file_hash(stopped / FINAL):
        return "the final weights"
    return None


def _rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
