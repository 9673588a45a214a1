"""Text of one's own becomes the same tokens from any kind of file, however it was prepared."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from pipegap.trainer.base.children import mapped
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.data import prepare as preparation
from pipegap.trainer.data import readers
from pipegap.trainer.data.hub import HubDocuments
from pipegap.trainer.data.own import HubText, TextFiles
from pipegap.trainer.data.prepare import is_validation, prepare
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.data.tokenizers import Bytes, Document
from tests.support.own_text import texts, write_jsonl, write_parquet, write_txt

TEXTS = texts(120, 12)
SHARE = 0.2

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets


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
    write_txt(tmp_path / "a.txt", TEXTS)
    write_jsonl(tmp_path / "a.jsonl", ["", *TEXTS])
    write_parquet(tmp_path / "copy" / "a.parquet", [*TEXTS, " "])
    sources = [files(tmp_path / name, tmp_path / "s") for name in ("a.txt", "a.jsonl", "copy")]
    expected = {True: b"", False: b""}
    for text in TEXTS:
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
    write_jsonl(tmp_path / "one" / "x.jsonl", TEXTS)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.copy(tokenizer, tmp_path / "u.json")

    def name(folder: str, by: str = "t", **keys: object) -> str:
        source = files(tmp_path / folder, tmp_path / by, tokenizer=f"{tmp_path / by}.json", **keys)
        words = [f"data.{k}={v}" for k, v in vars(source).items() if v is not None]
        config = compose(["data=text", "model.vocab_size=2", *words])
        return trial_id(config, source.hash)

    assert name("one") == name("two") == name("one", by="u")
    assert name("one", num_tokens=5.0) != name("one") != name("one", vocab_size=9)
    write_jsonl(tmp_path / "two" / "x.jsonl", TEXTS[1:])
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
    write_parquet(tmp_path / "copy" / "a.parquet", TEXTS[:70])
    write_parquet(tmp_path / "copy" / "b.parquet", TEXTS[70:])
    monkeypatch.setattr(readers, "DOCUMENTS_AT_ONCE", 10)
    monkeypatch.setattr(preparation, "SAVE_EVERY", -1)

    def documents() -> list[str] | HubDocuments:
        name = str(tmp_path / "copy")
        options = {"config": None, "split": "train", "revision": None, "field": "text"}
        return HubDocuments(name, **options) if streamed else TEXTS  # type: ignore[arg-type]

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
        run("cut", Seen(TEXTS[85]))
    again = Seen("")
    assert run("cut", again) == whole
    assert again.seen == TEXTS[80:]
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
        (
            1e-9,
            120,
            "validation_share=1e-09: must be larger, .* of 120 documents one part has",
        ),
        (0.999999, 120, "validation_share=0.999999: must be smaller, or the text longer: of 120"),
    ],
)
def test_a_part_without_a_document_is_refused(
    share: float, number: int, why: str, tmp_path: Path
) -> None:
    write_txt(tmp_path / "a.txt", TEXTS[:number])
    source = replace(files(tmp_path / "a.txt", tmp_path / "s"), validation_share=share)
    with pytest.raises(BadInput, match=why):
        source.open()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "s"]
