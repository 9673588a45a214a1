"""Checkpoints: complete, written atomically, verified when they are read."""

import errno
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as safetensors
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pipegap.trainer.base import former
from pipegap.trainer.base.atomic import (
    always,
    delete,
    file_hash,
    partial,
    publish,
    rename,
    write_atomically,
)
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder import wellformed

State = dict[str, Any]
PREFIX = "checkpoint-"
NAME = re.compile(rf"{PREFIX}(?P<updates>\d+)-((?P<attempt>\d+)-)?(?P<digest>[0-9a-f]+)\.pt")
"""Updates, attempt and digest. Files written before attempts were in the name have none."""
WEIGHTS, WEIGHTS_SUFFIX = "weights", ".safetensors"
"""Folder of the weights that a trial keeps for others to read, and how the names of its files end:
the rest is a number of updates."""
FORMAT = 2
"""Raised by hand when the state is laid out anew. 2: a correction's tensors have names."""


class Checkpoint(NamedTuple):
    """A file of a trial's folder. The later attempt is the newer one, whatever it had done: what an
    earlier one wrote after it was taken over does not count."""

    attempt: int
    num_updates: int
    path: Path


def newest_first(folder: Path) -> list[Checkpoint]:
    """The checkpoints of a trial's folder, the newest first."""
    matches = [(NAME.fullmatch(path.name), path) for path in folder.glob(f"{PREFIX}*.pt")]
    return sorted(
        (
            Checkpoint(int(match["attempt"] or 0), int(match["updates"]), path)
            for match, path in matches
            if match and path.is_file()
        ),
        reverse=True,
    )


def save(
    folder: Path, num_updates: int, state: State, attempt: int, permit: Callable[[], None] = always
) -> None:
    """Writes the state after `num_updates` updates, then drops the other checkpoints of this
    attempt and of older ones.

    The digest in the file's name makes a truncated or altered file known when it is read. `permit`:
    see `trainer.base.atomic.rename`.
    """
    with partial(folder, PREFIX) as (filled, file):
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:  # by which torch hides what went wrong with the file
            raise (error.__context__ or error) from None
    path = folder / _name(num_updates, attempt, _digest(filled))
    publish(filled, path, permit)
    for old in newest_first(folder):
        if old.attempt <= attempt and old.path != path:
            old.path.unlink(missing_ok=True)


def keep_weights(
    folder: Path,
    num_updates: int,
    weights: Mapping[str, Tensor],
    number: int,
    permit: Callable[[], None] = always,
) -> None:
    """Writes the weights after `num_updates` updates, then drops all but the last `number` sets.

    `permit`: see `trainer.base.atomic.rename`.
    """
    path = folder / WEIGHTS / f"{num_updates:09d}{WEIGHTS_SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    content = safetensors({name: weight.contiguous() for name, weight in weights.items()})
    write_atomically(path, content, permit)
    delete([*kept_weights(folder).values()][:-number])


def kept_weights(folder: Path) -> dict[int, Path]:
    """The sets of weights that a trial kept, by the number of updates after which, ascending."""
    paths = (folder / WEIGHTS).glob(f"*{WEIGHTS_SUFFIX}")
    return {int(path.stem): path for path in sorted(paths) if path.stem.isdecimal()}


def adopt(path: Path, attempt: int, permit: Callable[[], None]) -> None:
    """Gives a checkpoint to `attempt`, so that no earlier attempt deletes it any more.

    An earlier attempt may be a process that does not know yet that it was taken over: it deletes by
    the name that it knows.
    """
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    rename(path, path.with_name(_name(int(match["updates"]), attempt, match["digest"])), permit)


def _name(num_updates: int, attempt: int, digest: str) -> str:
    return f"{PREFIX}{num_updates:09d}-{attempt:06d}-{digest}.pt"


def load(path: Path) -> State:
    """The state in a checkpoint, on the CPU.

    Raises BadInput, naming the file, if it is not what was written, or was written by code that
    laid the state out otherwise.
    """
    if not path.stem.endswith(_digest(path)):
        raise BadInput("checkpoint", path, "is truncated or altered")
    try:
        state: State = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # what unpickling some other file raises
        # In the first part of an archive torch seeks to where no byte can be.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise _no_checkpoint(path) from None
    if not isinstance(state, dict):
        raise _no_checkpoint(path)
    if state.get("format") != FORMAT:
        raise BadInput("checkpoint", path, "is of another version of this code")
    return state


def rows_digest(path: Path, trial_id: str) -> str | None:
    """`trainer.folder.metrics.digest` of the rows before a checkpoint of the trial `trial_id`.

    None if older code wrote it, which did not note that, or if it is damaged or another trial's:
    `load_own` refuses it then.

    Reads neither the tensors nor, to see whether it is whole, the file.
    """
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception:  # what unpickling some other file raises
        return None
    is_own = isinstance(state, dict) and state.get("trial_id") == trial_id
    return state.get("rows") if is_own else None


def _load_whole(path: Path) -> State:
    """The state in a checkpoint of a trial. Raises as `load` does, and BadInput if a part lacks."""
    state = load(path)
    try:
        wellformed.check(state, wellformed.STATE)
    except ValueError as error:
        raise _no_checkpoint(path, f" ({error})") from None
    return state


def _no_checkpoint(path: Path, why: str = "") -> BadInput:
    return BadInput("checkpoint", path, f"is no checkpoint{why}")


def load_own(path: Path, trial_id: str) -> State:
    """The state in a checkpoint of the trial `trial_id`. Raises as `load` does, and BadInput if the
    file is another trial's: somebody copied it."""
    try:
        state = _load_whole(path)
        if state["trial_id"] != trial_id:
            raise BadInput("checkpoint", path, f"is of trial {state['trial_id']}, not {trial_id}")
    except BadInput as error:
        allowed = f"{error.allowed}; delete it to start the trial anew"
        raise BadInput("checkpoint", path, allowed) from None
    return state


# What a trial may do otherwise than the one whose checkpoint it goes on from.
MAY_DIFFER = {
    *("pipeline", "runner", "num_replicas", "device", "num_threads"),
    *("compile", "resume_from"),
    *former.KEYS,
    *("results", "out", "save_final", "save_last", "checkpoint_every", "eval_every", "eval_tokens"),
    *("timeout", "trace", "diagnostics", "choices", "deterministic", "eval_dtype"),
}


def load_other(path: Path, config: Mapping[str, Any]) -> State:
    """The state in a checkpoint of another trial, which this one goes on from.

    Raises BadInput if it is none, or of a trial that differs in what makes the numbers.
    """
    if not path.is_file():
        raise BadInput("resume_from", path, "must be a checkpoint-*.pt of an unfinished trial")
    try:
        state = _load_whole(path)
    except BadInput as error:
        raise BadInput("resume_from", path, f"{error.allowed}: choose another") from None
    for key, value in state["config"].items():
        if key not in MAY_DIFFER and _differs(value, config.get(key)):
            raise BadInput("resume_from", path, f"is of a trial with {key}={value}")
    return state


def _differs(old_value: Any, new_value: Any) -> bool:
    """Whether a value of a config is another one now; keys of a choice may be younger than it."""
    if isinstance(old_value, dict) and isinstance(new_value, dict):
        return any(_differs(value, new_value.get(key)) for key, value in old_value.items())
    return bool(old_value != new_value)


def _digest(path: Path) -> str:
    return file_hash(path)[:16]


def copied(state: Any) -> Any:
    """A copy of a state, mappings and lists of tensors and plain values, in the CPU's memory.

    Tensors that share memory, as the master and its newest version may, share it in the copy.
    """
    copies: dict[int, torch.UntypedStorage] = {}

    def copy(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (key := storage.data_ptr()) not in copies:
            copies[key] = storage.cpu() if storage.is_cuda else storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(copies[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    return tree_map_only(Tensor, copy, state)
