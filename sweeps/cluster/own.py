"""What of the user's own a job takes along: a folder of code, sweep files and search files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sweeps.request.command_line import Request
from sweeps.request.overrides import keys, overrides
from sweeps.request.schema import Sweep
from trainer.base.code import code_digest
from trainer.base.errors import BadInput

CODE_KEY = "code"
"""The word that names a folder of the user's own code."""
OWN_CODE, OWN_FILES = "own_code", "own_files"
"""What that folder, and the one with the files, are called in a job."""
OF_FILES = ("sweep", "search")
"""Words whose values may be files."""


@dataclass(frozen=True)
class Own:
    """A folder of code, and files by their paths in the job."""

    code: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def digests(self) -> list[str]:
        """Of all that is sent; empty if nothing is."""
        found = [] if self.code is None else [code_digest(self.code)]
        contents = (f"{name}\0".encode() + path.read_bytes() for name, path in self.files.items())
        return [*found, *(hashlib.sha256(content).hexdigest() for content in contents)]


def take_along(given: Mapping[str, str], asked: Request) -> tuple[list[str], Own]:
    """The words of a job that asks for the same as `given`, and what it needs of the user's own.

    The folder of code is that of the words, or else of the sweep files. Raises BadInput if these
    name several, or one elsewhere than in `base`, which a word of the command line replaces.
    """
    code = given.get(CODE_KEY) or _code_of(asked.sweeps.values())
    words, files = dict(given), dict[str, Path]()
    for key in OF_FILES:
        names = given.get(key, "").split(",")
        sent = {name: f"{OWN_FILES}/{key}/{Path(name).name}" for name in names if _is_file(name)}
        files |= {there: Path(name) for name, there in sent.items()}
        if sent:
            words[key] = ",".join(sent.get(name, name) for name in names)
    if code is not None:
        words[CODE_KEY] = OWN_CODE
    return [f"{key}={value}" for key, value in words.items()], Own(code, files)


def _is_file(name: str) -> bool:
    return name.endswith(".yaml")


def _code_of(sweeps: Iterable[Sweep]) -> str | None:
    """The folder that the sweeps name; None if they name none."""
    found = set()
    for sweep in sweeps:
        swept = [word for key, of in sweep.grid.items() for v in of for word in overrides(key, v)]
        if CODE_KEY in keys([*swept, *(word for arm in sweep.arms.values() for word in arm)]):
            raise BadInput(CODE_KEY, "", "must be in base, or on the command line, to be sent")
        words = (word.partition("=") for word in sweep.base)
        found |= {value for key, _, value in words if key == CODE_KEY}
    if len(found) > 1:
        raise BadInput(CODE_KEY, ", ".join(sorted(found)), "must be one folder, which is sent")
    return next(iter(found), None)
