"""The tokenizer of prepared data: to ask a model in words, and to hand it on with the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.base.atomic import write_atomically, write_json
from trainer.base.build import build
from trainer.base.errors import BadInput
from trainer.data.tokenizers import ENDS, TOKENIZER_FILE, end_of_document
from trainer.data.tokens import KnowsTokenizer


def tokenizer_of(data: Mapping[str, Any]) -> tuple[Tokenizer, str]:
    """The tokenizer of a config's `data`, and its token that ends a document.

    Raises BadInput for data that does not know it, or has lost it.
    """
    source = build(data)
    if not isinstance(source, KnowsTokenizer):
        raise BadInput("data", data.get("path"), "must know its tokenizer: tokens alone do not")
    tokenizer = source.read_tokenizer()
    if (end := end_of_document(tokenizer)) is None:
        allowed = f"must have a token that ends a document: {', '.join(ENDS)}"
        raise BadInput("data.tokenizer", data.get("path"), allowed)
    return tokenizer, end


def write_tokenizer(tokenizer: Tokenizer, end: str, folder: Path) -> None:
    """Writes the files from which transformers makes the same tokenizer."""
    write_atomically(folder / TOKENIZER_FILE, tokenizer.to_str(pretty=True).encode())
    # transformers would pick a class by the model otherwise, which splits text in its own way.
    of_class = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    write_json(folder / "tokenizer_config.json", of_class)
