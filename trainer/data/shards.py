"""Token shards on disk: files of tokens, document ends, and the manifest that describes them.

A prepared folder holds `manifest.json`, written last: corpus, licence, tokenizer, vocabulary, and
for each split its shards and its document ends (.npy, offsets into the split) with length and
SHA-256. The manifest's own SHA-256 identifies the data.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from trainer.base.errors import BadInput
from trainer.base.ranges import Place
from trainer.data.manifest import MANIFEST, File, Manifest, Shard, Split, TokenType
from trainer.data.tokens import Array, Dataset, Tokens

SHARD_TOKENS = 100_000_000


class SplitWriter:
    """Writes one split of a folder, document by document."""

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        self._folder, self._split, self._vocab_size = folder, split, vocab_size
        self._dtype: TokenType = "<u2" if vocab_size <= 2**16 else "<u4"
        self._shards: list[Shard] = []
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

    def close(self) -> Split:
        """Finishes the split; returns its part of the manifest."""
        if self._file is not None:
            self._close_shard()
        ends = self._folder / f"{self._split}-ends.npy"
        np.save(ends, np.array(self._ends, dtype=np.int64))
        return Split(
            num_tokens=self.num_tokens,
            num_documents=len(self._ends),
            dtype=self._dtype,
            shards=self._shards,
            document_ends=File(file=ends.name, sha256=file_hash(ends)),
        )

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05d}.tokens"

    def _close_shard(self) -> None:
        assert self._file is not None
        self._file.close()
        path = self._path()
        shard = Shard(file=path.name, num_tokens=self._length, sha256=file_hash(path))
        self._shards.append(shard)
        self._file, self._length = None, 0


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Prepared:
    """Shards that `python -m trainer.data` wrote."""

    def __init__(self, *, path: Place) -> None:
        self._path = Path(path)

    @property
    def hash(self) -> str | None:
        """SHA-256 of the manifest; None where nothing is prepared."""
        return file_hash(self._path / MANIFEST) if self._has_manifest() else None

    @property
    def manifest(self) -> Manifest:
        """What the folder holds; raises BadInput where nothing usable is prepared."""
        if not self._has_manifest():
            allowed = f"holds no {MANIFEST}; prepare it with `make data-{self._path.name}`"
            raise BadInput("data.path", self._path, allowed)
        try:
            return Manifest.model_validate_json((self._path / MANIFEST).read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            problem = ": ".join(map(str, (*first["loc"], first["msg"])))
            raise self._bad(f"has an unusable {MANIFEST} ({problem})") from None

    @property
    def num_validation_tokens(self) -> int:
        """Tokens of the validation split, by the manifest; raises BadInput as it does."""
        return self.manifest.splits.validation.num_tokens

    def open(self) -> Dataset:
        """Verifies every file and opens them; raises BadInput naming the first that was altered."""
        manifest = self.manifest
        vocab_size, splits = manifest.vocab_size, manifest.splits
        train = self._split(splits.train, vocab_size)
        return Dataset(vocab_size, train, self._split(splits.validation, vocab_size))

    def _split(self, split: Split, vocab_size: int) -> Tokens:
        self._verify(split.document_ends)
        return Tokens([self._shard(shard, split.dtype, vocab_size) for shard in split.shards])

    def _shard(self, shard: Shard, dtype: TokenType, vocab_size: int) -> Array:
        path = self._verify(shard)
        if path.stat().st_size != shard.num_tokens * np.dtype(dtype).itemsize:
            raise self._bad(f"has a {MANIFEST} that does not fit the size of {shard.file}")
        tokens: Array = np.memmap(path, dtype=dtype, mode="r")
        # The hash has just read the file, so this costs only a small part of that time.
        if (largest := tokens.max()) >= vocab_size:
            vocabulary = f"a vocabulary of {vocab_size}, which {MANIFEST} states"
            raise self._bad(f"has token {largest} in {shard.file}, outside {vocabulary}")
        return tokens

    def _verify(self, entry: File) -> Path:
        path = self._path / entry.file
        if not path.is_file():
            raise self._bad(f"lacks {entry.file}")
        if file_hash(path) != entry.sha256:
            raise self._bad(f"has a truncated or altered {entry.file}")
        return path

    def _has_manifest(self) -> bool:
        return os.path.isfile(self._path / MANIFEST)  # Path.is_file raises without permission

    def _bad(self, problem: str) -> BadInput:
        advice = f"delete the folder and prepare it again with `make data-{self._path.name}`"
        return BadInput("data.path", self._path, f"{problem}; {advice}")
