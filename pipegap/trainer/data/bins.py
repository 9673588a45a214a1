"""Pre-tokenised `.bin` shards in the layout of llm.c and modded-nanogpt, read as they are.

A header of 256 int32 (magic, version, number of tokens), then the tokens. The split is a word of
the file's name, such as in fineweb_train_000001.bin and fineweb_val_000000.bin.
"""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt

from pipegap.trainer.base.atomic import file_hash
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Place
from pipegap.trainer.data.shards import Array, Dataset, Tokens

HEADER_BYTES = 256 * 4
LAYOUTS: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype("<u2"),
    (20240801, 7): np.dtype("<u4"),
}
"""(magic, version) → type of a token."""
TRAIN, VALIDATION = ("train", "training"), ("val", "valid", "validation")
"""Words in the names of files to train on, and of files to validate on."""


class Bins:
    """A folder of `.bin` files and the vocabulary that they were tokenised with."""

    def __init__(self, *, path: Place, vocab_size: Annotated[int, Gt(0)]) -> None:
        self._path, self._vocab_size = Path(path), vocab_size

    @property
    def hash(self) -> str | None:
        """SHA-256 over names and contents; None without files."""
        files = sorted(self._path.glob("*.bin"))
        content = "".join(f"{_name_in_hash(file)} {file_hash(file)}\n" for file in files)
        return hashlib.sha256(content.encode()).hexdigest() if files else None

    @property
    def num_validation_tokens(self) -> int:
        """Tokens of the validation split, by the headers; a file without one counts 0."""
        return self._num_tokens(VALIDATION)

    @property
    def num_training_tokens(self) -> int:
        """Tokens of the training split, by the headers; a file without one counts 0."""
        return self._num_tokens(TRAIN)

    def _num_tokens(self, split: tuple[str, ...]) -> int:
        headers = [np.fromfile(file, dtype="<i4", count=3) for file in self._files(split)]
        return sum(int(header[2]) for header in headers if len(header) == 3)

    def _files(self, split: tuple[str, ...]) -> list[Path]:
        """The files of a split; raises BadInput for a name without a word of exactly one split."""
        # By letters, not by words: trainset.bin is refused by name, not silently left out.
        files = [path for path in sorted(self._path.glob("*.bin")) if path.name[0] != "."]
        shards = [file for file in files if TRAIN[0] in file.name or VALIDATION[0] in file.name]
        for file in shards:
            if _words(file).isdisjoint(TRAIN) == _words(file).isdisjoint(VALIDATION):
                allowed = "must have train or val in its name, as a word, and one of them"
                raise BadInput("data.path", file, allowed)
        return [file for file in shards if not _words(file).isdisjoint(split)]

    def open(self) -> Dataset:
        """Checks every header, length and token; raises BadInput naming the file at fault."""
        return Dataset(self._vocab_size, self._split(TRAIN), self._split(VALIDATION))

    def _split(self, split: tuple[str, ...]) -> Tokens:
        files = self._files(split)
        if not files:
            raise BadInput("data.path", self._path, f"holds no *{split[0]}*.bin")
        return Tokens([self._shard(file) for file in files])

    def _shard(self, file: Path) -> Array:
        header = np.fromfile(file, dtype="<i4", count=256)
        dtype = LAYOUTS.get((int(header[0]), int(header[1]))) if len(header) == 256 else None
        if dtype is None:
            raise BadInput("data.path", file, "has no header of llm.c or modded-nanogpt")
        expected = HEADER_BYTES + int(header[2]) * dtype.itemsize
        if file.stat().st_size != expected:
            problem = f"has {file.stat().st_size} bytes, its header says {expected}: truncated?"
            raise BadInput("data.path", file, problem)
        tokens: Array = np.memmap(file, dtype=dtype, mode="r", offset=HEADER_BYTES)
        # It reads all of the file, once: an embedding would fail at such a token, in mid-training.
        if len(tokens) and tokens.max() >= self._vocab_size:
            problem = f"is below token {tokens.max()} in {file.name}: another tokenizer's shards?"
            raise BadInput("data.vocab_size", self._vocab_size, problem)
        return tokens


def _words(file: Path) -> set[str]:
    return {*re.findall("[a-z]+", file.stem)}


def _name_in_hash(file: Path) -> str:
    """The name of a file in the hash, with its words where it has the letters of both splits, as
    train-interval.bin has: only the words tell its split."""
    if all(split[0] in file.name for split in (TRAIN, VALIDATION)):
        return f"{file.name} {' '.join(sorted(_words(file)))}"
    return file.name
