"""Downstream scores: paired by seed and question, worded by what they are of."""

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipegap.analysis import downstream, load
from pipegap.analysis.statistics.downstream import crossed_interval, precision
from pipegap.analysis.table.answers import answered
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


def samples(trial: str) -> Path:
    [path] = Path(trial, "evaluation").glob("*/samples_*.jsonl")
    return path


def by_hand(trial: str) -> dict[str, list[float]]:
    """Scores in loops, from the file's own words."""
    scores: dict[str, list[float]] = defaultdict(list)
    for row in map(json.loads, samples(trial).read_text().splitlines()):
        logs, gold = [float(log) for log, _ in row["filtered_resps"]], int(row["target"])
        right, wrong = logs[gold], logs[1 - gold]
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
    own = samples(folders["delay_ef", 2])
    own.write_text(own.read_text().replace("piqa 7", "piqa 8"))  # another question
    table = downstream(trials)
    assert {*table["task"]} == {"piqa"}
    assert {*table.loc[table["arm"] == "delay_ef", "n"]} == {2}


def test_the_last_answers_count_and_damaged_ones_do_not(tmp_path: Path) -> None:
    write_answers(tmp_path)
    path = samples(str(tmp_path))
    path.with_name("samples_piqa_2027.jsonl").write_text(path.read_text().partition("\n")[0])
    [scores] = answered(str(tmp_path)).values()
    assert len(scores["accuracy"]) == 1
    path.with_name("samples_piqa_2027.jsonl").write_text('{"doc_id": 0}\n')
    with pytest.warns(UserWarning, match=r"piqa is damaged: delete it"):
        assert answered(str(tmp_path)) == {}


SAMPLE = {
    "filter": "none",
    "doc_hash": "a",
    "prompt_hash": "b",
    "target_hash": "c",
    "arguments": {str(i): {"arg_0": "", "arg_1": f" {word}"} for i, word in enumerate("xyz")},
    "filtered_resps": [["-3.0", "False"], ["-1.0", "True"], ["-2.0", "False"]],
}


@pytest.mark.parametrize(
    ("said", "gold"),
    [
        ({"acc": 1.0, "target": "whatever it says"}, 1),
        ({"acc": 0.0, "target": "2"}, 2),
        ({"acc": 0.0, "target": "x"}, 0),
        ({"acc": 0.0, "target": " z"}, 2),
    ],
)
def test_the_right_choice_is_found_however_a_task_says_it(
    said: dict[str, object], gold: int, tmp_path: Path
) -> None:
    (tmp_path / "evaluation" / "own").mkdir(parents=True)
    path = tmp_path / "evaluation" / "own" / "samples_own_2026.jsonl"
    path.write_text(json.dumps({**SAMPLE, **said}))
    [scores] = answered(str(tmp_path)).values()
    bits = np.array([3.0, 1.0, 2.0]) / math.log(2)
    assert scores["bits_per_byte"] == pytest.approx(bits[gold])


def test_answers_of_version_0_2_are_read(tmp_path: Path) -> None:
    row = {"gold": 1, "log_likelihoods": [-4.0, -6.0], "letters": [2, 6], "bytes": [2, 6]}
    (tmp_path / "evaluation").mkdir()
    for name in ("piqa-0123456789ab", "piqa-1.unfinished"):
        (tmp_path / "evaluation" / f"{name}.jsonl").write_text(json.dumps(row))
    (tmp_path / "evaluation" / "piqa-0123456789ab.json").write_text("{}")
    [(stem, scores)] = answered(str(tmp_path)).items()
    assert stem == "piqa-0123456789ab"
    assert {name: float(values[0]) for name, values in scores.items()} == pytest.approx(
        {
            "accuracy": 0.0,
            "accuracy_norm": 1.0,
            "bits_per_byte": 1 / math.log(2),
            "margin": 1 / math.log(2),
            "share": math.exp(-1) / (math.exp(-1) + math.exp(-2)),
            "chance": 0.5,
        }
    )


def test_a_plan_says_which_differences_show(tmp_path: Path) -> None:
    assert "no task has two pairs" in precision(tmp_path)
    store(tmp_path)
    text = precision(tmp_path)
    assert "piqa, adamw delay_ef: 3 seeds and 200 questions detect a difference" in text
