"""The spike at the switch is measured as its docstring says, on curves with known answers."""

import json
import math
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipegap.analysis import downstream, load
from pipegap.analysis.report.contents import StoreViews
from pipegap.analysis.statistics.diagnostics import (
    WINDOW,
    compared,
    crossed_interval,
    lateness,
    measure,
    precision,
    spikes,
)
from pipegap.analysis.statistics.pairs import mean_intervals, overhead
from pipegap.analysis.table.metrics import answered
from tests.support.synthetic_store import (
    BYTES,
    config,
    result,
    write,
    write_answers,
    write_arms,
    write_in,
)

LEVEL = 2.0


def curve(*pieces: tuple[float, int]) -> Any:
    """So many updates at each loss."""
    return np.concatenate([np.full(count, loss) for loss, count in pieces])


def add(store: Path, start: float, losses: Any, *, seed: int = 0, **changes: Any) -> None:
    """A trial with those losses, and its synchronous partner, whose loss is LEVEL throughout."""
    keys = {"num_updates": changes.pop("asked", len(losses))}
    keys |= {key: changes.pop(key) for key in [*changes] if key in config()}
    for arm, curve_of_arm in (("delay", losses), ("sync", [LEVEL] * len(losses))):
        settings = config(arm, seed=seed) | keys
        if arm == "delay":
            settings["pipeline"]["synchronous_start"] = start
        folder = write(store, settings, result(settings, 1.0, **changes))
        rows = [{"update": t, "train_loss": loss} for t, loss in enumerate(curve_of_arm)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(after: Any, sync: float = LEVEL) -> tuple[float, float]:
    own = np.concatenate([np.full(WINDOW, LEVEL), after])
    return measure(own, np.full(len(own), sync))


@pytest.mark.parametrize(
    ("after", "height", "recovery"),
    [
        # Of a window's 10 losses 7 must be 1.5 for a mean of no more than 2: 3.0 · 3 + 1.5 · 7.
        (curve((3.0, 30), (1.5, 50)), 1.0, 30 + 7),
        (curve((LEVEL, 5), (4.0, 1), (LEVEL, 60)), 2.0 / WINDOW, 6 + WINDOW),
        (curve((LEVEL, WINDOW), (9.0, 50)), 0.0, 0),
        (curve((LEVEL, WINDOW)), 0.0, 0),
        (curve((LEVEL, 50)), 0.0, 0),
        (curve((1.5, 50)), -0.5, 0),
        (curve((2.5, 50)), 0.5, np.nan),
        (curve((LEVEL, 20), (np.nan, 5)), 0.0, 0),
        (curve((np.nan, 20)), np.nan, np.nan),
        (curve((LEVEL, WINDOW - 1)), np.nan, np.nan),
    ],
    ids=[
        *("a plateau", "short: the window averages it", "what happens later is no spike"),
        *("a window is enough", "level", "below sync", "stays: no recovery"),
        *("a loss that is not finite later", "losses that are not finite", "too few updates"),
    ],
)
def test_height_and_recovery(after: Any, height: float, recovery: float) -> None:
    assert measured(after) == pytest.approx((height, recovery), nan_ok=True)


def test_without_the_losses_of_sync_there_is_no_height() -> None:
    assert np.isnan(measured(np.full(50, LEVEL), sync=np.nan)).all()


def test_what_sync_does_at_the_same_updates_is_no_spike() -> None:
    """Hard batches raise both losses; a falling loss hides a spike but for sync's."""
    batches = np.random.default_rng(0).normal(0, 1.0, 100)
    falling = np.linspace(3.0, 1.0, 100) + batches
    assert measure(falling, falling) == (0.0, 0.0)
    late = falling + np.where(np.arange(100) < WINDOW, 0.0, 0.05)
    assert measure(late, falling)[0] == pytest.approx(0.05)


@pytest.mark.parametrize("slope", [0.0, 4.0])
def test_a_placebo_without_a_delay_has_a_spike_in_5_percent(slope: float) -> None:
    """Of stores of three seeds: two runs see the same batches, whether or not the loss falls."""
    rng, stores = np.random.default_rng(0), 600
    batches = rng.normal(0, 0.1, (stores, 3, 2 * WINDOW)) - np.linspace(0, slope, 2 * WINDOW)
    arm, sync = batches + rng.normal(0, 0.01, (2, *batches.shape))
    pairs = zip(arm.reshape(-1, 2 * WINDOW), sync.reshape(-1, 2 * WINDOW), strict=True)
    heights = np.array([measure(*pair)[0] for pair in pairs]).reshape(stores, 3)
    low, high = mean_intervals(heights)
    assert np.mean((low > 0) | (high < 0)) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / stores)


@pytest.mark.parametrize(
    ("start", "changes", "switch"),
    [
        (30, {}, 30),
        (1, {}, 1),
        (0.3, {}, 30),
        (0.5, {"asked": None, "tokens_per_parameter": 8.0, "num_parameters": 25_600}, 50),
    ],
    ids=["updates", "one update", "share of the updates", "share of tokens"],
)
def test_the_switch_counts_updates_or_is_a_share(
    start: float, changes: dict[str, Any], switch: int, tmp_path: Path
) -> None:
    add(tmp_path, start, [2.0] * 100, **changes)
    add(tmp_path, 0.25, [2.0] * 100, seed=1)  # beside a share, a count is a float in the table
    table = spikes(load(tmp_path)).set_index("seed")
    assert table["switch"].to_dict() == {0: switch, 1: 25}


def test_the_arm_has_the_mean_of_its_seeds(tmp_path: Path) -> None:
    for seed, top in enumerate((3.0, 4.0)):
        add(tmp_path, 20, curve((2.0, 20), (top, 20), (2.0, 60)), seed=seed)
    add(tmp_path, 20, curve((2.0, 20), (5.0, 80)), seed=2)
    table = spikes(load(tmp_path))
    assert table["height"].tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert table[["n", "mean_height", "recovered"]].drop_duplicates().to_numpy().tolist() == [
        [3, 2.0, 2]
    ]
    assert (table["low"] < 2.0).all()
    assert table["arm"].unique().tolist() == ["delay+start(20)"]


def test_trials_that_are_deleted_meanwhile_have_no_spike(tmp_path: Path) -> None:
    for seed in range(3):
        add(tmp_path, 20, curve((2.0, 20), (3.0, 20), (2.0, 60)), seed=seed)
    trials = load(tmp_path)
    shutil.rmtree(trials["folder"][(trials["seed"] == 0) & (trials["delay"] > 0)].item())
    table = spikes(trials)
    assert table.set_index("seed")["height"].fillna(-1).to_dict() == {0: -1, 1: 1, 2: 1}
    assert table["n"].unique().tolist() == [2]


# How near late updates are to the fresh ones, on measurements with known means.

Measured = list[tuple[float, float] | None]
"""Cosine and error of some updates; None: not measured there."""


def add_of_lateness(
    store: Path, measured: Measured, *, optimizer: str = "adamw", seed: int = 0
) -> None:
    """A delayed trial with these measurements, and its synchronous partner."""
    for arm in ("sync", "delay"):
        settings = config(arm, optimizer=optimizer, seed=seed)
        folder = write(store, settings, result(settings, 1.0))
    rows = [
        {"update": t, "train_loss": 1.0}
        | ({} if measurement is None else {"diagnostics": {"all": of_model(*measurement)}})
        for t, measurement in enumerate(measured)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def of_model(cosine: float, error: float) -> dict[str, float]:
    return {"update_cosine": cosine, "update_error": error}


def test_means_are_over_the_measured_updates_that_are_late(tmp_path: Path) -> None:
    add_of_lateness(tmp_path, [(0.9999999, 0.0), None, (0.5, 0.8), None, (0.7, 0.4), None])
    (row,) = lateness(load(tmp_path)).to_dict("records")
    assert row["measured"] == 2
    assert row["cosine"] == pytest.approx(0.6)
    assert row["error"] == pytest.approx(0.6)
    assert (row["optimizer"], row["arm"], row["seed"]) == ("adamw", "delay", 0)


def test_trials_that_measured_no_late_update_have_no_row(tmp_path: Path) -> None:
    add_of_lateness(tmp_path, [None, None])
    add_of_lateness(tmp_path, [(1.0, 0.0), (1.0, 0.0)], seed=1)
    assert lateness(load(tmp_path)).empty
    assert compared(lateness(load(tmp_path))).empty


def test_optimizers_are_compared_by_seed(tmp_path: Path) -> None:
    cosines = {"adamw": [0.9, 0.8, 0.85, 0.7], "muon": [0.95, 0.9, 0.87]}
    for optimizer, of_seeds in cosines.items():
        for seed, cosine in enumerate(of_seeds):
            add_of_lateness(tmp_path, [(cosine, 0.1)], optimizer=optimizer, seed=seed)
    (row,) = compared(lateness(load(tmp_path))).to_dict("records")
    paired = np.subtract(cosines["adamw"][:3], cosines["muon"])
    low, high = stats.t.interval(0.95, 2, paired.mean(), stats.sem(paired))
    assert (row["optimizer"], row["other"], row["n"]) == ("adamw", "muon", 3)
    assert row["difference"] == pytest.approx(paired.mean())
    assert (row["low"], row["high"]) == (pytest.approx(low), pytest.approx(high))


# Speed, time and memory of arms beside those of sync.


def test_speed_counts_of_trials_that_had_the_machine_for_themselves(tmp_path: Path) -> None:
    """The first two of four trials of 40 s overlap; one device is another machine."""
    for arm, ended, device in (
        ("sync", 100.0, "a"),
        ("delay", 139.0, "a"),
        ("delay_ef", 180.0, "a"),
    ):
        settings = config(arm)
        write(tmp_path, settings, result(settings, 1.0, finished_at=ended, device_name=device))
    settings = config("sync", optimizer="muon")
    write(tmp_path, settings, result(settings, 1.0, finished_at=110.0, device_name="b"))
    table = overhead(load(tmp_path)).set_index(["optimizer", "arm"])
    assert table["speed n"].to_dict() == {
        ("adamw", "delay"): 0,
        ("adamw", "delay_ef"): 1,
        ("adamw", "sync"): 0,
        ("muon", "sync"): 1,
    }
    assert table["speed"].dropna().tolist() == [20_000, 20_000]
    assert (table["memory"] == 10**9).all()


def test_a_cost_is_beside_that_of_sync_on_the_same_torch(tmp_path: Path) -> None:
    for arm, version, speed in (("sync", "2.11.0", 1e4), ("delay", "2.13.0", 2e4)):
        settings = config(arm)
        of = {"finished_at": 100.0 if arm == "sync" else 200.0, "tokens_per_second": speed}
        write(tmp_path, settings, result(settings, 1.0, versions={"torch": version}, **of))
    table = overhead(load(tmp_path)).set_index("arm")
    assert table["speed"].to_dict() == {"sync": 1e4, "delay": 2e4}
    assert table["speed ratio"].isna()["delay"]
    assert table.loc["sync", "speed ratio"] == 1


def test_a_trial_beside_one_that_no_table_compares_has_no_speed(tmp_path: Path) -> None:
    """A longer run, which no sweep compares, ran beside the delayed trial on the same device."""
    store = tmp_path / "results"
    for number, (arm, ended, updates) in enumerate(
        [("sync", 100.0, 400), ("delay", 200.0, 400), ("delay", 230.0, 550)]
    ):
        trial = config(arm) | {"num_updates": updates}
        folder = store / "trials" / str(number)
        write_in(folder, trial, result(trial, 1.0, finished_at=ended, device_name="a"))
    views = StoreViews(load(store), [])
    compared = views.of(frozenset({"0", "1"}))
    table = overhead(compared.trials).set_index("arm")
    assert table["speed n"].to_dict() == {"sync": 1, "delay": 0}
    assert compared.gaps["setting"].tolist() == [""]


# Downstream scores: paired by seed and question, worded by what they are of.

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
    for arm, quantity in ((a, m) for a in ("delay", "delay_ef") for m in by_hand(folders.iloc[0])):
        own, sync = (
            np.array([by_hand(folders[of_arm, seed])[quantity] for seed in range(3)])
            for of_arm in (arm, "sync")
        )
        row = table.loc[(arm, quantity)]
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
