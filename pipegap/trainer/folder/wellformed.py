"""Which files of a store hold what they should: JSON objects whose keys have their types.

A form lists the keys that are read somewhere. An object may lack keys that are not required, which
older code did not write, and may have other keys, which newer code wrote.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required

from annotated_types import Ge, Gt
from pydantic import AfterValidator, ConfigDict, Strict, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from pipegap.trainer.base.errors import BadInput, some
from pipegap.trainer.base.status import FINAL

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
RESULT: Form = TypeAdapter(Annotated[_Result, AfterValidator(_whole_result)])
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
