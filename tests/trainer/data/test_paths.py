"""A folder, a pattern and a copy of a data set name the same files, in the same order."""

import bz2
import codecs
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data.own import HubText, TextFiles
from pipegap.trainer.data.paths import named
from pipegap.trainer.data.readers import READERS
from tests.support.own_text import texts, write_jsonl, write_txt

TEXTS = texts(40, 8)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets


def found(path: str) -> list[str]:
    return [str(file) for file in named(path, READERS).files]


def left_out(path: str) -> list[str]:
    return [str(file) for file in named(path, READERS).left_out]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(*names: str) -> None:
    for name in names:
        write_txt(Path(name), [f"text of {name}"])


def test_a_folder_and_a_pattern_name_the_same_files_in_one_order() -> None:
    make("t/a-b/x.txt", "t/a/x.txt", "t/B.TXT", "t/b.txt", "elsewhere/l.txt")
    make("t/.ipynb_checkpoints/b-checkpoint.txt", "t/._b.txt", "t/b.txt~", "t/README.md")
    make("t/__MACOSX/b.txt", "t/__a.txt")
    Path("t/link").symlink_to("../elsewhere")
    Path("t/a/loop").symlink_to("..")
    files = ["t/B.TXT", "t/__a.txt", "t/a-b/x.txt", "t/a/x.txt", "t/b.txt", "t/link/l.txt"]
    assert found("t") == found("t/**") == found("t/*") == found("t/") == files
    assert found("t/**/*.[tT]*") == files
    assert left_out("t") == [
        *("t/._b.txt", "t/.ipynb_checkpoints", "t/README.md", "t/__MACOSX"),
        *("t/a/loop", "t/b.txt~"),
    ]


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("t/*.txt", ["t/a.txt"]),
        ("t/*/*.txt", ["t/one/b.txt", "t/two/c.txt"]),
        ("t/**/*.txt", ["t/a.txt", "t/one/b.txt", "t/two/c.txt", "t/two/deep/d.txt"]),
        ("t/**/deep", ["t/two/deep/d.txt"]),
        ("t/t*", ["t/two/c.txt", "t/two/deep/d.txt"]),
        ("t/.h/*.txt", ["t/.h/e.txt"]),
        ("t/.h", ["t/.h/e.txt"]),
        ("t/.*/*", ["t/.h/e.txt"]),
        ("t/__m*/*", ["t/__m/f.txt"]),
        ("t/*m/*", []),
        ("t/.h/e.txt", ["t/.h/e.txt"]),
        ("*/a.txt", ["t/a.txt"]),
        ("none/*.txt", []),
        ("t/a.txt/*", []),
    ],
)
def test_patterns(path: str, files: list[str]) -> None:
    make("t/a.txt", "t/one/b.txt", "t/two/c.txt", "t/two/deep/d.txt", "t/.h/e.txt")
    make("t/__m/f.txt")
    assert found(path) == files


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("b[1]/a.txt", ["b[1]/a.txt"]),
        ("b[1]/*.txt", ["b[1]/a.txt"]),
        ("b[1]", ["b[1]/a.txt"]),
        ("b[12]/a.txt", ["b1/a.txt"]),
        ("d/b[1]/*.txt", ["d/b[1]/a.txt"]),
        ("x*y.txt", ["x*y.txt"]),
        ("[x]*.txt", ["x*y.txt", "xzy.txt"]),
    ],
)
def test_a_path_that_exists_is_no_pattern(path: str, files: list[str]) -> None:
    make("b[1]/a.txt", "b1/a.txt", "d/b[1]/a.txt", "d/b1/a.txt", "x*y.txt", "xzy.txt")
    assert found(path) == files


def source(path: object, **more: object) -> TextFiles:
    known = {"text": "text", "tokenizer": "bytes", "vocab_size": None, "num_tokens": None, **more}
    return TextFiles(path=str(path), shards="shards", validation_share=0.2, **known)  # type: ignore[arg-type]


def test_a_mark_of_byte_order_is_no_text() -> None:
    for kind, write in (("txt", write_txt), ("jsonl", write_jsonl)):
        write(Path(f"plain/a.{kind}"), TEXTS)
        content = Path(f"plain/a.{kind}").read_bytes()
        Path(f"marked.{kind}").write_bytes(codecs.BOM_UTF8 + content)
        assert source(f"marked.{kind}").hash == source(f"plain/a.{kind}").hash
        assert [*source(f"marked.{kind}").documents()] == TEXTS
        for wide in ("utf-16", "utf-16-le", "utf-16-be"):
            Path(f"wide.{kind}").write_bytes(content.decode().encode(wide))
            with pytest.raises(BadInput, match=r"wide.*: must be a file of text in UTF-8, not in "):
                [*source(f"wide.{kind}").documents()]


def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("t/a.jsonl"), TEXTS)
    Path("t/b.csv.gz").write_bytes(b"")
    source("t").open()
    said = "leaves out 1 files or folders that are hidden or of another kind: t/b.csv.gz\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["gone", "pipe"])
def test_a_text_that_cannot_be_read_is_refused(kind: str) -> None:
    make("t/a.txt")
    if kind == "gone":
        Path("t/b.txt").symlink_to("nowhere")
    else:
        os.mkfifo("t/b.txt")
    with pytest.raises(BadInput, match=r"data.path=t/b.txt: must be (readable|a file of text)"):
        source("t").open()


def copy(name: str) -> HubText:
    options = {"config": None, "revision": None, "tokenizer": "bytes", "text": "text"}
    more = {"vocab_size": None, "num_tokens": None, "validation_share": 0.2}
    return HubText(path="shards", name=name, split="train", **options, **more)  # type: ignore[arg-type]


def test_a_copy_has_the_files_and_the_order_of_a_folder() -> None:
    for name in ("a-b/x", "a/x", "B"):
        write_jsonl(Path(f"c/{name}.jsonl"), [f"text of {name}"])
    before = copy("c").hash
    Path("c/.cache").mkdir()
    Path("c/.cache/x.metadata").write_text("1764000000.0")  # the time of a download
    Path("c/.hidden.jsonl").write_text(json.dumps({"text": "hidden"}))
    assert copy("c").hash == before
    assert [*copy("c").documents()] == [*source("c").documents()]


def test_a_copy_that_datasets_would_read_otherwise_is_refused() -> None:
    write_jsonl(Path("c[1]/a.jsonl"), TEXTS)
    write_jsonl(Path("c1/a.jsonl"), TEXTS[1:])
    with pytest.raises(BadInput, match=r"data.name=c\[1\]: must lie in folders without"):
        copy("c[1]").documents()
    Path("m").mkdir()
    Path("m/a.txt").write_bytes(codecs.BOM_UTF8 + b"text")
    with pytest.raises(BadInput, match=r"data.name=m/a.txt: must not begin with a mark"):
        copy("m").documents()


def zst(content: bytes) -> bytes:
    return pyarrow.compress(content, "zstd", asbytes=True)


COMPRESSED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zst}


@pytest.mark.parametrize("how", COMPRESSED)
@pytest.mark.parametrize(("kind", "write"), [("txt", write_txt), ("jsonl", write_jsonl)])
def test_compressed_text_is_the_text(
    how: str, kind: str, write: Callable[[Path, list[str]], None]
) -> None:
    """Also of several members, one after the other, as tools that work in parallel write; of JSON
    lines that are named as those of C4; marked or not."""
    write(Path(f"plain/a.{kind}"), TEXTS)
    content, compress = Path(f"plain/a.{kind}").read_bytes(), COMPRESSED[how]
    names = {"txt": ["a.txt", "A.TXT"], "jsonl": ["a.jsonl", "c4-train.00000-of-01024.json"]}[kind]
    for name in names:
        for marked in (content, codecs.BOM_UTF8 + content):
            path = Path(f"{name}{how}")
            path.write_bytes(compress(marked[:999]) + compress(marked[999:]))
            assert [*source(path).documents()] == TEXTS
            assert source(path).hash == source(f"plain/a.{kind}").hash
    path = Path(f"cut.{kind}{how}")
    path.write_bytes(compress(content * 9)[:-30])
    for damage in (path.read_bytes(), b"not compressed"):
        path.write_bytes(damage)
        with pytest.raises(BadInput, match=rf"data\.path=cut\.{kind}\{how}: must be") as refused:
            source(path).hash  # noqa: B018 (reads the file)
        assert "\n" not in str(refused.value)
        with pytest.raises(BadInput, match=rf"data\.path=cut\.{kind}\{how}: must be"):
            [*source(path).documents()]


def test_what_is_not_read_is_refused_with_the_forms_that_are() -> None:
    """A .json may be anything; a .parquet compresses itself."""
    for name in ("a.json", "a.gz", "a.parquet.gz", "a.tar.gz", "a.jsonl.lz4"):
        Path(name).write_bytes(b"{}")
        says = (
            r"must be one of \*\.txt, \*\.jsonl, \*\.parquet, or text in \.gz, \.zst, \.bz2, \.xz; "
        )
        with pytest.raises(BadInput, match=says):
            source(name).documents()


def test_parts_come_in_the_order_in_which_they_were_written() -> None:
    make(*(f"t/part={part}/{file}.txt" for part in (10, 9, 2, 1) for file in (0, 10, 9)))
    make("t/v1.10/a.txt", "t/v1.9/a.txt", "t/v01/a.txt", "t/v1/a.txt")
    parts = [f"t/part={part}/{file}.txt" for part in (1, 2, 9, 10) for file in (0, 9, 10)]
    assert found("t") == [*parts, *(f"t/v{of}/a.txt" for of in ("1.9", "1.10", "01", "1"))]
