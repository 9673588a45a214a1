"""Writes a split of a prepared folder, document by document; it can go on where it was killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trainer.base.digests import file_hash
from trainer.data.manifest import File, Shard, Split, TokenType

SHARD_TOKENS = 100_000_000
END = np.dtype("<i8")
"""How the end of a document is written, until all ends are known."""


class SplitWriter:
    """Writes one split of a folder. `before`: the state from which it goes on."""

    def __init__(
        self, folder: Path, split: str, vocab_size: int, before: Mapping[str, Any] | None = None
    ) -> None:
        self._folder, self._split, self._vocab_size = folder, split, vocab_size
        self._dtype: TokenType = "<u2" if vocab_size <= 2**16 else "<u4"
        found = before or {"shards": [], "length": 0, "num_tokens": 0, "num_documents": 0}
        self._shards = [Shard(**shard) for shard in found["shards"]]
        self._length: int = found["length"]
        self.num_tokens: int = found["num_tokens"]
        self.num_documents: int = found["num_documents"]
        self._file = _opened(self._path(), self._length * np.dtype(self._dtype).itemsize)
        self._ends = _opened(folder / f"{split}-ends", self.num_documents * END.itemsize)

    def add(self, document: npt.NDArray[np.integer[Any]]) -> None:
        """Appends a document's tokens, its end token among them."""
        if len(document) and not 0 <= document.min() <= document.max() < self._vocab_size:
            raise ValueError(f"a token lies outside 0 … {self._vocab_size - 1}")
        self._file.write(document.astype(self._dtype).tobytes())
        self._length += len(document)
        self.num_tokens += len(document)
        self.num_documents += 1
        self._ends.write(np.array(self.num_tokens, END).tobytes())
        if self._length >= SHARD_TOKENS:
            self._close_shard()
            self._file = _opened(self._path(), 0)

    def state(self) -> dict[str, Any]:
        """What was written, all of it on the disk."""
        for file in (self._file, self._ends):
            file.flush()
            os.fsync(file.fileno())
        return {
            "shards": [shard.model_dump() for shard in self._shards],
            "length": self._length,
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
        }

    def release(self) -> None:
        """Closes the files, whatever they hold."""
        self._file.close()
        self._ends.close()

    def close(self) -> Split:
        """Finishes the split; returns its part of the manifest."""
        self._close_shard()
        self._ends.close()
        written = Path(self._ends.name)
        ends = self._folder / f"{self._split}-ends.npy"
        np.save(ends, np.fromfile(written, END))
        written.unlink()
        return Split(
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            dtype=self._dtype,
            shards=self._shards,
            document_ends=File(file=ends.name, sha256=file_hash(ends)),
        )

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05d}.tokens"

    def _close_shard(self) -> None:
        """Nothing is left of a shard without tokens."""
        self._file.close()
        path = self._path()
        if not self._length:
            path.unlink()
            return
        shard = Shard(file=path.name, num_tokens=self._length, sha256=file_hash(path))
        self._shards.append(shard)
        self._length = 0


def _opened(path: Path, num_bytes: int) -> BinaryIO:
    """The file, of which only the first `num_bytes` are kept, to be appended to."""
    file = path.open("ab")
    file.truncate(num_bytes)
    return file
