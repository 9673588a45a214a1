"""Documents → a prepared folder, which appears only when it is complete."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from trainer.base.errors import BadInput
from trainer.data.manifest import FORMAT, Manifest, Splits
from trainer.data.shards import SplitWriter
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
    """Writes the splits and the manifest of `out`; raises BadInput unless it is new or empty.

    It stops after `num_tokens` training tokens. A tokenizer is trained on training documents only.
    An interrupted call leaves its files in `out`.partial; the next call writes them anew.
    """
    out = out.resolve()  # fills the target of a link: a folder cannot replace the link itself
    partial = _make_partial(out)
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
    manifest = Manifest(
        format=FORMAT,
        **about,
        tokenizer_sha256=encoder.sha256,
        vocab_size=encoder.vocab_size,
        num_tokens=num_tokens,
        splits=Splits(train=train.close(), validation=validation.close()),
    )
    (partial / "ATTRIBUTION.txt").write_text(f"{manifest.attribution}\n{manifest.license}\n")
    manifest.write(partial)
    partial.rename(out)


def _make_partial(out: Path) -> Path:
    """Returns the new folder `out`.partial.

    It fails where renaming, the last step, would otherwise fail after all the work.
    """
    partial = out.with_name(f"{out.name}.partial")
    try:
        with suppress(FileNotFoundError):
            out.rmdir()  # removes an empty folder only
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        allowed = f"must be a new or an empty folder where one may write ({error.strerror})"
        raise BadInput("out", out, allowed) from None
    return partial


def _batched(documents: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(documents)
    while some := list(islice(iterator, DOCUMENTS_AT_ONCE)):
        yield some
