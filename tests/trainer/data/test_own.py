"""Text of one's own becomes the same tokens from any kind of file, however it was prepared."""

import bz2
import codecs
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from tokenizers import Tokenizer, models

from pipegap.trainer.base.children import mapped
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.data import __main__ as cli
from pipegap.trainer.data import prepare as preparation
from pipegap.trainer.data import readers
from pipegap.trainer.data.hub import HubDocuments
from pipegap.trainer.data.own import HubText, TextFiles
from pipegap.trainer.data.prepare import is_validation, prepare
from pipegap.trainer.data.readers import READERS, named
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.data.tokenizers import Bytes, Document
from tests.support.own_files import (
    ABOUT,
    TEXTS,
    prepared,
    texts,
    write_jsonl,
    write_parquet,
    write_txt,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TEXTS_OF_OWN = texts(120, 12)
SHARE = 0.2


def files(path: Path, shards: Path, **more: object) -> TextFiles:
    found = {"text": "text", "tokenizer": "bytes", "vocab_size": None, "num_tokens": None, **more}
    return TextFiles(path=str(path), shards=str(shards), validation_share=SHARE, **found)  # type: ignore[arg-type]


def hub(name: Path, shards: Path) -> HubText:
    return HubText(
        path=str(shards),
        name=str(name),
        config=None,
        split="train",
        revision=None,
        text="text",
        tokenizer="bytes",
        vocab_size=None,
        validation_share=SHARE,
        num_tokens=None,
    )


def of_letter(letter: str) -> str:
    """A tokenizer.json with one letter, and a token that ends a document."""
    tokenizer = Tokenizer(models.BPE({"<eos>": 0, letter: 1}, []))
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer.to_str()


def test_every_kind_of_file_gives_the_same_tokens(tmp_path: Path) -> None:
    write_txt(tmp_path / "a.txt", TEXTS_OF_OWN)
    write_jsonl(tmp_path / "a.jsonl", ["", *TEXTS_OF_OWN])
    write_parquet(tmp_path / "copy" / "a.parquet", [*TEXTS_OF_OWN, " "])
    sources = [files(tmp_path / name, tmp_path / "s") for name in ("a.txt", "a.jsonl", "copy")]
    expected = {True: b"", False: b""}
    for text in TEXTS_OF_OWN:
        expected[is_validation(text, SHARE)] += text.encode() + b"\0"
    for source in [*sources, hub(tmp_path / "copy", tmp_path / "s")]:
        data = source.open()
        for held_out, split in ((True, data.validation), (False, data.train)):
            found = split.read(0, len(split))
            assert bytes(token % 256 for token in found) == expected[held_out]
    assert len(list((tmp_path / "s").iterdir())) == 4


def test_a_trial_is_named_by_content_and_not_by_place(tmp_path: Path) -> None:
    tokenizer = tmp_path / "t.json"
    tokenizer.write_text(of_letter("a"))
    write_jsonl(tmp_path / "one" / "x.jsonl", TEXTS_OF_OWN)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.copy(tokenizer, tmp_path / "u.json")

    def name(folder: str, by: str = "t", **keys: object) -> str:
        source = files(tmp_path / folder, tmp_path / by, tokenizer=f"{tmp_path / by}.json", **keys)
        words = [f"data.{k}={v}" for k, v in vars(source).items() if v is not None]
        config = compose(["data=text", "model.vocab_size=2", *words])
        return trial_id(config, source.hash)

    assert name("one") == name("two") == name("one", by="u")
    assert name("one", num_tokens=5.0) != name("one") != name("one", vocab_size=9)
    write_jsonl(tmp_path / "two" / "x.jsonl", TEXTS_OF_OWN[1:])
    assert name("two") != name("one")
    tokenizer.write_text(of_letter("b"))
    assert name("one") != name("one", by="u")


class Seen(Bytes):
    """Dies when it is given the document `fatal`; remembers those before."""

    def __init__(self, fatal: str) -> None:
        self.fatal, self.seen = fatal, list[str]()

    def encode(self, documents: list[str]) -> list[Document]:  # type: ignore[override]
        if self.fatal in documents:
            raise KeyboardInterrupt
        self.seen += documents
        return super().encode(documents)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_preparation_that_died_goes_on(
    streamed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_parquet(tmp_path / "copy" / "a.parquet", TEXTS_OF_OWN[:70])
    write_parquet(tmp_path / "copy" / "b.parquet", TEXTS_OF_OWN[70:])
    monkeypatch.setattr(readers, "DOCUMENTS_AT_ONCE", 10)
    monkeypatch.setattr(preparation, "SAVE_EVERY", -1)

    def documents() -> list[str] | HubDocuments:
        name = str(tmp_path / "copy")
        options = {"config": None, "split": "train", "revision": None, "field": "text"}
        return HubDocuments(name, **options) if streamed else TEXTS_OF_OWN  # type: ignore[arg-type]

    def run(out: str, encoder: Bytes) -> str | None:
        about = {"corpus": "c", "tokenizer": "t", "license": "l", "attribution": "a"}
        prepare(
            documents,
            lambda texts, folder: encoder,
            tmp_path / out,
            validation_share=SHARE,
            num_tokens=float("inf"),
            about=about,
        )
        return Prepared(path=str(tmp_path / out)).hash

    whole = run("whole", Bytes())
    with pytest.raises(KeyboardInterrupt):
        run("cut", Seen(TEXTS_OF_OWN[85]))
    again = Seen("")
    assert run("cut", again) == whole
    assert again.seen == TEXTS_OF_OWN[80:]
    assert "\ncut.partial: goes on after" in capsys.readouterr().err
    assert Prepared(path=str(tmp_path / "cut")).open().vocab_size == 257
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "cut", "whole"]


def test_workers_change_no_order() -> None:
    things = [*range(40)]
    assert list(mapped(hex, things, 2, lambda thing: 0, 0)) == [hex(thing) for thing in things]


@pytest.mark.parametrize(
    ("share", "number", "why"),
    [
        (0.01, 1, "data=a.txt: must hold text, two documents to train .*: it has one"),
        (0.5, 1, "data=a.txt: must hold text, two documents to train .*: it has one"),
        (1e-9, 120, "validation_share=1e-09: must be larger, .* of 120 documents one part has"),
        (0.999999, 120, "validation_share=0.999999: must be smaller, or the text longer: of 120"),
    ],
)
def test_a_part_without_a_document_is_refused(
    share: float, number: int, why: str, tmp_path: Path
) -> None:
    write_txt(tmp_path / "a.txt", TEXTS_OF_OWN[:number])
    source = replace(files(tmp_path / "a.txt", tmp_path / "s"), validation_share=share)
    with pytest.raises(BadInput, match=why):
        source.open()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "s"]


# A folder, a pattern and a copy of a data set name the same files, in the same order.

TEXTS_OF_PATHS = texts(40, 8)


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
        write(Path(f"plain/a.{kind}"), TEXTS_OF_PATHS)
        content = Path(f"plain/a.{kind}").read_bytes()
        Path(f"marked.{kind}").write_bytes(codecs.BOM_UTF8 + content)
        assert source(f"marked.{kind}").hash == source(f"plain/a.{kind}").hash
        assert [*source(f"marked.{kind}").documents()] == TEXTS_OF_PATHS
        for wide in ("utf-16", "utf-16-le", "utf-16-be"):
            Path(f"wide.{kind}").write_bytes(content.decode().encode(wide))
            with pytest.raises(BadInput, match=r"wide.*: must be a file of text in UTF-8, not in "):
                [*source(f"wide.{kind}").documents()]


def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("t/a.jsonl"), TEXTS_OF_PATHS)
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
    write_jsonl(Path("c[1]/a.jsonl"), TEXTS_OF_PATHS)
    write_jsonl(Path("c1/a.jsonl"), TEXTS_OF_PATHS[1:])
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
    write(Path(f"plain/a.{kind}"), TEXTS_OF_PATHS)
    content, compress = Path(f"plain/a.{kind}").read_bytes(), COMPRESSED[how]
    names = {"txt": ["a.txt", "A.TXT"], "jsonl": ["a.jsonl", "c4-train.00000-of-01024.json"]}[kind]
    for name in names:
        for marked in (content, codecs.BOM_UTF8 + content):
            path = Path(f"{name}{how}")
            path.write_bytes(compress(marked[:999]) + compress(marked[999:]))
            assert [*source(path).documents()] == TEXTS_OF_PATHS
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


# Damaged, foreign or half-written data is refused before training, with the way out.


@pytest.mark.parametrize("damage", ["truncate", "alter", "remove", "manifest"])
def test_damaged_shards_are_refused_with_the_way_out(tmp_path: Path, damage: str) -> None:
    source = prepared(tmp_path / "d")
    shard = tmp_path / "d" / "train-00000.tokens"
    if damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-2])
    elif damage == "alter":
        shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    elif damage == "remove":
        shard.unlink()
    else:
        (tmp_path / "d" / "manifest.json").unlink()
    with pytest.raises(BadInput, match="prepare it"):
        source.open()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{", "[", ""),
        ('"vocab_size": 257', '"vocab_size": "257"', "vocab_size: "),
        ('"dtype": "<u2"', '"dtype": "words"', "splits: train: dtype: "),
        ('"corpus"', '"body"', "must|corpus: "),
    ],
)
def test_a_manifest_that_is_none_is_refused_by_the_field_at_fault(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    source, path = prepared(tmp_path / "d"), tmp_path / "d" / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    refuses(source.open, f"unusable manifest.json .*({says}).*prepare it again")


def refuses(call: Callable[[], object], match: str) -> None:
    """By an error of one line."""
    with pytest.raises(BadInput, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_interrupted_preparation_leaves_nothing_half_valid(tmp_path: Path) -> None:
    def dying() -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(
            dying,
            lambda documents, folder: Bytes(),
            tmp_path / "d",
            validation_share=0.1,
            num_tokens=9,
            about=ABOUT,
        )
    assert not (tmp_path / "d").exists()
    assert prepared(tmp_path / "d").hash


def test_an_empty_folder_or_a_link_to_one_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    filled = prepared(tmp_path / "link").hash
    assert filled is not None
    assert filled == Prepared(path=str(tmp_path / "empty")).hash


@pytest.mark.parametrize("out", ["occupied", "occupied/file", "occupied/file/below", "n" * 300])
def test_a_folder_that_cannot_be_used_is_refused_before_the_work(tmp_path: Path, out: str) -> None:
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "file").write_text("mine")
    refuses(
        lambda: cli.run("wiki", {"out": str(tmp_path / out)}, tmp_path),
        "empty folder|must be a folder, not a file|at most 4,000 bytes",
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["occupied", "file"]


def test_a_folder_that_holds_other_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(cli.CORPORA["wiki"], documents=lambda _: iter(TEXTS))
    monkeypatch.setattr(cli, "CORPORA", {"wiki": few, "gcide": few})
    same = {"out": str(tmp_path / "d"), "num_tokens": "500"}
    assert "prepared" in cli.run("wiki", same)
    assert "was there already" in cli.run("wiki", {**same, "num_tokens": "5e2"})
    for name, options, difference in [
        ("gcide", {}, "corpus=wiki, not gcide"),
        ("wiki", {"tokenizer": "bpe"}, "tokenizer=bytes, not bpe"),
        ("wiki", {"num_tokens": "501"}, "num_tokens=500.0, not 501.0"),
        ("wiki", {"num_tokens": "inf"}, "num_tokens=500.0, not inf"),
    ]:
        refuses(lambda n=name, o=options: cli.run(n, {**same, **o}), f"holds {difference};")


def test_the_manifest_of_a_whole_corpus_names_no_limit(tmp_path: Path) -> None:
    """So that its hash, which names the data of a trial, stays what it was before limits."""
    prepared(tmp_path / "d")
    assert "num_tokens" not in json.loads((tmp_path / "d" / "manifest.json").read_text())


@pytest.mark.parametrize("damage", ["a list", "other keys", "a number", "cut tokens", "below 0"])
def test_a_damaged_record_of_a_preparation_gives_the_same_data_or_a_refusal(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "SAVE_EVERY", -1)
    monkeypatch.setattr(readers, "DOCUMENTS_AT_ONCE", 10)

    encode = Bytes.encode

    def dying(encoder: Bytes, texts: Sequence[str]) -> list[Document]:
        if TEXTS[45] in texts:
            raise KeyboardInterrupt
        return encode(encoder, texts)

    with monkeypatch.context() as patch:
        patch.setattr(Bytes, "encode", dying)
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path / "d")
    record = tmp_path / "d.partial" / preparation.PROGRESS
    content = json.loads(record.read_text())
    if damage == "cut tokens":
        (record.parent / "train-00000.tokens").write_bytes(b"\1\0")
    elif damage == "below 0":
        content["train"]["length"] = -5
        record.write_text(json.dumps(content))
    else:
        other = {
            "a list": [content],
            "other keys": {key: content[key] for key in ("asked", "state")},
            "a number": 3,
        }
        record.write_text(json.dumps(other[damage]))
    if damage in ("cut tokens", "below 0"):
        refuses(lambda: prepared(tmp_path / "d"), f"progress.json says: delete {record.parent}")
    else:
        assert prepared(tmp_path / "d").hash == prepared(tmp_path / "whole").hash
