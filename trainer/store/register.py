"""The register of a trial: the one object that says what is true of it.

`registers/<id>.json` is only ever written by compare and swap: created if it is not there, or
replaced if it still has the version that was read. It names the attempt, who holds the trial, and
the files that the trial's folder has now. Small documents stand in it; of other files it has the
key of an object that was written before. So whatever an attempt has uploaded counts only once a
swap of the register names it, and a process that was taken over cannot swap any more.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired
from uuid import uuid4

from pydantic import AfterValidator, TypeAdapter, with_config
from typing_extensions import TypedDict

from pipegap.trainer.folder.lease import attempt_name
from pipegap.trainer.folder.wellformed import KEYS, Count, Damaged, Form, parse
from pipegap.trainer.store.bucket import BucketClient, Version

FOLDER = "registers"
"""Where the registers lie: a listing shows which trials have been started, and which changed."""
KEY = re.compile(rf"{FOLDER}/(\w+)\.json")
FORMAT = 1
RESULT, CHECKPOINT, ARCHIVED = "result.json", "checkpoint-", "earlier-"
"""The file that ends a trial; how the names of checkpoints begin, and those of the folders that
keep what a trial made before it ran again."""

File = dict[str, Any]
"""`text`, its content, or `key` and `size` of the object that has it."""


@dataclass(frozen=True)
class Register:
    """What is true of a trial. Its fields are the keys of the object, after `format`."""

    trial_id: str
    attempt: int = 0
    """The number of attempts so far."""
    writer: str = ""
    """The token of the process that wrote this version."""
    beat: int = 0
    """Grows with each write, so that no two writes of a process are the same."""
    holder: Mapping[str, Any] | None = None
    """The process that runs the trial, as in an attempt's file; None if none does."""
    files: Mapping[str, File] = field(default_factory=dict)
    """By their names in the trial's folder."""

    def json(self) -> bytes:
        """Return the content of the object."""
        return json.dumps({"format": FORMAT, **vars(self)}, indent=1).encode()

    @property
    def status(self) -> str | None:
        """The status in the trial's result; None without a result, or if it is damaged."""
        try:
            status: str | None = json.loads(self.files[RESULT]["text"]).get("status")
        except (LookupError, ValueError, AttributeError):
            return None
        return status

    @property
    def keys(self) -> set[str]:
        """The keys of all objects that it names."""
        return {file["key"] for file in self.files.values() if "key" in file}

    @property
    def attempt_file(self) -> str:
        """The name of the newest attempt's file."""
        return attempt_name(self.attempt)

    def written_by(self, writer: str, **changes: Any) -> "Register":
        """Return what the process `writer` writes next."""
        return replace(self, writer=writer, beat=self.beat + 1, **changes)


@dataclass(frozen=True)
class Seen:
    """A register as it was read."""

    register: Register
    version: Version
    modified: float
    """By the server's clock."""


def key(trial_id: str) -> str:
    """Return the key of a trial's register."""
    return f"{FOLDER}/{trial_id}.json"


def trial_of(key: str) -> str | None:
    """Return the trial whose register has this key; None if the object is no register."""
    match = KEY.fullmatch(key)
    return match and match[1]


def objects(trial_id: str) -> str:
    """Return the path below which the objects of a trial lie."""
    return f"trials/{trial_id}"


def see(bucket: BucketClient, trial_id: str) -> Seen | None:
    """Return the register of a trial; None if it has none. Raises Damaged, StoreAway."""
    try:
        content, version, modified = bucket.read(key(trial_id))
        document = parse(content, REGISTER)
        if document["trial_id"] != trial_id:
            why = f"is a copy of the register of trial {document['trial_id']}: move it away"
            raise Damaged(Path(key(trial_id)), why)
        values = {field.name: document[field.name] for field in fields(Register)}
        return Seen(Register(**values), version, modified)
    except FileNotFoundError:
        return None
    except Damaged:
        raise
    except ValueError as error:
        raise Damaged(Path(key(trial_id)), str(error)) from None


def fetch(bucket: BucketClient, file: File, path: Path) -> None:
    """Write a file of a register, unless it is there with this text. Raises FileNotFoundError."""
    if "text" not in file:
        with _replaced(path) as partial:
            bucket.download(file["key"], partial, file["size"])
    elif not path.is_file() or path.read_bytes() != file["text"].encode():
        write(path, file["text"].encode())


def names_in(folder: Path) -> Iterator[str]:
    """Yield the files below a folder by their paths in it, but for hidden ones."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return (str(path) for path in paths if not any(part.startswith(".") for part in path.parts))


def write(path: Path, written: bytes) -> None:
    """Replace a file at once. It need not survive the machine: the store has it."""
    with _replaced(path) as partial:
        partial.write_bytes(written)


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` for a new file, which takes the place of `path` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _is_inside(name: str) -> str:
    """Refuse a name that leads out of the trial's folder, wherever that is copied to."""
    if name.startswith("/") or "\0" in name or {"", ".", ".."} & {*name.split("/")}:
        raise ValueError("must be a path in the trial's folder")
    return name


@with_config(KEYS)
class _File(TypedDict):
    text: NotRequired[str]
    key: NotRequired[str]
    size: NotRequired[Count]


def _has_content(file: File) -> File:
    if ("text" in file) == ({"key", "size"} <= {*file}):
        raise ValueError("must have a text, or the key and the size of an object")
    return file


@with_config(KEYS)
class _Register(TypedDict):
    format: Literal[1]
    trial_id: str
    attempt: Count
    writer: str
    beat: Count
    holder: dict[str, Any] | None
    files: dict[
        Annotated[str, AfterValidator(_is_inside)], Annotated[_File, AfterValidator(_has_content)]
    ]


REGISTER: Form = TypeAdapter(_Register)
