"""A tokenizer by the word of a config: one of ours, a file, or a name on the Hugging Face hub."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from trainer.base.cli import one_of
from trainer.base.errors import BadInput
from trainer.data.tokenizers import (
    BPE128K_VOCABULARY,
    BPE_VOCABULARY,
    ENCODERS,
    ENDS,
    SMOLLM2_SHA256,
    SMOLLM2_VOCABULARY,
    TOKENIZER_FILE,
    Bytes,
    Encoder,
    end_of_document,
    kept,
    vocab_size,
)

CACHE = Path("data/archives")
KEY = "data.tokenizer"
OURS: Mapping[str, tuple[str, int | None]] = {
    "bytes": ("bytes", Bytes.vocab_size),
    "bpe": (f"bpe {BPE_VOCABULARY}", None),
    "bpe128k": (f"bpe {BPE128K_VOCABULARY}", None),
    "smollm2": (SMOLLM2_SHA256, SMOLLM2_VOCABULARY),
}
"""What identifies one of `ENCODERS`, and its vocabulary."""


class Chosen(NamedTuple):
    """`identity` changes with the tokens that it makes; `make` is as in `ENCODERS`, without cache.

    `vocab_size` is None where it depends on the text.
    """

    identity: str
    vocab_size: int | None
    make: Callable[[Iterable[str], Path], Encoder]


def chosen(word: str) -> Chosen:
    """The tokenizer of `word`: one of `ENCODERS`, FOLDER/tokenizer.json, or org/name[@revision].

    Raises BadInput for one that is not there or has no token that ends a document.
    """
    if word in ENCODERS:
        return Chosen(*OURS[word], lambda texts, folder: ENCODERS[word](texts, folder, CACHE))
    if word.endswith(".json"):
        path = Path(word)
        if not path.is_file():
            raise BadInput(KEY, word, "must be a tokenizer.json that is there")
    elif "/" in word:
        path = _from_hub(word)
    else:
        more = ", a tokenizer.json, or org/name[@revision] on the Hugging Face hub"
        raise one_of(KEY, word, ENCODERS, more)
    return _of_file(word, path)


def _of_file(word: str, path: Path) -> Chosen:
    try:
        content = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # `tokenizers` raises Exception itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(KEY, word, f"must be a tokenizer.json ({reason})") from None
    if (end := end_of_document(tokenizer)) is None:
        raise BadInput(KEY, word, f"must have a token that ends a document: {', '.join(ENDS)}")
    identity = hashlib.sha256(content.encode()).hexdigest()
    return Chosen(identity, vocab_size(tokenizer), partial(_keep, content, end))


def _keep(content: str, end: str, texts: Iterable[str], folder: Path) -> Encoder:
    return kept(content, folder, end)


def _from_hub(word: str) -> Path:
    """The tokenizer.json of a model on the hub: from its cache, else downloaded."""
    name, _, revision = word.partition("@")
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, TOKENIZER_FILE, revision=revision or None))
    except Exception as error:  # the hub's client and the network have their own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        allowed = f"must be a model of the Hugging Face hub with a {TOKENIZER_FILE} ({reason})"
        raise BadInput(KEY, word, f"{allowed}; or give the file") from None
