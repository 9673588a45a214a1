"""A row that is no text is the same for every source: one line with its place, or left out."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from pipegap.trainer.base.children import mapped
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data import readers
from pipegap.trainer.data.hub import HubDocuments
from pipegap.trainer.data.readers import batches, documents
from tests.support.own_text import write_jsonl

GOOD = ["first", "second", "naïve"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets


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


def is_one_line_or_left_out(
    path: Path, why: str, capsys: pytest.CaptureFixture[str], hub: bool = False
) -> None:
    def read(*, skip: bool) -> list[str]:
        if not hub:
            return [*documents([path], "text", skip=skip)]
        options = {"config": None, "split": "train", "revision": None, "field": "text"}
        return [*HubDocuments(str(path.parent), **options, skip=skip)]  # type: ignore[arg-type]

    with pytest.raises(BadInput, match=re.escape(why)) as caught:
        read(skip=False)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("data.skip_bad_rows=true leaves such rows out")
    assert read(skip=True) == GOOD
    assert "left out 1 rows that are no text; the first: " in capsys.readouterr().err


@pytest.mark.parametrize("bad", JSONL, ids=ascii)
def test_a_line(bad: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    jsonl(path, bad)
    is_one_line_or_left_out(path, JSONL[bad], capsys)


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("kind", PARQUET)
def test_a_row(kind: str, hub: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, (bad, why) = tmp_path / "copy" / "a.parquet", PARQUET[kind]
    path.parent.mkdir()
    column(path, bad)
    if hub and kind == "bytes":  # `datasets` ends there: the way out is the other reader
        with pytest.raises(BadInput, match=r"data=text data.path=\S+copy reads its files"):
            [
                *HubDocuments(
                    str(path.parent), config=None, split="train", revision=None, field="text"
                )
            ]
    else:
        is_one_line_or_left_out(path, why, capsys, hub)


def test_a_chat(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    options = {"config": None, "split": "train", "revision": None, "field": "messages"}
    with pytest.raises(BadInput, match=r"=messages: must hold text, not list, in row 1 of"):
        [*HubDocuments(str(tmp_path), **options)]  # type: ignore[arg-type]


def test_a_paragraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n\n\nsecond\r\n\r\nof many\nlines \ncaf\xe9\n\n" + "naïve".encode())
    is_one_line_or_left_out(path, "must be a file of text in UTF-8: line 8 of ", capsys)


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


def test_batches_are_as_large_as_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHARACTERS_AT_ONCE", 100)
    monkeypatch.setattr(readers, "DOCUMENTS_AT_ONCE", 7)
    lengths = [1] * 10 + [60, 60, 60, 500, 1, 1]
    found = [
        [len(text) for text in batch.texts] for batch in batches(["x" * n for n in lengths], None)
    ]
    assert found == [[1] * 7, [1] * 3 + [60, 60], [60, 500], [1, 1]]
    [*_, before, last] = batches(["x" * n for n in lengths], None)
    assert [*batches(["x" * n for n in lengths], before.after)] == [last]


def test_few_large_things_are_read_ahead() -> None:
    read: list[int] = []

    def things() -> Iterator[int]:
        for thing in range(20):
            read.append(thing)
            yield thing

    for number, _ in enumerate(mapped(hex, things(), 2, size=lambda thing: 10, most=20)):
        assert len(read) <= number + 1 + 3
