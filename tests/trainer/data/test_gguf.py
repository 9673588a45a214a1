"""A tokenizer comes out of a GGUF file as it went in; here a tiny file, written by hand."""

import io
import json
import struct
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from pipegap.trainer.data.gguf import read_metadata
from pipegap.trainer.data.tokenizers import byte_level_bpe, published_json, split_as_bytes

TOKENS = ["<|endoftext|>", *"abc1", "Ġ", "ab", "Ġab"]
MERGES = ["a b", "Ġ ab"]
CONTROL, NORMAL = 3, 1


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def strings(items: list[str]) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))


def gguf(**more: bytes) -> bytes:
    kinds = struct.pack(f"<IIQ{len(TOKENS)}i", 9, 5, len(TOKENS), CONTROL, *[NORMAL] * 7)
    pairs = {
        "tokenizer.ggml.tokens": strings(TOKENS),
        "tokenizer.ggml.merges": strings(MERGES),
        "tokenizer.ggml.token_type": kinds,
        **more,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    return head + b"".join(string(key) + value for key, value in pairs.items())


def read(content: bytes) -> dict[str, Any]:
    return read_metadata(io.BytesIO(content))


def test_metadata_of_every_kind_is_read() -> None:
    found = read(gguf(u8=struct.pack("<IB", 0, 7), f32=struct.pack("<If", 6, 0.5)))
    assert found["u8"] == 7
    assert found["f32"] == 0.5
    assert found["tokenizer.ggml.tokens"] == TOKENS
    assert found["tokenizer.ggml.token_type"] == [3, *[1] * 7]


def test_what_is_no_gguf_is_refused() -> None:
    with pytest.raises(ValueError, match="not a GGUF file"):
        read(b"GGML" + bytes(20))


def test_the_tokenizer_is_the_one_described() -> None:
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    expected = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("Ġ", "ab")]))
    split_as_bytes(expected)
    expected.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    found = byte_level_bpe(read(gguf()))
    for text in ("ab ab", "a1b1ab", "ab<|endoftext|>c"):
        assert found.encode(text).ids == expected.encode(text).ids
    assert found.encode("ab ab 11<|endoftext|>").tokens == [
        *("ab", "Ġab", "Ġ", "1", "1", "<|endoftext|>")
    ]


def test_merges_are_written_as_they_were_published() -> None:
    tokenizer = byte_level_bpe(read(gguf()))
    content = published_json(tokenizer)
    assert json.loads(content)["model"]["merges"] == MERGES
    assert Tokenizer.from_str(content).encode("ab ab").ids == tokenizer.encode("ab ab").ids
