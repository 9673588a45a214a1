"""The SmolLM2 tokenizer, rebuilt from a GGUF file's vocabulary and merges: no hub is needed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import IO, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

STRING, ARRAY, CONTROL_TOKEN = 8, 9, 3
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Type number → its format in `struct` (the GGUF specification, little-endian)."""


def read_metadata(file: IO[bytes]) -> dict[str, Any]:
    """The key-value pairs at the head of a GGUF file (versions 2 and 3); raises ValueError."""
    if file.read(4) != b"GGUF":
        raise ValueError("not a GGUF file")
    _, _, num_pairs = struct.unpack("<IQQ", file.read(20))
    return dict(_pair(file) for _ in range(num_pairs))


def _pair(file: IO[bytes]) -> tuple[str, Any]:
    return _string(file), _value(file, _scalar(file, "I"))


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == STRING:
        return _string(file)
    if kind == ARRAY:
        item, length = _scalar(file, "I"), _scalar(file, "Q")
        return [_value(file, item) for _ in range(length)]
    return _scalar(file, SCALARS[kind])


def _scalar(file: IO[bytes], form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _string(file: IO[bytes]) -> str:
    return file.read(_scalar(file, "Q")).decode()


def byte_level_bpe(metadata: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer that the metadata describes, digits split one by one."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    split_as_bytes(tokenizer)
    tokenizer.add_special_tokens(list(_special(tokens, kinds)))
    return tokenizer


def split_as_bytes(tokenizer: Tokenizer) -> None:
    """Makes `tokenizer` split as SmolLM2's does: single digits, then GPT-2's words, as bytes."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


def _special(tokens: list[str], kinds: list[int]) -> Iterator[AddedToken]:
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == CONTROL_TOKEN:
            yield AddedToken(token, special=True, normalized=False)


def published_json(tokenizer: Tokenizer) -> str:
    """tokenizer.json in its published form: older releases wrote each merge as one string."""
    content = json.loads(tokenizer.to_str())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    return json.dumps(content, indent=2, ensure_ascii=False)
