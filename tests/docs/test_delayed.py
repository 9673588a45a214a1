"""The example of docs/delayed.md works as printed, and the analysis finds the gap that it made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from pipegap.analysis import gaps, load
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed import DelayedOptimizer, record
from tests.support.markdown import ROOT, blocks

DOCUMENT = ROOT / "docs" / "delayed.md"


def read_lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_the_gap_of_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = [block for block in blocks(DOCUMENT) if block.language == "python"]
    exec(block.text, {})
    found: dict[tuple[int, float], list[float]] = {}
    for path in sorted(tmp_path.glob("results/trials/*/config.json")):
        config = json.loads(path.read_text())
        rows = [json.loads(line) for line in read_lines(path.parent)]
        assert [row["update"] for row in rows] == [*range(20)]
        result = json.loads((path.parent / "result.json").read_text())
        assert result["final_val_loss"] == rows[-1]["val_loss"]
        arm = (result["delays"][0], config["correction"].get("coefficient", 0.0))
        found.setdefault(arm, [0.0] * 3)[config["seed"]] = rows[-1]["val_loss"]
    assert found.keys() == {(0, 0.0), (1, 0.0), (1, 1.0)}
    table = gaps(load(tmp_path / "results")).set_index("arm")
    for arm, key in {"delay": (1, 0.0), "delay_ef": (1, 1.0)}.items():
        pairs = np.subtract(found[key], found[0, 0.0])
        low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
        row = table.loc[arm]
        assert (row["n"], row["optimizer"]) == (3, "adamw")
        assert row[["gap", "low", "high"]].tolist() == pytest.approx([pairs.mean(), low, high])
    assert table.loc["delay", "gap"] != 0


WORDS = {
    **{"model": "m", "data": "d", "optimizer": "sgd"},
    **{"seed": 0, "batch_size": 1, "seq_len": 1, "num_updates": 2},
}


def delayed(**options: Any) -> DelayedOptimizer:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return DelayedOptimizer(torch.optim.SGD([weight], lr=0.1), **options)


def read(folder: Path, name: str = "result.json") -> dict[str, object]:
    [path] = folder.glob(f"trials/*/{name}")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_divergence_is_a_result(tmp_path: Path) -> None:
    optimizer = delayed()
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        run.update(float("nan"))
        raise AssertionError("not reached")
    result = read(tmp_path)
    assert (result["status"], result["diverged_at"]) == ("diverged", 0)
    assert result["final_val_loss"] is None


def test_what_stops_early_goes_on_and_what_is_finished_is_refused(tmp_path: Path) -> None:
    optimizer = delayed()
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        run.update(1.0)
    assert not list(tmp_path.glob("trials/*/result.json"))
    again = delayed()
    again.load_state_dict(optimizer.state_dict())
    with record(tmp_path, again, WORDS) as run:
        again.step()
        run.update(0.5, 0.25)
    assert read(tmp_path)["final_val_loss"] == 0.25
    [rows] = tmp_path.glob("trials/*/metrics.jsonl")
    assert [json.loads(line)["train_loss"] for line in read_lines(rows.parent)] == [1.0, 0.5]
    with (
        pytest.raises(BadInput, match=r"words\.seed=0: is finished"),
        record(tmp_path, delayed(), WORDS),
    ):
        pass


def test_an_error_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(KeyError), record(tmp_path, delayed(), WORDS):
        raise KeyError("lost")
    result = read(tmp_path)
    assert result["status"] == "failed"
    assert "KeyError: 'lost'" in str(result["error"])


def test_each_step_is_recorded_once(tmp_path: Path) -> None:
    optimizer = delayed()
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        optimizer.step()
        with pytest.raises(RuntimeError, match="recorded 0 steps of 2"):
            run.update(1.0)


def test_the_last_update_needs_a_validation_loss(tmp_path: Path) -> None:
    optimizer = delayed()
    context = record(tmp_path, optimizer, {**WORDS, "num_updates": 1})
    run = context.__enter__()
    optimizer.step()
    run.update(1.0)
    with pytest.raises(ValueError, match="needs a val_loss"):
        context.__exit__(None, None, None)


@pytest.mark.parametrize("ends", ["finish", "num_updates", "neither"])
def test_the_result_is_of_the_newest_weights(tmp_path: Path, ends: str) -> None:
    """As with keep="weights": an older version's loss is no result."""
    options = {"num_updates": 2} if ends == "num_updates" else {}
    optimizer = delayed(keep="gradients", **options)
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        run.update(1.0, 0.5)
        optimizer.step()
        if ends == "finish":
            optimizer.finish()
        if ends == "neither":
            with pytest.raises(ValueError, match="not of the newest weights: 1 updates wait"):
                run.update(1.0, 0.25)
        else:
            run.update(1.0, 0.25)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"seed": None}, "words.seed=None: must be an int"),
        ({"model": 3}, "words.model=3: must be a name"),
        ({"pipeline.delay": 3}, "words.pipeline.delay=3: must be a word of its own, or begin"),
        ({"num_updates": 3}, "words.num_updates=3: must be num_updates=2 of the DelayedOptimizer"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_words(tmp_path: Path, words: dict[str, object], says: str) -> None:
    with (
        pytest.raises(BadInput) as caught,
        record(
            tmp_path,
            delayed(num_updates=2),
            {**WORDS, **words},  # type: ignore[dict-item]
        ),
    ):
        pass
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
