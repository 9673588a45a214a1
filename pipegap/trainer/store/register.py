"""The register of a trial: the one object that says which files the trial has.

`registers/<id>.json` names the attempt, the process that runs the trial, and the files that the
trial's folder has now. Small documents stand in it; of other files it has the key of an object that
was written before. So whatever an attempt has uploaded counts only once its register names it, all
at once. Each write takes the place of the version that the process has read or written last. Hence
a worker that another one has replaced, as of a driver that was killed, cannot write any more.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import AfterValidator, TypeAdapter, with_config
from typing_extensions import TypedDict

from pipegap.trainer.base.errors import NO_TEXT, LeaseLost
from pipegap.trainer.folder.lease import NAME
from pipegap.trainer.folder.wellformed import KEYS, Count, Damaged, Form, parse
from pipegap.trainer.store.bucket import BucketClient, Changed, Version

FOLDER = "registers"
"""Where the registers lie: a listing shows which trials have been started, and which changed."""
KEY = re.compile(rf"{FOLDER}/(\w{{1,200}})\.json", re.ASCII)
RESULT, CHECKPOINT, ARCHIVED = "result.json", "checkpoint-", "earlier-"
"""The file that ends a trial; how the names of checkpoints begin, and those of the folders that
keep what a trial made before it ran again."""

LONGEST = 200
"""Bytes of a name: a file system allows 255, and one that is being written has more of them."""

File = dict[str, Any]
"""`text`, its content, or `key` and `size` of the object that has it."""


@dataclass(frozen=True)
class Register:
    """What is true of a trial. Its fields are keys of the object."""

    trial_id: str
    attempt: int = 0
    """The number of attempts so far."""
    holder: Mapping[str, Any] | None = None
    """The process that runs the trial, with the token of its driver; None if none does."""
    files: Mapping[str, File] = field(default_factory=dict)
    """By their names in the trial's folder."""

    @property
    def status(self) -> str | None:
        """The status in the trial's result; None without a result, or if it is damaged."""
        try:
            status: str | None = json.loads(self.files[RESULT]["text"]).get("status")
        except (LookupError, ValueError, AttributeError, RecursionError):
            return None
        return status

    @property
    def keys(self) -> set[str]:
        """The keys of all objects that it names."""
        return {file["key"] for file in self.files.values() if "key" in file}

    @property
    def newest_attempt(self) -> str:
        """The name of the newest attempt's file; empty if there is none."""
        return max(filter(NAME.fullmatch, self.files), default="")


class Written:
    """An object that this process writes, each time in place of the version that it knows."""

    def __init__(self, bucket: BucketClient, key: str, version: Version | None) -> None:
        """`version`: what was read; None if there was no such object."""
        self._bucket, self._key, self._version = bucket, key, version
        self.token, self._beat = uuid4().hex, 0

    def write(self, document: Mapping[str, Any]) -> None:
        """Write a document, with this process's token.

        Raises LeaseLost if another process has written the object, or StoreAway if it is not known
        whether it was written: the next write finds that out.
        """
        self._beat += 1  # no two contents are the same, even for a provider whose etags are digests
        whole = {"format": 1, **document, "writer": self.token, "beat": self._beat}
        content = json.dumps(whole, indent=1).encode()
        try:
            try:
                self._version = self._bucket.write(self._key, content, self._version)
            except Changed:  # it may be an own write whose answer was lost
                stored_content = self._bucket.read(self._key)
                if json.loads(stored_content.content).get("writer") != self.token:
                    raise
                self._version = stored_content.version
                if stored_content.content != content:
                    self._version = self._bucket.write(self._key, content, self._version)
        except (Changed, FileNotFoundError, ValueError, AttributeError, RecursionError):
            message = f"{self._key} of {self._bucket.url} was written by another process"
            raise LeaseLost(message) from None


@dataclass
class Seen:
    """A register as this process has read it, or written it last."""

    register: Register
    _written: Written

    def write(self, **changes: Any) -> None:
        """Write the register with `changes`. Raises LeaseLost or StoreAway, as `Written` does."""
        new = replace(self.register, **changes)
        self._written.write(vars(new))
        self.register = new


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


def see(bucket: BucketClient, trial_id: str) -> Seen:
    """Read the register of a trial, an empty one if it has none. Raises Damaged, StoreAway."""
    path = Path(key(trial_id))
    try:
        content, version, _ = bucket.read(str(path))
    except FileNotFoundError:
        return Seen(Register(trial_id), Written(bucket, str(path), None))
    try:
        document = parse(content, REGISTER)
    except ValueError as error:
        raise Damaged(path, str(error)) from None
    if document["trial_id"] != trial_id:
        why = f"is a copy of the register of trial {document['trial_id']}: move it away"
        raise Damaged(path, why)
    register = Register(**{field.name: document[field.name] for field in fields(Register)})
    return Seen(register, Written(bucket, str(path), version))


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


def write(path: Path, content: bytes) -> None:
    """Replace a file at once. It need not survive the machine: the store has it."""
    with _replaced(path) as partial:
        partial.write_bytes(content)


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


def is_path(name: str) -> bool:
    """Return whether a name leads to a place below a folder, of this machine or of a bucket."""
    parts = name.split("/")
    is_whole = not {"", ".", ".."} & {*parts} and NO_TEXT.search(name) is None
    return is_whole and max(len(part.encode()) for part in parts) <= LONGEST


def _is_inside(name: str) -> str:
    """Refuse a name that leads out of the trial's folder, wherever that is copied to."""
    if not is_path(name):
        raise ValueError("must be a path in the trial's folder")
    return name


def _are_files(files: dict[str, Any]) -> dict[str, Any]:
    if files.keys() & {str(parent) for name in files for parent in Path(name).parents}:
        raise ValueError("must not have a file within a file")
    return files


@with_config(KEYS)
class _Text(TypedDict):
    text: str


@with_config(KEYS)
class _Object(TypedDict):
    key: Annotated[str, AfterValidator(_is_inside)]
    size: Count


@with_config(KEYS)
class _Register(TypedDict):
    format: Literal[1]
    trial_id: str
    attempt: Count
    holder: dict[str, Any] | None
    files: Annotated[
        dict[Annotated[str, AfterValidator(_is_inside)], _Text | _Object],
        AfterValidator(_are_files),
    ]


REGISTER: Form = TypeAdapter(_Register)
