"""Documents → a prepared folder, which appears only when it is complete."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from trainer.data.shards import SplitWriter, write_manifest
from trainer.data.tokenizers import Encoder

DOCUMENTS_AT_ONCE = 1000


def is_validation(text: str, share: float) -> bool:
    """Whether a document is held out: a function of its text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) < share * 2**64


def prepare(
    documents: Callable[[], Iterable[str]],
    make_encoder: Callable[[Iterable[str], Path], Encoder],
    out: Path,
    *,
    validation_share: float,
    num_tokens: float,
    about: dict[str, Any],
) -> None:
    """Writes the splits and the manifest of `out`, which must not exist yet.

    Stops after `num_tokens` training tokens. A tokenizer sees training documents only. What an
    interrupted call wrote lies in `out`.partial and is written anew.
    """
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    texts = (text for text in documents() if not is_validation(text, validation_share))
    encoder = make_encoder(texts, partial)
    train, validation = (
        SplitWriter(partial, split, encoder.vocab_size) for split in ("train", "validation")
    )
    for some in _batched(documents()):
        for text, tokens in zip(some, encoder.encode(some), strict=True):
            (validation if is_validation(text, validation_share) else train).add(tokens)
        if train.num_tokens >= num_tokens:
            break
    splits = {"train": train.close(), "validation": validation.close()}
    (partial / "ATTRIBUTION.txt").write_text(f"{about['attribution']}\n{about['license']}\n")
    described = {"vocab_size": encoder.vocab_size, "tokenizer_sha256": encoder.sha256}
    write_manifest(partial, {**about, **described, "splits": splits})
    partial.rename(out)


def _batched(documents: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(documents)
    while some := list(islice(iterator, DOCUMENTS_AT_ONCE)):
        yield some
