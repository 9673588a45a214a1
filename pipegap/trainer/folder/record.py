"""A trial's folder as its process writes it: config, rows, checkpoints and, last and atomically,
the result.
"""

import errno
import re
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as safetensors
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import override

from pipegap.trainer.base import atomic, former
from pipegap.trainer.base.atomic import Permit, always
from pipegap.trainer.base.errors import BadInput, Status
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.lease import attempts, holder, leased, read, trained
from pipegap.trainer.folder.wellformed import MARKER, RESULT, Damaged, Row

# Checkpoints: complete, written atomically, verified when they are read.

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
    folder: Path, num_updates: int, state: State, attempt: int, permit: Permit = always
) -> None:
    """Writes the state after `num_updates` updates, then drops the other checkpoints of this
    attempt and of older ones.

    The digest in the file's name makes a truncated or altered file known when it is read. `permit`:
    see `trainer.base.atomic.rename`.
    """
    with atomic.partial(folder, PREFIX) as (filled, file):
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:  # by which torch hides what went wrong with the file
            raise (error.__context__ or error) from None
    path = folder / _name(num_updates, attempt, _digest(filled))
    atomic.publish(filled, path, permit)
    for old in newest_first(folder):
        if old.attempt <= attempt and old.path != path:
            old.path.unlink(missing_ok=True)


def keep_weights(
    folder: Path,
    num_updates: int,
    weights: Mapping[str, Tensor],
    number: int,
    permit: Permit = always,
) -> None:
    """Writes the weights after `num_updates` updates, then drops all but the last `number` sets.

    `permit`: see `trainer.base.atomic.rename`.
    """
    path = folder / WEIGHTS / f"{num_updates:09d}{WEIGHTS_SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    content = safetensors({name: weight.contiguous() for name, weight in weights.items()})
    atomic.write_atomically(path, content, permit)
    atomic.delete([*kept_weights(folder).values()][:-number])


def kept_weights(folder: Path) -> dict[int, Path]:
    """The sets of weights that a trial kept, by the number of updates after which, ascending."""
    paths = (folder / WEIGHTS).glob(f"*{WEIGHTS_SUFFIX}")
    return {int(path.stem): path for path in sorted(paths) if path.stem.isdecimal()}


def adopt(path: Path, attempt: int, permit: Permit) -> None:
    """Gives a checkpoint to `attempt`, so that no earlier attempt deletes it any more.

    An earlier attempt may be a process that does not know yet that it was taken over: it deletes by
    the name that it knows.
    """
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    name = _name(int(match["updates"]), attempt, match["digest"])
    atomic.rename(path, path.with_name(name), permit)


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
    """`trainer.folder.wellformed.digest` of the rows before a checkpoint of the trial `trial_id`.

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
    return atomic.file_hash(path)[:16]


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


# A trial's folder: config.json, metrics.jsonl and, last and atomically, result.json.

FILES = ("config.json", "metrics.jsonl", RESULT, MARKER)  # each has one name
OF_ATTEMPT = ("attempt", "from_update", "git", "versions", "device_name", "processor")
"""What a result says of each attempt that made a part of it; None what older ones did not note."""


class TrialFolder:
    """The record of one trial, written by one process at a time."""

    records = True  # whether this process writes the record

    def __init__(self, path: Path, trial_id: str) -> None:
        self.path, self._trial_id = path, trial_id
        self._rows = path / "metrics.jsonl"

    @contextmanager
    def claimed(
        self,
        config: Mapping[str, Any],
        made_by: Mapping[str, object],
        newest_before: int | None = None,
    ) -> "Iterator[TrialFolder]":
        """Makes the folder and holds the trial's lease while the context lasts: see `leased`.

        The attempt notes `made_by`, see `trainer.config.identity.made_by`. Raises BadInput if the
        folder is another trial's or another process runs it, LeaseLost if one took it over.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            wellformed.require_own(self.path, self._trial_id)
        except OSError as error:
            key = "results" if config["out"] is None else "out"
            raise BadInput(key, config[key], f"must be writable ({error.strerror})") from None
        with (
            leased(self.path, self._outcome, made_by, newest_before) as self._lease,
            ExitStack() as self._open,
        ):
            atomic.clean(self.path, self._lease.started_ns)
            atomic.write_json(self.path / "config.json", config, self._lease.require)
            marker = f"{self._trial_id}\n".encode()
            atomic.write_atomically(self.path / MARKER, marker, self._lease.require)
            yield self

    def _outcome(self) -> str:
        done = self.result()
        return Status.FAILED if done is None else done["status"]

    def result(self) -> Row | None:
        """The result of a finished trial; None if it has none yet, or failed.

        Raises BadInput if the folder is another trial's.
        """
        wellformed.require_own(self.path, self._trial_id)
        return wellformed.final(wellformed.read_result(self.path))

    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint whose rows are all there; None: the trial starts anew.

        A newer one is left aside, with a line on stderr: only training again makes its lost rows.
        """
        for path, why_not in self._checkpoints():
            if not why_not:
                return path
            print(f"{path.name} is not resumed from: {why_not}", file=sys.stderr)
        return None

    def _checkpoints(self) -> Iterator[tuple[Path, str]]:
        """Yields each checkpoint, the newest first, and why no trial can resume from it, or ""."""
        lines, tried = wellformed.read_rows(self._rows), map(read, attempts(self.path))
        # Not 0 if the trial went on from another one's checkpoint.
        start = min((noted["from_update"] for noted in tried if "from_update" in noted), default=0)
        for _, num_updates, path in newest_first(self.path):
            # Counted, not listed: the name of a file may claim any number of updates.
            num_there = sum(start <= update < num_updates for update in lines)
            if num_missing := num_updates - start - num_there:
                first = next(update for update in range(start, num_updates) if update not in lines)
                missing_rows = f"{num_missing} rows before it, that of update {first} first"
                yield path, f"{self._rows} lacks {missing_rows}"
                continue
            rows = (line.content for update, line in lines.items() if update < num_updates)
            noted = rows_digest(path, self._trial_id)
            is_same = noted in (None, wellformed.digest(rows))
            yield path, "" if is_same else f"{self._rows} has other rows than when it was saved"

    def require_sound(self, config: Mapping[str, Any]) -> None:
        """Raises BadInput for a folder in a file's place, or a checkpoint that cannot be resumed.

        Nothing is written yet. What a running process replaces meanwhile is not looked at.
        """
        for name in FILES:
            if (self.path / name).is_dir():
                raise Damaged(self.path / name, "is a folder, where a file must be")
        with suppress(FileNotFoundError):
            newest = next((path for path, why_not in self._checkpoints() if not why_not), None)
            if newest is not None:
                load_own(newest, self._trial_id)
            elif config["resume_from"] is not None:
                load_other(Path(config["resume_from"]), config)

    def resume(self, num_updates: int, path: Path | None) -> float:
        """Records that training starts after `num_updates`, and drops the rows and weights of later
        updates.

        `path`: the checkpoint of this trial that it resumes from, which is this attempt's from now
        on. Returns the wall seconds that earlier attempts took, the dropped rows included.
        """
        self._lease.note(from_update=num_updates)
        if path is not None:
            adopt(path, self._lease.number, self._lease.require)
        sets = kept_weights(self.path)
        atomic.delete(path for update, path in sets.items() if update > num_updates)
        lines = wellformed.read_rows(self._rows)
        rows = [line.content for update, line in lines.items() if update < num_updates]
        self._metrics = wellformed.Metrics(self._rows, rows, self._lease.require)
        self._open.enter_context(closing(self._metrics))
        self._thread = self._open.enter_context(ThreadPoolExecutor(1, "checkpoint"))
        self._saving: Future[None] | None = None
        self._open.callback(self._saved)
        return max((line.wall_seconds for line in lines.values()), default=0.0)

    def append(self, row: Row) -> None:
        """Appends the row of one update to metrics.jsonl. Raises LeaseLost."""
        self._lease.require()
        self._metrics.append(row)

    def save(
        self, num_updates: int, state: Row, wait: bool = True, *, may_change: bool = True
    ) -> None:
        """Saves the state after `num_updates`, once its rows are on disk. Raises LeaseLost.

        Without `wait` the state is written while the trial goes on, a copy of it if the trial
        `may_change` it: the next `save` or `finish`, or the end of the trial's context, raises what
        goes wrong.
        """
        self._metrics.sync()
        whole = {**state, "rows": self._metrics.digest}
        self._saved()  # before the copy: the host's memory holds one state, not two
        state_to_save = whole if wait or not may_change else copied(whole)
        number, permit = self._lease.number, self._lease.require
        write = partial(save, self.path, num_updates, state_to_save, number, permit)
        if wait:
            write()
        else:
            self._saving = self._thread.submit(write)

    def _saved(self) -> None:
        """Returns when no checkpoint is being written; raises what went wrong with the last one."""
        last, self._saving = self._saving, None
        if last is not None:
            last.result()

    def keep_weights(self, num_updates: int, weights: Mapping[str, Tensor], number: int) -> None:
        """Keeps the weights after `num_updates`, as one of the last `number` sets. Raises
        LeaseLost."""
        keep_weights(self.path, num_updates, weights, number, self._lease.require)

    def finish(self, result: Row) -> Row:
        """Writes and returns the final result, with the attempts that made it. Raises LeaseLost."""
        self._saved()
        self._metrics.sync()
        whole = self._write(result)
        atomic.delete(_strays(self.path))
        return whole

    def fail(self, result: Row) -> None:
        """Writes the result of a trial that failed: it may run again. Raises LeaseLost."""
        self._write(result)

    def _write(self, result: Row) -> Row:
        made_by = [{key: attempt.get(key) for key in OF_ATTEMPT} for attempt in trained(self.path)]
        whole = {**result, "attempts": made_by, "finished_at": time.time()}
        atomic.write_json(self.path / RESULT, whole, self._lease.require)
        return whole


def tidy(folder: Path) -> None:
    """Deletes checkpoints and temporary files that killed processes left in a finished folder.

    Does nothing while a process holds the trial, nor where the folder cannot be written.
    """
    # Listed before the look at the holder: a process that takes the trial now may write new ones.
    if (strays := _strays(folder)) and holder(folder) is None:
        with suppress(OSError):
            atomic.delete(strays)


def _strays(folder: Path) -> list[Path]:
    return [*atomic.partials(folder), *(saved.path for saved in newest_first(folder))]


class ReadOnlyFolder(TrialFolder):
    """The folder of a trial for the ranks that do not write its record."""

    records = False

    @contextmanager
    @override
    def claimed(
        self,
        config: Mapping[str, Any],
        made_by: Mapping[str, object],
        newest_before: int | None = None,
    ) -> Iterator[TrialFolder]:
        yield self

    @override
    def newest_checkpoint(self) -> Path | None:
        return None

    @override
    def resume(self, num_updates: int, path: Path | None) -> float:
        return 0.0

    @override
    def append(self, row: Row) -> None:
        pass

    @override
    def save(
        self, num_updates: int, state: Row, wait: bool = True, *, may_change: bool = True
    ) -> None:
        pass

    @override
    def keep_weights(self, num_updates: int, weights: Mapping[str, Tensor], number: int) -> None:
        pass

    @override
    def finish(self, result: Row) -> Row:
        return result
