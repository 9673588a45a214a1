"""Damaged, foreign or half-written data is refused before training, with the way out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data import __main__ as cli
from pipegap.trainer.data import prepare as preparation
from pipegap.trainer.data import readers
from pipegap.trainer.data.prepare import prepare
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.data.tokenizers import Bytes, Document
from tests.support.documents import ABOUT, TEXTS, prepared


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
