"""Checkpoints: complete, written atomically, verified when they are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

State = dict[str, Any]
PREFIX = "checkpoint-"


def save(folder: Path, num_updates: int, state: State) -> None:
    """Writes the state after `num_updates` updates, then drops older ones.

    The digest in the file's name makes a truncated or altered file known when it is read.
    """
    older = _all(folder)
    partial = folder / f".{PREFIX}{os.getpid()}.partial"
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    path = folder / f"{PREFIX}{num_updates:09d}-{_digest(partial)}.pt"
    partial.replace(path)
    for old in older:
        if old != path:
            old.unlink()


def load(folder: Path) -> State | None:
    """The newest state, on the CPU; None without a checkpoint.

    Raises ValueError, naming the file, if it is not what was written.
    """
    paths = _all(folder)
    if not paths:
        return None
    if not paths[-1].stem.endswith(_digest(paths[-1])):
        raise ValueError(f"{paths[-1]} is truncated or altered; delete it to start the trial anew")
    state: State = torch.load(paths[-1], map_location="cpu", weights_only=True)
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
