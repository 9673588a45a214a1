"""Token shards on disk: files of tokens, document ends, and the manifest that describes them.

A prepared folder holds `manifest.json`, written last: corpus, licence, tokenizer, vocabulary, and
for each split its shards and its document ends (.npy, offsets into the split) with length and
SHA-256. The manifest's own SHA-256 identifies the data.
"""

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Gt
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from tokenizers import Tokenizer

from pipegap.trainer.base.atomic import file_hash, write_atomically
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Place
from pipegap.trainer.data.tokenizers import TOKENIZER_FILE, byte_tokenizer

Array = npt.NDArray[np.unsignedinteger[Any]]


class Tokens:
    """Read-only concatenation of shards (uint16 or uint32); nothing is loaded before it is read."""

    def __init__(self, shards: Sequence[Array]) -> None:
        self._shards = shards
        self._starts = [0, *accumulate(len(shard) for shard in shards)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """Tokens start … start + length − 1, across shard borders; all must exist."""
        parts = [
            shard[max(0, start - first) : max(0, start + length - first)]
            for shard, first in zip(self._shards, self._starts, strict=False)
            if first < start + length and first + len(shard) > start
        ]
        return np.concatenate(parts, dtype=np.int64)


@dataclass(frozen=True)
class Dataset:
    """Verified tokens, 0 … vocab_size − 1, in two splits that share no document."""

    vocab_size: int
    train: Tokens
    validation: Tokens


class Source(Protocol):
    """The place of data: the interface of the classes in conf/data/. To make one reads nothing."""

    @property
    def hash(self) -> str | None:
        """A hash that identifies the tokens; None if the data is not there."""

    @property
    def num_validation_tokens(self) -> int:
        """Tokens of the validation split, as headers or a manifest say; no tokens are read."""

    def open(self) -> Dataset:
        """Verifies and opens the data; raises BadInput (key data.path) if missing or altered."""


MANIFEST = "manifest.json"
FORMAT: Literal[1] = 1
TokenType = Literal["<u2", "<u4"]


class ManifestPart(BaseModel):
    """Anything in a manifest; refuses unknown keys and wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class File(ManifestPart):
    """A file beside the manifest."""

    file: str
    sha256: str


class Shard(File):
    """A file of tokens."""

    num_tokens: Annotated[int, Gt(0)]


class Split(ManifestPart):
    """The files of one split; `document_ends` are offsets into it (.npy)."""

    num_tokens: NonNegativeInt
    num_documents: NonNegativeInt
    dtype: TokenType
    shards: list[Shard]
    document_ends: File


class Splits(ManifestPart):
    """Two splits that share no document."""

    train: Split
    validation: Split


class Manifest(ManifestPart):
    """The origin of the tokens, and the files that hold them."""

    format: Literal[1]
    corpus: str
    license: str
    attribution: str
    tokenizer: str
    tokenizer_sha256: str | None
    vocab_size: Annotated[int, Gt(0)]
    num_tokens: Annotated[float, Gt(0)] = math.inf
    """Number of training tokens at which preparation stops; infinite for the whole corpus."""
    splits: Splits

    def write(self, folder: Path) -> None:
        """Writes the manifest into `folder`, which makes the folder valid."""
        # The default is left out: JSON has no infinity.
        content = self.model_dump(exclude_defaults=True)
        text = json.dumps(content, indent=1, sort_keys=True)
        write_atomically(folder / MANIFEST, text.encode())


class Prepared:
    """Shards that `pipegap data` wrote."""

    def __init__(self, *, path: Place) -> None:
        self._path = Path(path)
        self.remedy = f"`pipegap data {self._path.name}`"
        """The command that prepares them."""

    @property
    def hash(self) -> str | None:
        """SHA-256 of the manifest; None where nothing is prepared."""
        return file_hash(self._path / MANIFEST) if self._has_manifest() else None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the folder; raises BadInput where there is no valid one."""
        if not self._has_manifest():
            allowed = f"holds no {MANIFEST}; prepare it with {self.remedy}"
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

    @property
    def num_training_tokens(self) -> int:
        """Tokens of the training split, by the manifest; raises BadInput as it does."""
        return self.manifest.splits.train.num_tokens

    def read_tokenizer(self) -> Tokenizer:
        """The tokenizer of the tokens; raises BadInput if its file is lost or altered."""
        expected = self.manifest.tokenizer_sha256
        if expected is None:  # `bytes`, which has no file
            return byte_tokenizer()
        path = self._verify(File(file=TOKENIZER_FILE, sha256=expected))
        return Tokenizer.from_file(str(path))

    def open(self) -> Dataset:
        """Verifies every file and opens them; raises BadInput naming the first that was altered."""
        manifest = self.manifest
        splits = manifest.splits
        train, validation = self._split(splits.train), self._split(splits.validation)
        return Dataset(manifest.vocab_size, train, validation)

    def _split(self, split: Split) -> Tokens:
        self._verify(split.document_ends)
        # One thread takes 12 s for the 20 GB of FineWeb-Edu; hashlib lets other threads run.
        with ThreadPoolExecutor() as threads:
            paths = threads.map(self._verify, split.shards)
            return Tokens([np.memmap(path, dtype=split.dtype, mode="r") for path in paths])

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
        advice = f"delete the folder and prepare it again with {self.remedy}"
        return BadInput("data.path", self._path, f"{problem}; {advice}")
