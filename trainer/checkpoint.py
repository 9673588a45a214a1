"""Checkpoints: complete, written atomically, verified when they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.atomic import partial
from trainer.errors import BadInput

State = dict[str, Any]
PREFIX = "checkpoint-"


def save(folder: Path, num_updates: int, state: State) -> None:
    """Writes the state after `num_updates` updates, then drops older ones.

    The digest in the file's name makes a truncated or altered file known when it is read.
    """
    older = _all(folder)
    with partial(folder, PREFIX) as (filled, file):
        try:
            torch.save(state, file)
        except RuntimeError as error:  # by which torch hides what went wrong with the file
            raise (error.__context__ or error) from None
    path = folder / f"{PREFIX}{num_updates:09d}-{_digest(filled)}.pt"
    filled.replace(path)
    for old in older:
        if old != path:
            old.unlink()


def newest(folder: Path) -> Path | None:
    """The checkpoint to go on from, if there is one."""
    return max(_all(folder), default=None)


def load(path: Path) -> State:
    """The state in a checkpoint, on the CPU.

    Raises ValueError, naming the file, if it is not what was written.
    """
    if not path.stem.endswith(_digest(path)):
        raise ValueError(f"{path} is truncated or altered; delete it to start the trial anew")
    state: State = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    return state


# What a trial may do otherwise than the one whose checkpoint it goes on from.
MAY_DIFFER = {
    *("pipeline", "runner", "num_replicas", "device", "num_threads", "compile", "resume_from"),
    *("results", "out", "save_final", "checkpoint_every", "eval_every", "timeout"),
    *("trace", "diagnostics"),
}


def load_other(path: Path, config: Mapping[str, Any]) -> State:
    """The state in a checkpoint of another trial, which this one goes on from.

    Raises BadInput if it is none, or of a trial that differs in what makes the numbers.
    """
    if not path.is_file():
        raise BadInput("resume_from", path, "must be a checkpoint-*.pt of an unfinished trial")
    try:
        state = load(path)
    except ValueError as error:
        raise BadInput("resume_from", path, str(error)) from None
    for key, value in state["config"].items():
        if key not in MAY_DIFFER and value != config[key]:
            raise BadInput("resume_from", path, f"is of a trial with {key}={value}")
    return state


def delete(folder: Path) -> None:
    """Removes the checkpoints of a finished trial (135M: 2.7 GB each)."""
    for path in _all(folder):
        path.unlink()


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{PREFIX}*.pt"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
