"""The tokenizer of a config: chosen by a word, read from prepared data, written beside a model."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipegap.trainer.base.atomic import write_atomically, write_json
from pipegap.trainer.base.build import build
from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput, first_line
from pipegap.trainer.data.tokenizers import (
    ENCODERS,
    END_OF_DOCUMENT,
    TOKENIZER_FILE,
    Chosen,
    end_of_document,
    kept,
    loaded,
    usual_end,
    vocab_size,
    without_settings,
)

KEY = "data.tokenizer"


def chosen(word: str, end: str | None = None) -> Chosen:
    """Return the tokenizer of `word`, whose special token `end` ends a document, or a usual one.

    A word is one of `ENCODERS`, a tokenizer.json or its folder, or org/name[@revision] on the hub.
    Raises BadInput for a tokenizer that is not there or has no such token.
    """
    if word in ENCODERS:
        if end not in (None, END_OF_DOCUMENT):
            allowed = f"must be null with data.tokenizer={word}: it has {END_OF_DOCUMENT}"
            raise BadInput("data.end_of_document", end, allowed)
        return ENCODERS[word]
    if os.path.exists(word) or word.endswith(".json"):
        path = Path(word, TOKENIZER_FILE) if os.path.isdir(word) else Path(word)
        if not path.is_file():
            raise BadInput(KEY, word, "must be a tokenizer.json that is there")
    elif "/" in word:
        path = _from_hub(word)
    else:
        more = ", a tokenizer.json, or org/name[@revision] on the Hugging Face hub"
        raise one_of(KEY, word, ENCODERS, more)
    return _of_file(word, path, end)


def _of_file(word: str, path: Path, document_end: str | None) -> Chosen:
    try:
        content = without_settings(path.read_text(encoding="utf-8-sig"))
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # `tokenizers` raises Exception itself
        raise BadInput(KEY, word, f"must be a tokenizer.json ({first_line(error)})") from None
    end = end_of_document(tokenizer, word, document_end)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Chosen(
        digest if end == usual_end(tokenizer) else f"{digest} {end}",
        vocab_size(tokenizer),
        lambda texts, folder, cache: kept(content, folder, end),
    )


def _from_hub(word: str) -> Path:
    """The tokenizer.json of a model on the hub: from its cache, else downloaded."""
    name, _, revision = word.partition("@")
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, TOKENIZER_FILE, revision=revision or None))
    except Exception as error:  # the hub's client and the network have their own
        allowed = f"must be a model of the Hugging Face hub with a {TOKENIZER_FILE}"
        reason = f"({first_line(error)}); or give the file"
        raise BadInput(KEY, word, f"{allowed} {reason}") from None


def tokenizer_of(data: Mapping[str, Any]) -> tuple[Tokenizer, str]:
    """Return the tokenizer of a config's `data`, and its token that ends a document.

    Raises BadInput for data that does not know its tokenizer, or has lost it.
    """
    read_tokenizer = getattr(build(data), "read_tokenizer", None)
    if read_tokenizer is None:
        raise BadInput("data", data.get("path"), "must know its tokenizer: tokens alone do not")
    tokenizer = loaded(read_tokenizer().to_str())
    return tokenizer, end_of_document(tokenizer, data.get("path"), data.get("end_of_document"))


def write_tokenizer(tokenizer: Tokenizer, end: str, folder: Path) -> None:
    """Writes the files from which transformers makes the same tokenizer."""
    write_atomically(folder / TOKENIZER_FILE, tokenizer.to_str(pretty=True).encode())
    # transformers would pick a class by the model otherwise, which splits text in its own way.
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    write_json(folder / "tokenizer_config.json", content)
