"""The schema of a prepared folder's manifest, which its writer and its reader share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from trainer.base.atomic import write_atomically

MANIFEST = "manifest.json"
FORMAT: Literal[1] = 1

TokenType = Literal["<u2", "<u4"]


class Part(BaseModel):
    """A part of the manifest; refuses unknown keys and wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class File(Part):
    """A file beside the manifest."""

    file: str
    sha256: str


class Shard(File):
    """A file of tokens."""

    num_tokens: Annotated[int, Gt(0)]


class Split(Part):
    """The files of one split; `document_ends` are offsets into it (.npy)."""

    num_tokens: NonNegativeInt
    num_documents: NonNegativeInt
    dtype: TokenType
    shards: list[Shard]
    document_ends: File


class Splits(Part):
    """Two splits that share no document."""

    train: Split
    validation: Split


class Manifest(Part):
    """Where the tokens come from and which files hold them."""

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
