"""What machines that work together must share: the store and the data, under the same paths."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sweeps.expand import overrides
from sweeps.request import Request
from trainer.errors import BadInput

PATHS = ("data.path", "resume_from")
"""Keys of a trial that name what lies outside its folder."""


def require_shared(asked: Request) -> None:
    """Raises BadInput for a path that means something else in a job: its working directory is a
    copy of the code, on another machine."""
    _require_absolute("results", str(asked.results))
    paths = [(key, path) for key, path in _words(asked) if key in PATHS]
    for key, path in paths:
        _require_absolute(key, path)
    if "data.path" not in dict(paths):
        raise BadInput("data.path", "", _ALLOWED)


_ALLOWED = "must be given as an absolute path, on storage that all nodes share"


def _require_absolute(key: str, path: str) -> None:
    if not os.path.isabs(path):
        raise BadInput(key, path, _ALLOWED)


def _words(asked: Request) -> Iterator[tuple[str, str]]:
    """Every key that the sweep sets anywhere, with its value."""
    swept = [
        word
        for key, values in asked.sweep.grid.items()
        for value in values
        for word in overrides(key, value)
    ]
    for word in [*asked.sweep.base, *swept, *(w for arm in asked.sweep.arms.values() for w in arm)]:
        key, _, value = word.partition("=")
        yield key, value
