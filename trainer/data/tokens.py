"""A split of the data: memory-mapped shards read as one sequence of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

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
    """Where data lies: what the files of conf/data/ name. Making one reads nothing."""

    @property
    def hash(self) -> str | None:
        """A hash that identifies the tokens; None if the data is not there."""

    @property
    def num_validation_tokens(self) -> int:
        """Tokens of the validation split, as the files say, which are not read for it."""

    def open(self) -> Dataset:
        """Verifies and opens the data; raises BadInput (key data.path) if missing or altered."""


@runtime_checkable
class KnowsLength(Protocol):
    """A source that may say how much text there is before it is opened."""

    @property
    def num_training_tokens(self) -> int | None:
        """None before they are prepared."""


@runtime_checkable
class KnowsVocabulary(Protocol):
    """A source that may say its vocabulary before it is opened, which can take hours."""

    @property
    def known_vocab_size(self) -> int | None:
        """None if it depends on the text."""


@runtime_checkable
class KnowsTokenizer(Protocol):
    """A source that knows what made its tokens."""

    def read_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises BadInput if it is lost."""
