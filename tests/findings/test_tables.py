"""Tables of findings/ beside what a few lines make of the published CSVs."""

import csv
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from analysis.table.names import optimizer as name
from analysis.theory.linear import hooks, linear
from analysis.theory.recursion import SAME, Hooks, Loop, late
from findings.code.cells import FEEDBACK, K, settings
from findings.code.pages import PARTS, call
from findings.code.published import FINDINGS

FED = {"_target_": FEEDBACK, "coefficient": 1.0, "lag": 1}
Losses = Mapping[tuple[str, ...], Mapping[str, float]]


def losses(file: str, *keys: str, **only: str) -> Losses:
    """(values of the keys) → seed → final loss."""
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    with (FINDINGS / f"{file}.csv").open() as lines:
        for row in csv.DictReader(lines):
            if all(row[key] == value for key, value in only.items()):
                at = tuple(row[key] for key in keys)
                found[at][row["seed"]] = float(row["final_val_loss"] or "nan")
    return found


def minus(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {seed: one[seed] - other[seed] for seed in one.keys() & other.keys()}


def cell(differences: Mapping[str, float]) -> str:
    values = np.array([*differences.values()])
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    low, high = values.mean() - half, values.mean() + half
    return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")


def lines(study: str, start: str) -> list[list[str]]:
    """The rows of a table of a study's page, by how the marker starts, made anew."""
    page = (FINDINGS / study / "README.md").read_text()
    [marker] = [part[1] for part in PARTS.finditer(page) if part[1].startswith(start)]
    rows = call(marker).splitlines()
    return [[part.strip() for part in line.strip("|").split("|")] for line in rows]


@pytest.mark.parametrize("arm", ["delay", "delay_ef"])
@pytest.mark.parametrize(
    ("study", "scale", "key", "variants"),
    [
        ("nesterov", "tiny", "optimizer.nesterov", ("True", "False")),
        ("dtype", "few_updates", "dtype", ("float32", "bfloat16")),
    ],
)
def test_two_variants(
    study: str, scale: str, key: str, variants: tuple[str, str], arm: str
) -> None:
    of = losses(f"{study}/trials_{scale}", "optimizer", key, "arm")
    rows = {row[0]: row for row in lines(study, "along")}
    said = {"delay": "delay", "delay_ef": "delay + EF"}[arm]
    for optimizer in {at[0] for at in of}:
        first, second = (
            minus(of[optimizer, variant, arm], of[optimizer, variant, "sync"])
            for variant in variants
        )
        changed = minus(second, first)
        expected = [cell(first), cell(second), cell(changed), str(len(changed))]
        assert rows[f"{name(optimizer)}: gap, {said}"][1:5] == expected


def test_the_largest_standard_error_of_a_gap() -> None:
    of = losses("recent/trials_tiny", "optimizer", "arm")
    errors = [
        float(stats.sem([*minus(of_arm, of[optimizer, "sync"]).values()]))
        for (optimizer, arm), of_arm in of.items()
        if arm != "sync"
    ]
    said = call("largest_error sweep=recent scale=tiny")
    assert said == f"The largest standard error of these 14 gaps is {max(errors):.4f}."


@pytest.mark.parametrize(
    ("arm", "alone", "said"),
    [
        ("delay_ef", "delay", "delay + EF"),
        (
            "constant_delay(3)_matched_ef",
            "constant_delay(3)",
            "delay of 3 + EF matched to the delay",
        ),
        ("wpipe_ef", "wpipe", "WPipe + EF"),
    ],
)
def test_what_a_remedy_saves(arm: str, alone: str, said: str) -> None:
    of = losses("remedies/trials_tiny", "optimizer", "arm", num_updates="1600")
    rows = {(row[0], row[1]): row for row in lines("remedies", "remedies")}
    for optimizer in {at[0] for at in of}:
        row = rows[name(optimizer), said]
        assert row[2] == cell(minus(of[optimizer, arm], of[optimizer, "sync"]))
        assert row[3] == cell(minus(of[optimizer, alone], of[optimizer, arm]))


def of_trials(file: str, column: str) -> Mapping[tuple[str, str], Mapping[str, float]]:
    """(optimizer, arm) → seed → a number of its trial."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with (FINDINGS / f"{file}.csv").open() as lines:
        for row in csv.DictReader(lines):
            found[row["optimizer"], row["arm"]][row["seed"]] = float(row[column])
    return found


def test_how_near_late_updates_are() -> None:
    cosines = of_trials("staleness/lateness_tiny", "cosine")
    gaps = losses("staleness/trials_tiny", "optimizer", "arm")
    rows = {(row[0], row[1]): row for row in lines("staleness", "lateness")}
    arm, said = "delay+start(0.1)", "delay, sync start 10 %"
    for optimizer in ("adamw", "muon", "soap"):
        row = rows[name(optimizer), said]
        assert row[2] == plain(cosines[optimizer, arm])
        assert row[4] == cell(minus(gaps[optimizer, arm], gaps[optimizer, "sync"]))
        assert row[5] == "8"
    apart = minus(cosines["adamw", arm], cosines["muon", arm])
    assert rows["AdamW minus Muon", said][2] == plain(apart)


def test_the_height_of_a_spike() -> None:
    of = losses("spike/trials_tiny", "optimizer", "optimizer.variance_decay", "arm")
    heights: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with (FINDINGS / "spike/heights_tiny.csv").open() as found:
        for row in csv.DictReader(found):
            at = row["optimizer"], row["setting"].removeprefix("optimizer.variance_decay=")
            heights[at][row["seed"]] = float(row["height"])
    rows = {(row[0], row[1]): row for row in lines("spike", "spike")}
    for (optimizer, decay), by_seed in heights.items():
        row = rows[name(optimizer), decay]
        start, delay = (of[optimizer, decay, arm] for arm in ("delay+start(0.5)", "delay"))
        assert row[2] == cell(by_seed)
        assert row[4:6] == [cell(minus(start, delay)), str(len(by_seed))]
    for optimizer in ("adamw", "muon"):
        ends = minus(heights[optimizer, "0.999"], heights[optimizer, "0.9"])
        assert rows[name(optimizer), "largest minus smallest"][2] == cell(ends)


def test_the_theory_stands_beside_the_gaps_of_tiny() -> None:
    """NAdamW's share is that of its momentum after 1,600 updates."""
    of = losses("shared_rate/trials_tiny_nadamw", "arm")
    rows = {row[0]: row for row in lines("noise", "rows sweep=shared_rate")}
    loop = linear(settings("nadamw", {"optimizer.lr": 0.002}), 1600)
    sync, delayed, fed = (
        Loop(loop, of_delay).noise(K) for of_delay in (Hooks(SAME), Hooks(late(1)), hooks(FED, 1))
    )
    assert rows["NAdamW"][1] == f"{delayed / sync:.3f}"
    assert rows["NAdamW"][2] == cell(minus(of[("delay",)], of[("sync",)]))
    assert rows["NAdamW"][3] == f"−{-100 * (delayed - fed) / (delayed - sync):.0f} %"


def plain(values: Mapping[str, float]) -> str:
    of = np.array([*values.values()])
    half = stats.t.ppf(0.975, len(of) - 1) * stats.sem(of)
    low, high = of.mean() - half, of.mean() + half
    return f"{of.mean():.4f} [{low:.4f}, {high:.4f}]".replace("-", "−")


def test_a_look_ahead_of_sync_beside_that_of_the_delay() -> None:
    late = losses("overshoot/trials_tiny", "optimizer", "arm")
    ahead = losses("overshoot/look_ahead_tiny", "optimizer", "coefficient")
    rows = {(row[0], row[1]): row for row in lines("overshoot", "look_ahead")}
    for optimizer in ("adamw", "muon", "soap"):
        for coefficient, arm in (("1", "delay_ef(2)"), ("3", "delay_ef(4)")):
            own, sync = ahead[optimizer, coefficient], late[optimizer, "sync"]
            row = rows[name(optimizer), coefficient]
            assert row[3:5] == [cell(minus(own, sync)), cell(minus(late[optimizer, arm], sync))]
            assert row[5:] == [cell(minus(own, late[optimizer, arm])), "8"]


def test_gaps_by_the_number_of_stages() -> None:
    of = losses("stages/trials_tiny", "optimizer", "arm", "pipeline.num_stages")
    rows = {row[0]: row for row in lines("stages", "along")}
    for optimizer in ("adamw", "muon"):
        gaps = {}
        for arm, said in (("delay", "2BW: gap"), ("pipedream", "original PipeDream: gap")):
            gaps[arm] = {
                stages: minus(of[optimizer, arm, stages], of[optimizer, "sync", stages])
                for stages in ("2", "4", "8")
            }
            row = rows[f"{name(optimizer)}, {said}"]
            assert row[1:4] == [cell(one) for one in gaps[arm].values()]
            assert row[4] == cell(minus(gaps[arm]["8"], gaps[arm]["2"]))
        apart = [minus(gaps["pipedream"][p], gaps["delay"][p]) for p in ("2", "4", "8")]
        row = rows[f"{name(optimizer)}, PipeDream minus 2BW, paired"]
        assert row[1:4] == [cell(one) for one in apart]
