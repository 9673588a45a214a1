"""What is left in a tokenizer.json changes no token; a GGUF file holds the tokenizer described."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data import tokenizers as module
from pipegap.trainer.data.tokenizers import (
    Subwords,
    byte_level_bpe,
    chosen,
    published_json,
    read_metadata,
    split_as_bytes,
    tokenizer_of,
)
from tests.support.own_files import texts

TEXTS = [*texts(30, 30), "naïve 你好 🙂🙂.\n\n  x", "a <|endoftext|> b </s> <s>c"]
SPECIAL = ["<|endoftext|>", "<pad>", "<unk>"]


def byte_level(special: list[str] = SPECIAL) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def truncated(tokenizer: Tokenizer) -> None:
    tokenizer.enable_truncation(max_length=5)


def padded(tokenizer: Tokenizer) -> None:
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")


def by_chance(tokenizer: Tokenizer) -> None:
    tokenizer.model.dropout = 0.9


def with_template(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<pad> $A <unk>", special_tokens=[("<pad>", 1), ("<unk>", 2)]
    )


LEFT = [truncated, padded, by_chance, with_template]


@pytest.mark.parametrize("leave", LEFT, ids=lambda leave: leave.__name__)
def test_settings_of_another_program_change_no_token(
    leave: Callable[[Tokenizer], None], tmp_path: Path
) -> None:
    """Neither in training, nor in the evaluation and the exported tokenizer."""
    plain, left = byte_level(), byte_level()
    leave(left)
    found = {}
    for name, tokenizer in (("plain", plain), ("left", left)):
        folder = tmp_path / name
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        asked = chosen(str(folder))
        encoder = asked.make([], folder, tmp_path)
        for_evaluation, end = tokenizer_of({"_target_": f"{__name__}.Kept", "path": str(folder)})
        assert end == "<|endoftext|>"
        tokens = [document[:-1].tolist() for document in encoder.encode(TEXTS)]
        assert tokens == [for_evaluation.encode(text).ids for text in TEXTS]
        exported = Tokenizer.from_str(for_evaluation.to_str())
        assert tokens[:-1] == [exported.encode(text).ids for text in TEXTS[:-1]]
        found[name] = tokens, asked.identity
    if leave is with_template:  # which changed no token of the training
        assert found["left"][0] == found["plain"][0]
    else:
        assert found["left"] == found["plain"]
    *tokens, special = found["plain"][0]
    assert tokens == [plain.encode(text).ids for text in TEXTS[:-1]]
    assert min(special) >= len(SPECIAL)
    assert plain.decode(special) == TEXTS[-1]


class Kept:
    """A source that knows its tokenizer as it is in the file."""

    def __init__(self, *, path: str, end_of_document: str | None = None) -> None:
        self.path = path

    def read_tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(f"{self.path}/tokenizer.json")


def html() -> Tokenizer:
    """As Gemma's: the tag `</s>` is a token of the text."""
    tokenizer = byte_level(["<pad>", "<eos>", "<turn>"])
    tokenizer.add_tokens([AddedToken("</s>", normalized=False)])
    return tokenizer


@pytest.mark.parametrize(("named", "end"), [(None, "<eos>"), ("<turn>", "<turn>")])
def test_a_special_token_ends_a_document(named: str | None, end: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = html()
    tokenizer.save(str(path))
    asked = chosen(str(path), named)
    [tokens] = asked.make([], tmp_path, tmp_path).encode(["<b></s> <eos><turn>"])
    assert tokenizer.id_to_token(int(tokens[-1])) == end
    assert tokens.tolist().count(tokens[-1]) == 1
    assert tokenizer.token_to_id("</s>") in tokens
    data = {"_target_": f"{__name__}.Kept", "path": str(tmp_path), "end_of_document": named}
    assert tokenizer_of(data)[1] == end
    assert asked.identity.endswith(f" {end}"), "</s> ended the documents of its file alone"


@pytest.mark.parametrize(
    ("special", "named", "why"),
    [
        (["<pad>"], None, "tokenizer.json: must have a special token that ends a document.*<pad>"),
        (["<eos>"], "</s>", "end_of_document=</s>: must be a special token of the.*: <eos>"),
        (["<eos>"], "a", "end_of_document=a: must be a special token"),
    ],
)
def test_a_tokenizer_without_an_end_is_refused(
    special: list[str], named: str | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    byte_level(special).save(str(path))
    with pytest.raises(BadInput, match=why):
        chosen(str(path), named)


def test_words_have_their_own_end() -> None:
    assert chosen("bpe", "<|endoftext|>") == chosen("bpe")
    with pytest.raises(BadInput, match="end_of_document=</s>: must be null with"):
        chosen("bytes", "</s>")


def test_a_model_that_makes_the_end_of_a_text_is_refused() -> None:
    """A Unigram has special tokens among its pieces, as those of T5 and XLM-R do."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -3.0) for letter in "</s>a")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    encoder = Subwords(tokenizer.to_str(), "</s>")
    assert encoder.encode(["aa</s"])[0].tolist() == [6, 6, 2, 3, 4, 1]
    with pytest.raises(
        BadInput, match="end_of_document=</s>: must be a token that no text is encoded to"
    ):
        encoder.encode(["aa</s>"])


def prepended() -> Tokenizer:
    """As Llama 2's: a text as a whole is one word, and its first letter is a sign for a space."""
    content = json.loads(
        of_kind(pre_tokenizers.Metaspace(), models.BPE(unk_token="<unk>")).to_str()
    )
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    normalizer = {"type": "Sequence", "normalizers": steps}
    return Tokenizer.from_str(
        json.dumps({**content, "pre_tokenizer": None, "normalizer": normalizer})
    )


def of_kind(split: object, model: object, normalizer: object = None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    kind = {"BPE": trainers.BpeTrainer, "WordPiece": trainers.WordPieceTrainer}
    of_unigram = {"unk_token": "<unk>"} if isinstance(model, models.Unigram) else {}
    trainer = kind.get(type(model).__name__, trainers.UnigramTrainer)(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False, **of_unigram
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "prepended": prepended,
    "unigram": lambda: of_kind(pre_tokenizers.Metaspace(), models.Unigram(), normalizers.NFKC()),
    "word_piece": lambda: of_kind(
        pre_tokenizers.BertPreTokenizer(),
        models.WordPiece(unk_token="<unk>"),
        normalizers.BertNormalizer(),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_document_has_the_tokens_that_it_has_as_a_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, text = Subwords(KINDS[kind]().to_str()), "\n\n  ".join(TEXTS[:-1]) * 2
    short, empty = "naïve", ""
    whole = encoder.encode([short, text, empty])
    for piece, context in ((150, 100), (701, 200)):
        monkeypatch.setattr(module, "PIECE", piece)
        monkeypatch.setattr(module, "CONTEXT", context)
        pieces = encoder.encode([short, text, empty])
        assert all(map(np.array_equal, pieces, whole))


def test_a_bpe_learns_the_same_of_long_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = ["\n\n  ".join(TEXTS)]
    whole = chosen("bpe").make(documents, tmp_path, tmp_path).sha256
    monkeypatch.setattr(module, "PIECE", 100)
    assert chosen("bpe").make(documents, tmp_path, tmp_path).sha256 == whole


GGUF_TOKENS = ["<|endoftext|>", *"abc1", "Ġ", "ab", "Ġab"]
MERGES = ["a b", "Ġ ab"]
CONTROL, NORMAL = 3, 1


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def strings(items: list[str]) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))


def gguf(**more: bytes) -> bytes:
    kinds = struct.pack(f"<IIQ{len(GGUF_TOKENS)}i", 9, 5, len(GGUF_TOKENS), CONTROL, *[NORMAL] * 7)
    pairs = {
        "tokenizer.ggml.tokens": strings(GGUF_TOKENS),
        "tokenizer.ggml.merges": strings(MERGES),
        "tokenizer.ggml.token_type": kinds,
        **more,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    return head + b"".join(string(key) + value for key, value in pairs.items())


def metadata(content: bytes) -> dict[str, Any]:
    return read_metadata(io.BytesIO(content))


def test_metadata_of_every_kind_is_read() -> None:
    found = metadata(gguf(u8=struct.pack("<IB", 0, 7), f32=struct.pack("<If", 6, 0.5)))
    assert found["u8"] == 7
    assert found["f32"] == 0.5
    assert found["tokenizer.ggml.tokens"] == GGUF_TOKENS
    assert found["tokenizer.ggml.token_type"] == [3, *[1] * 7]


def test_what_is_no_gguf_is_refused() -> None:
    with pytest.raises(ValueError, match="not a GGUF file"):
        metadata(b"GGML" + bytes(20))


def test_the_tokenizer_is_the_one_described() -> None:
    vocabulary = {token: number for number, token in enumerate(GGUF_TOKENS)}
    expected = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("Ġ", "ab")]))
    split_as_bytes(expected)
    expected.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    found = byte_level_bpe(metadata(gguf()))
    for text in ("ab ab", "a1b1ab", "ab<|endoftext|>c"):
        assert found.encode(text).ids == expected.encode(text).ids
    assert found.encode("ab ab 11<|endoftext|>").tokens == [
        *("ab", "Ġab", "Ġ", "1", "1", "<|endoftext|>")
    ]


def test_merges_are_written_as_they_were_published() -> None:
    tokenizer = byte_level_bpe(metadata(gguf()))
    content = published_json(tokenizer)
    assert json.loads(content)["model"]["merges"] == MERGES
    assert Tokenizer.from_str(content).encode("ab ab").ids == tokenizer.encode("ab ab").ids
