"""The commands of docs/data.md that need no hub run as they are printed."""

from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.__main__ import main as trainer
from tests.support import small
from tests.support.markdown import ROOT, shell_lines
from tests.support.own_text import texts, write_jsonl, write_parquet, write_txt

DOCUMENT = ROOT / "docs" / "data.md"
LINES = [words[1:] for words in shell_lines(DOCUMENT) if words[:1] == ["pipegap"]]
TRIALS = [words for command, *words in LINES if command == "trial"]
HERE = [words for words in TRIALS if not any("HuggingFaceFW" in word for word in words)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with what the commands name."""
    monkeypatch.chdir(tmp_path)
    found = texts()
    write_txt(Path("books/one.txt"), found[:150])
    write_txt(Path("books/two.txt"), found[150:])
    write_jsonl(Path("posts.jsonl"), found, field="body")
    write_parquet(Path("table/a.parquet"), found)
    write_parquet(Path("mirror/train.parquet"), found)


@pytest.mark.parametrize("words", HERE, ids=" ".join)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets
def test_a_trial_prepares_and_trains(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [word for word in small.SMALL if "num_updates" not in word]
    given = [*words, *sizes, "data.validation_share=0.1"]
    assert trainer(given) == 0
    [shards] = Path("data/prepared").iterdir()
    said = capsys.readouterr()
    assert f"prepares {words[1].partition('=')[2].rpartition('/')[2]} in {shards}" in said.err
    assert said.out.startswith("completed")
    assert trainer(given) == 0
    assert capsys.readouterr().out.startswith("done before")


def test_the_sweep_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(HERE) == 4, "trials above, of which each was tried"
    [words] = [words for command, *words in LINES if command == "sweep"]
    assert sweeps(words) == 0
    assert "not prepared" not in capsys.readouterr().out
    assert not Path("data").exists()
