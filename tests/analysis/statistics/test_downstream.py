"""Downstream scores: paired by seed and question, worded by what they are of."""

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis import downstream, load
from analysis.statistics.downstream import crossed_interval, precision
from analysis.table.answers import answered
from tests.support.answers import BYTES, write_answers
from tests.support.synthetic_store import write_arms

LOSSES: dict[str, list[float | None]] = {
    "sync": [1.0, 1.1, 1.2],
    "delay": [1.2, 1.3, 1.5],
    "delay_ef": [1.1, 1.2, 1.3],
}
GAINS = {"sync": 0.0, "delay": -1.0, "delay_ef": -0.1}


def store(folder: Path, seeds: int = 3) -> None:
    write_arms(folder, {arm: losses[:seeds] for arm, losses in LOSSES.items()})
    for row in load(folder).to_dict("records"):
        write_answers(Path(row["folder"]), GAINS[row["arm"]], seed=row["seed"])


def by_hand(trial: str) -> dict[str, list[float]]:
    """Scores in loops, from the file's own words."""
    [path] = Path(trial, "evaluation").glob("*.jsonl")
    scores: dict[str, list[float]] = defaultdict(list)
    for row in map(json.loads, path.read_text().splitlines()):
        right, wrong = (row["log_likelihoods"][i] for i in (row["gold"], 1 - row["gold"]))
        scores["accuracy"].append(float(right > wrong))
        scores["bits_per_byte"].append(-right / BYTES / math.log(2))
        scores["margin"].append((right - wrong) / BYTES / math.log(2))
        chances = math.exp(right / BYTES), math.exp(wrong / BYTES)
        scores["share"].append(chances[0] / sum(chances))
    return scores


def test_scores_and_differences_are_those_of_the_answers(tmp_path: Path) -> None:
    store(tmp_path)
    trials = load(tmp_path)
    folders = trials.set_index(["arm", "seed"])["folder"]
    table = downstream(trials).set_index(["arm", "measure"])
    assert {*table["task"]} == {"piqa"}
    for arm, measure in ((a, m) for a in ("delay", "delay_ef") for m in by_hand(folders.iloc[0])):
        own, sync = (
            np.array([by_hand(folders[of_arm, seed])[measure] for seed in range(3)])
            for of_arm in (arm, "sync")
        )
        row = table.loc[(arm, measure)]
        assert row["difference"] == pytest.approx((own - sync).mean())
        assert row["sync"] == pytest.approx(sync.mean())
        assert (row["low"], row["high"]) == pytest.approx(crossed_interval(own - sync))
        assert (row["n"], row["questions"], row["of"]) == (3, 200, "arms")


def test_one_seed_is_said_to_be_two_checkpoints(tmp_path: Path) -> None:
    store(tmp_path, seeds=1)
    trials = load(tmp_path)
    table = downstream(trials)
    assert {*table["of"]} == {"two checkpoints"}
    assert np.isinf(table["detectable"]).all()
    [row] = table[(table["arm"] == "delay") & (table["measure"] == "accuracy")].to_dict("records")
    folders = trials.set_index("arm")["folder"]
    own, sync = (np.array(by_hand(folders[arm])["accuracy"]) for arm in ("delay", "sync"))
    lost, gained = int((own < sync).sum()), int((own > sync).sum())
    assert lost > gained
    assert row["p"] == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)


def test_what_was_asked_otherwise_or_of_nobody_else_is_not_compared(tmp_path: Path) -> None:
    store(tmp_path)
    trials = load(tmp_path)
    folders = trials.set_index(["arm", "seed"])["folder"]
    write_answers(Path(folders["delay", 0]), task="copa")  # sync did not answer it
    [own] = Path(folders["delay_ef", 2], "evaluation").glob("*.jsonl")
    own.rename(own.with_name("piqa-ffffffffffff.jsonl"))  # other questions
    table = downstream(trials)
    assert {*table["task"]} == {"piqa"}
    assert {*table.loc[table["arm"] == "delay_ef", "n"]} == {2}


def test_unfinished_and_damaged_answers_do_not_count(tmp_path: Path) -> None:
    write_answers(tmp_path)
    [path] = (tmp_path / "evaluation").glob("*.jsonl")
    path.rename(path.with_name("piqa-1.unfinished.jsonl"))
    assert answered(str(tmp_path)) == {}
    path.write_text('{"question": 0}\n')
    with pytest.warns(UserWarning, match=r"piqa.* is damaged: delete it"):
        assert answered(str(tmp_path)) == {}


def test_a_plan_says_which_differences_show(tmp_path: Path) -> None:
    assert "no task has two pairs" in precision(tmp_path)
    store(tmp_path)
    text = precision(tmp_path)
    assert "piqa, adamw delay_ef: 3 seeds and 200 questions detect a difference" in text
