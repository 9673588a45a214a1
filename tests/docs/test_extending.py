"""The examples of docs/extending.md work as they are printed there."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.markdown import ROOT, shell_lines, write_files
from tests.support.own_code import as_in_a_new_process
from tests.support.synthetic_store import write_arms

DOCUMENT = ROOT / "docs" / "extending.md"
TRIALS = [words[2:] for words in shell_lines(DOCUMENT) if words[:2] == ["pipegap", "trial"]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all files of the document, from which commands are run: nothing but `code=mine`
    lets Python find those in mine/."""
    write_files(DOCUMENT, tmp_path)
    small.corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    with as_in_a_new_process():
        yield tmp_path


def config(folder: Path, *words: str) -> dict[str, Any]:
    """The config of a command's words, changed so that the trial takes a second."""
    sizes = [word for word in small.SMALL if not word.startswith("optimizer.")]
    paths = [f"data.path={folder / 'corpus'}", f"results={folder / 'results'}"]
    return compose([*words, *sizes, *paths])


def words_of(example: str) -> list[str]:
    [words] = [words for words in TRIALS if example in words]
    return words


def run(folder: Path, *words: str) -> dict[str, Any]:
    result = run_trial(config(folder, *words))
    assert result["status"] == "completed"
    return result


def test_the_optimizer(folder: Path) -> None:
    words = words_of("optimizer=sign_descent")
    losses = [
        run(folder, *words, f"optimizer.lr={lr}")["final_val_loss"] for lr in (0.001, 0.0000001)
    ]
    assert losses[0] < losses[1] - 0.01, "it learns"
    with pytest.raises(BadInput, match="lr"):
        config(folder, *words, "optimizer.lr=-1")


def test_the_correction(folder: Path) -> None:
    """It acts where the gradient is late and nowhere else."""
    words = [word for word in words_of("correction=smaller_steps") if ".share" not in word]
    late = words[words.index("pipeline=pipedream_2bw")]
    fresh = ["pipeline=sync" if word == late else word for word in words]
    loss = {
        (word, share): run(folder, *of, f"correction.share={share}")["final_val_loss"]
        for word, of in (("late", words), ("fresh", fresh))
        for share in (0.5, 1.0)
    }
    assert loss["fresh", 0.5] == loss["fresh", 1.0]
    assert loss["late", 0.5] != loss["late", 1.0]
    assert loss["late", 1.0] == run(folder, late)["final_val_loss"]


def test_the_schedule(folder: Path) -> None:
    assert run(folder, *words_of("pipeline=half_delayed"))["delays"] == [1, 0]
    assert "delays [1, 0]" in DOCUMENT.read_text()


def test_the_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [words] = [w[2:] for w in shell_lines(DOCUMENT) if w[:2] == ["pipegap", "sweep"]]
    assert sweeps([*words, f"data.path={folder / 'corpus'}"]) == 0
    assert "9 asked, 9 unique" in capsys.readouterr().out


LOSSES: dict[str, dict[str, list[float | None]]] = {
    "adamw": {"sync": [1.70, 1.71, 1.69], "delay": [1.90, 1.92, 1.88]},
    "muon": {"sync": [1.60, 1.61, 1.59], "delay": [1.65, 1.66, 1.64]},
}


def run_script(folder: Path, name: str) -> None:
    assert ["python", name] in list(shell_lines(DOCUMENT))
    for optimizer, arms in LOSSES.items():
        write_arms(folder / "results", arms, optimizer=optimizer)
    runpy.run_path(name, run_name="__main__")


def test_the_claim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(folder, "my_claim.py")
    assert "A delay costs Muon less than AdamW - reproduced" in capsys.readouterr().out


def test_the_figure(folder: Path) -> None:
    run_script(folder, "my_figure.py")
    shown = pd.read_csv(folder / "my_gaps.csv")
    assert sorted(shown["optimizer"]) == [*LOSSES]
    assert (folder / "my_gaps.png").stat().st_size > 1000
    assert "gap (nats per token)" in (folder / "my_gaps.svg").read_text()


def test_the_figure_says_where_it_has_nothing_to_show(folder: Path) -> None:
    """As after the trials of this page, which have no pair."""
    write_arms(folder / "results", {"sync": [1.0]})
    with pytest.raises(BadInput, match="figure=my_gaps: must have a row of data"):
        runpy.run_path("my_figure.py", run_name="__main__")
