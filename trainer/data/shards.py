"""Token shards on disk: files of tokens, document ends, and the manifest that describes them.

A prepared folder holds `manifest.json`, written last: corpus, licence, tokenizer, vocabulary, and
for each split its shards and its document ends (.npy, offsets into the split) with length and
SHA-256. The manifest's own SHA-256 identifies the data.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trainer.data.tokens import Array, Dataset, Tokens
from trainer.errors import BadInput
from trainer.record import write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
SHARD_TOKENS = 100_000_000


class SplitWriter:
    """Writes one split of a folder, document by document."""

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        self._folder, self._split, self._vocab_size = folder, split, vocab_size
        self._dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self._shards: list[dict[str, Any]] = []
        self._ends: list[int] = []
        self._file: BinaryIO | None = None
        self._length = 0
        self.num_tokens = 0

    def add(self, document: npt.NDArray[np.integer[Any]]) -> None:
        """Appends a document's tokens, its end token among them."""
        if len(document) and not 0 <= document.min() <= document.max() < self._vocab_size:
            raise ValueError(f"a token lies outside 0 … {self._vocab_size - 1}")
        if self._file is None:
            self._file = self._path().open("wb")
        self._file.write(document.astype(self._dtype).tobytes())
        self._length += len(document)
        self.num_tokens += len(document)
        self._ends.append(self.num_tokens)
        if self._length >= SHARD_TOKENS:
            self._close_shard()

    def close(self) -> dict[str, Any]:
        """Finishes the split; returns its part of the manifest."""
        if self._file is not None:
            self._close_shard()
        ends = self._folder / f"{self._split}-ends.npy"
        np.save(ends, np.array(self._ends, dtype=np.int64))
        return {
            "num_tokens": self.num_tokens,
            "num_documents": len(self._ends),
            "dtype": self._dtype.str,
            "shards": self._shards,
            "document_ends": {"file": ends.name, "sha256": file_hash(ends)},
        }

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05d}.tokens"

    def _close_shard(self) -> None:
        assert self._file is not None
        self._file.close()
        path = self._path()
        self._shards.append(
            {"file": path.name, "num_tokens": self._length, "sha256": file_hash(path)}
        )
        self._file, self._length = None, 0


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Makes the folder valid."""
    text = json.dumps({"format": FORMAT, **content}, indent=1, sort_keys=True)
    write_atomically(folder / MANIFEST, text.encode())


class Prepared:
    """Shards that `python -m trainer.data` wrote."""

    def __init__(self, *, path: str) -> None:
        self._path = Path(path)

    @property
    def hash(self) -> str | None:
        """SHA-256 of the manifest; None where nothing is prepared."""
        manifest = self._path / MANIFEST
        return file_hash(manifest) if manifest.exists() else None

    def open(self) -> Dataset:
        """Every file is verified; raises BadInput naming the one that is not as it was written."""
        manifest = self._path / MANIFEST
        if not manifest.exists():
            allowed = f"holds no {MANIFEST}; prepare it with `make data-{self._path.name}`"
            raise BadInput("data.path", self._path, allowed)
        content = json.loads(manifest.read_text())
        if content.get("format") != FORMAT:
            raise self._bad(f"has format {content.get('format')}, not {FORMAT}")
        splits = content["splits"]
        return Dataset(
            content["vocab_size"], self._split(splits["train"]), self._split(splits["validation"])
        )

    def _split(self, split: dict[str, Any]) -> Tokens:
        self._verify(split["document_ends"])
        return Tokens([self._shard(shard, split["dtype"]) for shard in split["shards"]])

    def _shard(self, shard: dict[str, Any], dtype: str) -> Array:
        self._verify(shard)
        return np.memmap(self._path / shard["file"], dtype=dtype, mode="r")

    def _verify(self, entry: dict[str, Any]) -> None:
        path = self._path / entry["file"]
        if not path.exists():
            raise self._bad(f"lacks {path.name}")
        if file_hash(path) != entry["sha256"]:
            raise self._bad(f"has a truncated or altered {path.name}")

    def _bad(self, problem: str) -> BadInput:
        advice = f"delete the folder and prepare it again with `make data-{self._path.name}`"
        return BadInput("data.path", self._path, f"{problem}; {advice}")
