"""A store of which one file is damaged, as hypothesis draws it, and restored."""

import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from tests.support import odd


class Place(NamedTuple):
    """A working folder with a store, and the files of that store as they were made."""

    folder: Path
    files: dict[Path, tuple[bytes, int]]
    interrupted: Path
    """The folder of the trial that was."""
    whole: dict[str, Any]
    """Its result when nothing is damaged, and below, its rows."""
    rows: list[dict[str, Any]]
    listed: dict[str, Any]
    """Trial → what `list` says of it."""

    def __repr__(self) -> str:
        """Short: hypothesis prints the arguments of a test that failed, and its warning of a long
        repr would stand in place of the failure."""
        return f"Place({self.folder})"


def restore(place: Place) -> None:
    shutil.rmtree(place.folder / "results")
    shutil.rmtree(place.folder / "report", ignore_errors=True)
    for path, (content, changed) in place.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(changed, changed))


ODD: dict[str, Callable[[Path], None]] = {
    "folder": Path.mkdir,
    "dead link": lambda path: path.symlink_to("nowhere"),
}
"""What people's tools leave where a file must be."""


class Damage(NamedTuple):
    """What stands at `path` in place of `instead_of`: a file, one of ODD, or nothing."""

    instead_of: Path
    path: Path
    kind: str
    content: bytes
    is_old: bool

    @contextmanager
    def written(self, place: Place) -> Iterator[None]:
        """The store is damaged while the context lasts."""
        try:
            self._write()
            yield
        finally:
            restore(place)

    def _write(self) -> None:
        self.instead_of.unlink(missing_ok=True)
        if self.kind == "content":
            self.path.write_bytes(self.content)
            if self.is_old:
                os.utime(self.path, (time.time() - 1000,) * 2)
        elif self.kind in ODD:
            ODD[self.kind](self.path)


def draw_damage(data: st.DataObject, place: Place, paths: Sequence[Path]) -> Damage:
    """Of one of the files, or of one that is not there. Nothing is written while it is drawn."""
    path = data.draw(st.sampled_from([*paths]), "file")
    valid = place.files[path][0] if path in place.files else b"{}"
    kind = data.draw(st.sampled_from(("content",) * 8 + (*ODD, "missing")))
    is_old = data.draw(st.booleans(), "old")
    if kind != "content":
        return Damage(path, path, kind, b"", is_old)
    if path.suffix == ".pt":
        name, content = _checkpoint(data, path.name, valid)
        return Damage(path, path.with_name(name), kind, content, is_old)
    by_suffix = {".json": odd.json_files, ".jsonl": odd.lines}
    content = data.draw(by_suffix.get(path.suffix, odd.contents)(valid), "content")
    return Damage(path, path, kind, content, is_old)


def _checkpoint(data: st.DataObject, name: str, valid: bytes) -> tuple[str, bytes]:
    """A checkpoint whose bytes were changed, whose digest may be right all the same, or which has
    another name, or another state."""
    content = data.draw(odd.contents(valid), "content")
    if data.draw(st.booleans(), "a state"):
        state = torch.load(io.BytesIO(valid), weights_only=True)
        key = data.draw(st.sampled_from([*state]), "key")
        if data.draw(st.booleans(), "drop"):
            del state[key]
        elif key not in ("executor", "random"):  # what is in there is known by its digest alone
            state[key] = data.draw(odd.values())
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
    if data.draw(st.booleans(), "right digest"):
        digest = hashlib.sha256(content).hexdigest()[:16]
        updates = data.draw(st.sampled_from(("000000005", "000000007", "9" * 12, "0")))
        name = f"checkpoint-{updates}-000001-{digest}.pt"
    return name, content
