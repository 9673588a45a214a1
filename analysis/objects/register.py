"""The register of a trial: the one object that says what is true of it.

`registers/<id>.json` is only ever written by compare and swap: created if it is not there, or
replaced if it still has the version that was read. It names the attempt, who holds the trial, and
the files that the trial's folder has now. Small documents stand in it; of other files it has the
key of an object that was written before. So whatever an attempt has uploaded counts only once a
swap of the register names it, and a process that was taken over cannot swap any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, TypeAdapter, with_config
from typing_extensions import TypedDict

from analysis.objects.bucket import Version
from trainer.folder.lease import attempt_name
from trainer.folder.wellformed import KEYS, Count, Form, parse

FOLDER = "registers"
"""Where the registers lie: a listing shows which trials have been started, and which changed."""
FORMAT = 1

File = dict[str, Any]
"""`text`, its content, or `key` and `size` of the object that has it."""


@dataclass(frozen=True)
class Register:
    """What is true of a trial."""

    trial_id: str
    attempt: int = 0
    """The number of attempts so far."""
    writer: str = ""
    """The token of the process that wrote this version."""
    beat: int = 0
    """Grows with each heartbeat, so that a holder that lives is seen to."""
    holder: Mapping[str, Any] | None = None
    """The process that runs the trial, as in an attempt's file; None if none does."""
    files: Mapping[str, File] = field(default_factory=dict)
    """By their names in the trial's folder."""

    def json(self) -> bytes:
        """Its content. No two writes of a process are the same: they differ in `beat`."""
        whole = {
            "format": FORMAT,
            "trial_id": self.trial_id,
            "attempt": self.attempt,
            "writer": self.writer,
            "beat": self.beat,
            "holder": self.holder,
            "files": self.files,
        }
        return json.dumps(whole, indent=1).encode()

    def text(self, name: str) -> dict[str, Any] | None:
        """The JSON object in a document; None if there is none of this name, or it is damaged."""
        try:
            found = json.loads(self.files[name]["text"])
        except (LookupError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def keys(self) -> set[str]:
        """Of all objects that it names."""
        return {file["key"] for file in self.files.values() if "key" in file}

    @property
    def attempt_file(self) -> str:
        """The name of the newest attempt's file."""
        return attempt_name(self.attempt)

    def written_by(self, writer: str, **changes: Any) -> Register:
        """What a process writes next."""
        return replace(self, writer=writer, beat=self.beat + 1, **changes)


@dataclass(frozen=True)
class Seen:
    """A register as it was read."""

    register: Register
    version: Version
    modified: float
    """By the server's clock."""


def key(trial_id: str) -> str:
    """Of a trial's register."""
    return f"{FOLDER}/{trial_id}.json"


def objects(trial_id: str) -> str:
    """Below which the objects of a trial lie."""
    return f"trials/{trial_id}"


def read(content: bytes) -> Register:
    """Raises ValueError, which says in a line what is wrong."""
    found = parse(content, REGISTER)
    of = ("trial_id", "attempt", "writer", "beat", "holder", "files")
    return Register(**{name: found[name] for name in of})


def _is_inside(name: str) -> str:
    """The files lie in the trial's folder, wherever that is copied to."""
    if name.startswith("/") or "\0" in name or {"", ".", ".."} & {*name.split("/")}:
        raise ValueError("must be a path in the trial's folder")
    return name


@with_config(KEYS)
class _File(TypedDict):
    text: NotRequired[str]
    key: NotRequired[str]
    size: NotRequired[Count]


def _has_content(file: File) -> File:
    if ("text" in file) == {"key", "size"} <= {*file}:
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
