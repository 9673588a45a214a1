"""The files of a trial's folder that are read without torch: which hold what they should,
result.json, metrics.jsonl.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required

from annotated_types import Ge, Gt
from pydantic import AfterValidator, ConfigDict, Strict, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from pipegap.trainer.base.atomic import partial, publish
from pipegap.trainer.base.errors import FINAL, BadInput, Status, some

# Which files of a store hold what they should: JSON objects whose keys have their types.
#
# A form lists the keys that are read somewhere. An object may lack keys that are not required,
# which older code did not write, and may have other keys, which newer code wrote.

Content = dict[str, Any]
Form = TypeAdapter[Any]

OF_FINAL = ("trial_id", "final_val_loss", "num_updates", "wall_seconds", "delays")
"""What the result of a trial that does not run again has."""
MARKER = "trial_id"
"""The file that says whose folder it is."""


class Damaged(BadInput):
    """A file that somebody has to repair or delete; the text is one line: file, what is wrong."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__("file", path, why)
        self.path = path


def said(damaged: Sequence[Damaged]) -> str:
    """Which files are damaged, and how: the first of them, and the number of the others."""
    return some([f"{error.value} {error.allowed}" for error in damaged])


def in_a_line(damaged: Sequence[Damaged], repair: str) -> str:
    """The line that says which files are damaged, how, and what to do about it."""
    return f"not counted, because damaged: {said(damaged)}: {repair}, or delete what is damaged"


def damage(path: Path, error: Damaged | OSError) -> Damaged:
    """What is wrong with a file, for readers that leave out what they cannot read."""
    if isinstance(error, Damaged):
        return error
    return Damaged(path, f"cannot be read ({error.strerror})")


def content(path: Path) -> bytes:
    """The bytes of a file. Raises FileNotFoundError, or Damaged for a folder in its place."""
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise Damaged(path, "is a folder, where a file must be") from None


def recorded_id(folder: Path) -> str | None:
    """The id of the trial whose folder it is; None if its marker is missing. Raises Damaged."""
    path = folder / MARKER
    try:
        trial_id = content(path).decode().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (Damaged, UnicodeDecodeError):
        trial_id = ""
    if not trial_id.isalnum():
        raise Damaged(path, f"names no trial: delete it if this is {folder.name}'s folder")
    return trial_id


def require_own(folder: Path, trial_id: str) -> None:
    """Raises BadInput if the folder is another trial's."""
    id_there = recorded_id(folder)
    if id_there not in (None, trial_id):
        allowed = f"holds trial {id_there}, not {trial_id}: choose an empty folder"
        raise BadInput("out", folder, allowed)


def read(path: Path, form: Form) -> Content:
    """The JSON object in a file. Raises FileNotFoundError, or Damaged if it is not of this form."""
    whole = content(path)
    try:
        return parse(whole, form)
    except ValueError as error:
        raise Damaged(path, str(error)) from None


def parse(text: bytes, form: Form) -> Content:
    """The JSON object in `text`. Raises ValueError, which says in a line why it is none."""
    try:
        parsed: Content = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"is not whole JSON ({error})") from None
    check(parsed, form)
    return parsed


def check(content: object, form: Form) -> None:
    """Raises ValueError, which says in a line what is wrong, if `content` is not of this form."""
    try:
        form.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"is not what was written ({key}: {message})") from None


KEYS = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
"""How the keys of a form are checked."""
Count = Annotated[int, Strict(), Ge(0)]
Amount = Annotated[float, Strict(), Ge(0)]
_ByName = dict[str, str | None]


@with_config(KEYS)
class _Result(TypedDict, total=False):
    status: Required[Literal["completed", "diverged", "failed"]]
    trial_id: str
    data_hash: str | None
    trainer_version: int
    sources: dict[str, str]
    git: str | None
    versions: _ByName
    device_name: str | None
    processor: str | None
    final_val_loss: float | None
    diverged_at: Count | None
    seed: Count
    looks_ahead: bool
    num_updates: Count
    num_parameters: Count
    num_active_parameters: Count
    tokens: Count
    epochs: Amount
    wall_seconds: Amount
    tokens_per_second: Amount
    delays: list[Count] | None
    layers_by_stage: list[Count]
    peak_memory_bytes: Count | None
    bubble: float | None
    error: str


def _whole_result(result: Content) -> Content:
    for key in OF_FINAL if result["status"] in FINAL else ():
        if key not in result:
            raise ValueError(f"{key} is missing")
    if result["status"] == "completed" and result["final_val_loss"] is None:
        raise ValueError("final_val_loss is missing, though the trial completed")
    return result


@with_config(KEYS)
class _Choice(TypedDict):
    _target_: str


@with_config(KEYS)
class _Data(_Choice, total=False):
    path: str


@with_config(KEYS)
class _Correction(_Choice, total=False):
    coefficient: float
    lag: int | str


@with_config(KEYS)
class _Pipeline(_Choice, total=False):
    num_stages: Required[Annotated[int, Gt(0)]]
    num_microbatches: Required[Annotated[int, Gt(0)]]
    synchronous_start: Amount
    synchronous_cooldown: Amount


@with_config(KEYS)
class _Config(TypedDict, total=False):
    choices: _ByName | None
    model: Required[_Choice]
    data: Required[_Data]
    optimizer: Required[_Choice]
    pipeline: Required[_Pipeline]
    correction: Required[_Correction]
    lr_schedule: Required[_Choice]
    batch_size: Required[Annotated[int, Gt(0)]]
    seq_len: Required[Annotated[int, Gt(0)]]
    num_updates: Required[Annotated[int, Gt(0)] | None]
    tokens_per_parameter: Amount | None
    clip_norm: float | None
    seed: Required[Count]
    num_replicas: Annotated[int, Gt(0)]
    device: str


@with_config(KEYS)
class _Attempt(TypedDict, total=False):
    attempt: Count
    host: str
    pid: int
    machine: str | None
    process_started: str | None
    from_update: Count
    ended: str
    versions: _ByName


@with_config(KEYS)
class _Row(TypedDict, total=False):
    update: Required[Count]
    train_loss: float | None
    val_loss: float | None
    tokens_per_second: Amount
    wall_seconds: Amount
    diagnostics: dict[str, dict[str, float | None]]


@with_config(ConfigDict(extra="allow", strict=True))
class _State(TypedDict):
    trial_id: str
    num_updates: Count
    config: dict[str, Any]
    executor: dict[str, Any]
    random: Any
    delays: list[Count]
    val_loss: float
    train_seconds: float
    rows: NotRequired[str]


OF_RESULT = frozenset(_Result.__annotations__)
"""The keys of a result whose types are known."""
RESULT_FORM: Form = TypeAdapter(Annotated[_Result, AfterValidator(_whole_result)])
"""result.json. One of a trial that does not run again has its loss and its length."""
CONFIG: Form = TypeAdapter(_Config)
"""config.json, as far as tables read it: whether such a trial can run is for `config.schema`."""
ATTEMPT: Form = TypeAdapter(_Attempt)
"""attempt-*.json."""
ROW: Form = TypeAdapter(_Row)
"""A line of metrics.jsonl."""
ROWS: Form = TypeAdapter(list[_Row])
"""Several of them."""
STATE: Form = TypeAdapter(_State)
"""The state in a checkpoint."""


# What a trial's folder says of its end: how, and why. Without torch.

Row = dict[str, Any]
RESULT = "result.json"
LIST_FAILED = ("pipegap", "list", "status=failed")
"""The command that lists failed trials, each with its reason."""


def trial_folder(config: Mapping[str, Any], trial_id: str) -> Path:
    """The folder of a trial: `out` of its config, or its place in the store."""
    return Path(config["out"] or f"{config['results']}/trials/{trial_id}")


def read_result(folder: Path) -> Row | None:
    """The content of result.json; None if there is none, or it is damaged: the trial runs again."""
    try:
        return read(folder / RESULT, RESULT_FORM)
    except (FileNotFoundError, NotADirectoryError, Damaged):
        return None


def final(result: Row | None) -> Row | None:
    """The result of a trial that does not run again; None if it has none yet, or failed."""
    return None if result is None or result["status"] == Status.FAILED else result


def why_failed(error: str) -> str:
    """The line of an error's text that says most: of a traceback where its message begins, else the
    first."""
    lines = [line for line in error.splitlines() if line.strip()] or ["no reason is recorded"]
    calls = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    message_lines = lines[calls[-1] + 1 :] if calls else []
    return next((line for line in message_lines if not line[0].isspace()), lines[-bool(calls)])


def failures(failed: Iterable[tuple[str, Row]], num_trials: int) -> Iterator[str]:
    """Yield a line per reason why some of so many trials failed: names and results of those."""
    names: dict[str, list[str]] = {}
    for name, result in failed:
        names.setdefault(why_failed(result.get("error") or ""), []).append(name)
    for why, those in names.items():
        yield f"{len(those)} of {num_trials} failed: {why} ({some(those)})"


# metrics.jsonl: one row per update, written by one process at a time, and read after a crash.

TAIL = 1 << 16
"""Bytes at the end of the file that hold its last row."""


class Line(NamedTuple):
    """One line of the file, and the wall seconds that the trial had taken by then."""

    content: bytes
    wall_seconds: float


def read_rows(path: Path) -> dict[int, Line]:
    """The whole lines by their update, sorted; of several of one update, the last.

    What a crash tore or filled with zeros is no line.
    """
    content = path.read_bytes() if path.is_file() else b""
    lines: dict[int, Line] = {}
    for line in content.splitlines(keepends=True):
        if (row := row_of(line)) is not None:
            lines[row["update"]] = Line(line, row.get("wall_seconds", 0.0))
    return dict(sorted(lines.items()))


def row_of(line: bytes) -> Row | None:
    """The row in a line of the file; None if the line is not whole."""
    try:
        return parse(line, ROW) if line.endswith(b"\n") else None
    except ValueError:
        return None


def rows_of(lines: Sequence[bytes]) -> Sequence[Row | None]:
    """`row_of` each of the lines, in a fifth of the time where all of them are whole."""
    try:
        rows = from_json(b"[" + b",".join(lines) + b"]", allow_inf_nan=False)
        check(rows, ROWS)
    except ValueError:
        rows = []
    are_whole = len(rows) == len(lines) and {line[:1] + line[-2:] for line in lines} <= {b"{}\n"}
    return rows if are_whole else [*map(row_of, lines)]


def digest(lines: Iterable[bytes]) -> str:
    """What a checkpoint knows its rows by: any other bytes have another digest."""
    return hashlib.sha256(b"".join(lines)).hexdigest()


def last_row(folder: Path) -> Row | None:
    """The last complete row of metrics.jsonl; None if there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
    return next(filter(None, map(row_of, reversed(lines))), None)


def row_number(folder: Path, number: int) -> Row | None:
    """The row in this line of metrics.jsonl, of which the first has number 1; None if there is no
    such line or it is not whole."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            lines = [*islice(file, number)]
    except OSError:
        return None
    return row_of(lines[-1]) if len(lines) == number else None


class Metrics:
    """The file as the process that holds the trial writes it; `close` it at the end.

    Each attempt replaces the file by a copy of the `lines` that it keeps, and appends to that copy,
    which it holds open. So the rows of a process that was taken over and does not know it yet go to
    a file that has no name any more. `permit` raises if another process holds the trial now.
    """

    def __init__(self, path: Path, lines: Iterable[bytes], permit: Callable[[], None]) -> None:
        self._path, self._permit = path, permit
        content = b"".join(lines)
        self._written = hashlib.sha256(content)
        self._file = self._publish(content)

    @property
    def digest(self) -> str:
        """`digest` of all lines so far."""
        return self._written.hexdigest()

    def append(self, row: Row) -> None:
        """Appends the row of one update."""
        self._permit()
        remaining = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._written.update(remaining)
        while remaining:  # a disk that is nearly full takes a part
            remaining = remaining[self._file.write(remaining) :]

    def sync(self) -> None:
        """On return every row is on the disk, under the file's name.

        A process that was taken over while it replaced the file may have done so after this one:
        then the file is put in its place again.
        """
        self._permit()
        if not self._is_in_place():
            self._file.seek(0)
            content = self._file.read()
            self._file.close()
            self._file = self._publish(content)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _publish(self, content: bytes) -> FileIO:
        with partial(self._path.parent, self._path.name) as (filled, file):
            file.write(content)
        opened = filled.open("a+b", buffering=0)
        try:
            publish(filled, self._path, self._permit)
        except BaseException:
            opened.close()
            raise
        return opened
