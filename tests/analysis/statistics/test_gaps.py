"""Every gap is paired, counted and hides nothing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import gaps, load
from analysis.table.schema import GAP
from tests.support.synthetic_store import TWO_BUFFERED, config, result, write, write_arms


def one(table: pd.DataFrame, arm: str, optimizer: str = "adamw") -> Any:
    rows = table[(table["arm"] == arm) & (table["optimizer"] == optimizer)]
    assert len(rows) == 1
    return rows.iloc[0]


def add(store: Path, arm: str, loss: float | None, seed: int = 0, **changes: Any) -> None:
    """A trial whose pipeline or data path (`path`) or result is changed."""
    settings = config(arm, seed=seed)
    settings["data"]["path"] = changes.pop("path", "data/wiki")
    for key in ("num_stages", "num_microbatches", "_target_"):
        if key in changes:
            settings["pipeline"][key] = changes.pop(key)
    write(store, settings, result(settings, loss, **changes))


def test_gaps_are_means_of_paired_differences(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 2.0, 3.0], "delay": [1.5, 2.3, 3.4]})
    table = gaps(load(tmp_path))
    row, expected = one(table, "delay"), stats.ttest_rel([1.5, 2.3, 3.4], [1.0, 2.0, 3.0])
    interval = expected.confidence_interval(0.95)
    assert row["n"] == row["pairs"] == 3
    assert row["gap"] == pytest.approx(0.4)
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
    assert (row["loss_sync"], row["loss"]) == pytest.approx((2.0, 2.4))
    assert {name: str(table[name].dtype) for name in table} == {k: v[0] for k, v in GAP.items()}


def test_the_pair_is_of_one_seed_whatever_the_order_of_the_folders(tmp_path: Path) -> None:
    for seed, loss in ((2, 3.0), (0, 1.0), (1, 2.0)):
        add(tmp_path, "sync", loss, seed)
    for seed, loss in ((1, 2.1), (2, 3.1), (0, 1.1)):
        add(tmp_path, "delay", loss, seed)
    row = one(gaps(load(tmp_path)), "delay")
    assert (row["low"], row["high"]) == pytest.approx((0.1, 0.1))


def test_a_trial_made_before_names_were_recorded_pairs_with_a_new_one(tmp_path: Path) -> None:
    """Whatever the new one calls the same values: the point is theirs."""
    for name, optimizer in (("adamw", "adamw"), ("mine", "muon")):
        chosen = {"model": "tiny", "data": "wiki", "optimizer": name, "lr_schedule": "cosine"}
        of_arm = {"pipeline": "pipedream_2bw", "correction": "none"}
        old, new = config("sync", optimizer=optimizer), config("delay", optimizer=optimizer)
        write(tmp_path, old, result(old, 1.5))
        write(tmp_path, {**new, "choices": chosen | of_arm}, result(new, 1.75))
    trials = load(tmp_path)
    assert (trials["optimizer"].tolist(), trials["arm"].tolist()) == (
        ["adamw", "adamw", "mine", "mine"],
        ["sync", "delay"] * 2,
    )
    assert gaps(trials)["gap"].tolist() == [0.25, 0.25]


def test_trials_whose_own_class_has_another_source_are_not_compared(tmp_path: Path) -> None:
    sources = {"sync": "a", "delay": "a", "delay_ef": "b"}
    for arm, source in sources.items():
        settings = config(arm)
        settings["model"]["_target_"] = "mine.Model"
        made = {"sources": {"model": source, "correction": arm}}
        write(tmp_path, settings, result(settings, 1.5, **made))
    table = gaps(load(tmp_path))
    assert table.loc[table["n"] > 0, "arm"].tolist() == ["delay"]


def test_a_diverged_arm_is_counted_beside_the_mean(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.0, 1.0], "delay": [1.2, None, 1.4]})
    row = one(gaps(load(tmp_path)), "delay")
    assert (row["n"], row["diverged"], row["pairs"]) == (2, 1, 3)
    assert row["gap"] == pytest.approx(0.3)


def test_an_arm_that_always_diverged_has_no_gap(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.0], "delay": [None, None]})
    row = one(gaps(load(tmp_path)), "delay")
    assert (row["n"], row["diverged"], row["pairs"]) == (0, 2, 2)
    assert np.isnan(row["gap"])


def test_a_seed_whose_sync_trial_diverged_is_left_out_and_counted(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, None, None, 1.0], "delay": [1.2, 1.9, None, 1.4]})
    row = one(gaps(load(tmp_path)), "delay")
    assert (row["n"], row["diverged"], row["sync_diverged"]) == (2, 0, 2)
    assert row["gap"] == pytest.approx(0.3)


def test_one_pair_has_a_gap_and_no_interval(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0], "delay": [1.2]})
    row = one(gaps(load(tmp_path)), "delay")
    assert (row["n"], row["gap"]) == (1, pytest.approx(0.2))
    assert np.isnan([row["low"], row["high"]]).all()


def test_the_share_removed_is_a_ratio_of_means_over_the_same_seeds(tmp_path: Path) -> None:
    losses = {
        "sync": [1.0, 1.0, 1.0, 1.0],
        "delay": [1.4, 1.5, 1.3, 9.0],
        "delay_ef": [1.1, 1.2, 1.15],
    }
    write_arms(tmp_path, losses)
    row = one(gaps(load(tmp_path)), "delay_ef")
    assert row["removed"] == pytest.approx(1 - 0.45 / 1.2)
    assert row["removed_n"] == 3
    left, whole = np.array([0.1, 0.2, 0.15]), np.array([0.4, 0.5, 0.3])
    for end in (row["removed_low"], row["removed_high"]):
        assert stats.ttest_1samp(left - (1 - end) * whole, 0).pvalue == pytest.approx(0.05)
    assert row["removed_low"] < row["removed"] < row["removed_high"]


@pytest.mark.parametrize(
    "losses",
    [
        {"sync": [1.0] * 3, "delay": [1.4, 1.0, 0.8], "delay_ef": [1.1] * 3},
        {"sync": [1.0], "delay": [1.4], "delay_ef": [1.1]},
        {"sync": [1.0] * 3, "delay": [1.4, 1.5, 1.4], "delay_ef": [1.1, 1.1, None]},
        {"sync": [1.0] * 3, "delay": [1.4, 1.4, None], "delay_ef": [1.1, 1.1, 1.1]},
        {"sync": [1.0] * 3, "delay_ef": [1.1, 1.1, 1.1]},
    ],
    ids=["gap may be zero", "one seed", "correction diverged", "plain diverged", "no plain arm"],
)
def test_no_share_where_it_would_mislead(tmp_path: Path, losses: dict[str, Any]) -> None:
    write_arms(tmp_path, losses)
    assert np.isnan(one(gaps(load(tmp_path)), "delay_ef")["removed"])


def test_twenty_pairs_have_students_t_as_three_do(tmp_path: Path) -> None:
    losses = 1 + np.random.default_rng(0).exponential(0.1, 20)
    write_arms(tmp_path, {"sync": [1.0] * 20, "delay": list(losses)})
    row = one(gaps(load(tmp_path)), "delay")
    expected = stats.ttest_1samp(losses - 1, 0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_one_sync_trial_serves_every_arm(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0], "delay": [1.2], "delay_ef": [1.1]})
    table = gaps(load(tmp_path))
    assert table["loss_sync"].tolist() == [1.0, 1.0]


def test_the_sync_trial_of_as_many_stages_and_microbatches_is_preferred(tmp_path: Path) -> None:
    add(tmp_path, "sync", 1.0, num_stages=1, num_microbatches=1)
    add(tmp_path, "sync", 2.0, num_stages=4, num_microbatches=8)
    add(tmp_path, "delay", 2.5, num_stages=4, num_microbatches=8)
    add(tmp_path, "delay", 1.1, num_stages=2, num_microbatches=2)
    table = gaps(load(tmp_path)).set_index("num_stages")
    assert table["loss_sync"].to_dict() == {2: 1.0, 4: 2.0}
    assert table["gap"].to_dict() == pytest.approx({2: 0.1, 4: 0.5})


def test_depths_of_a_pipeline_are_never_averaged(tmp_path: Path) -> None:
    add(tmp_path, "sync", 1.0)
    for stages, loss in ((2, 1.1), (8, 1.7)):
        name = TWO_BUFFERED["_target_"].replace("pipedream_2bw", "pipedream")
        add(tmp_path, "delay", loss, num_stages=stages, _target_=name)
    table = gaps(load(tmp_path))
    assert table["arm"].tolist() == ["pipedream", "pipedream"]
    assert table["n"].tolist() == [1, 1]


def test_missing_arms_and_seeds_are_named(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.0], "delay": [1.2, 1.2, 1.2], "delay_ef": [1.1]})
    write_arms(tmp_path, {"sync": [1.0, 1.0], "delay": [1.2, 1.2]}, optimizer="muon")
    table = gaps(load(tmp_path))
    assert one(table, "delay_ef", "muon")[["n", "missing_seeds"]].tolist() == [0, "0, 1"]
    assert one(table, "delay_ef")["missing_seeds"] == "1, 2"
    assert one(table, "delay")["missing_sync_seeds"] == "2"
    assert one(table, "delay", "muon")["missing_seeds"] == ""


def test_unfinished_and_failed_trials_make_no_gap(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.0], "delay": [1.2]})
    write(tmp_path, config("delay", seed=1), None)
    write(tmp_path, config("delay", seed=1), {"status": "failed", "data_hash": "d" * 64})
    row = one(gaps(load(tmp_path)), "delay")
    assert (row["n"], row["missing_seeds"]) == (1, "1")


@pytest.mark.parametrize(("key", "value"), [("trainer_version", 2), ("git", "abc-dirty")])
def test_a_pair_of_different_code_warns(tmp_path: Path, key: str, value: object) -> None:
    add(tmp_path, "sync", 1.0)
    add(tmp_path, "delay", 1.2, **{key: value})
    with pytest.warns(UserWarning, match=f"1 of 1 pairs mix {key}"):
        table = gaps(load(tmp_path))
    assert one(table, "delay")["gap"] == pytest.approx(0.2)


def test_a_trial_that_went_on_elsewhere_is_paired_all_the_same(tmp_path: Path) -> None:
    add(tmp_path, "sync", 1.0)
    moved = config("delay") | {"resume_from": "checkpoint-000000100-0123456789abcdef.pt"}
    write(tmp_path, moved, result(moved, 1.2))
    assert one(gaps(load(tmp_path)), "delay")["gap"] == pytest.approx(0.2)


def test_of_two_versions_of_a_trial_the_newest_counts(tmp_path: Path) -> None:
    add(tmp_path, "sync", 1.0, trainer_version=2)
    add(tmp_path, "delay", 1.2, trainer_version=2)
    add(tmp_path, "delay", 9.9, trainer_version=1)
    with pytest.warns(UserWarning, match="the newest count"):
        row = one(gaps(load(tmp_path)), "delay")
    assert (row["n"], row["gap"]) == (1, pytest.approx(0.2))


def test_the_same_trial_twice_counts_once(tmp_path: Path) -> None:
    add(tmp_path, "sync", 1.0)
    for _ in range(2):
        add(tmp_path, "delay", 1.2, trial_id="same")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one(gaps(load(tmp_path)), "delay")["n"] == 1


def test_altered_data_are_refused(tmp_path: Path) -> None:
    add(tmp_path, "sync", 1.0)
    add(tmp_path, "delay", 1.2, data_hash="e" * 64)
    with pytest.raises(ValueError, match="data/wiki saw different data"):
        gaps(load(tmp_path))


def test_two_corpora_are_two_points(tmp_path: Path) -> None:
    for path, value, gap in (("data/wiki", "d", 0.1), ("data/gcide", "e", 0.3)):
        add(tmp_path, "sync", 1.0, path=path, data_hash=value * 64)
        add(tmp_path, "delay", 1.0 + gap, path=path, data_hash=value * 64)
    table = gaps(load(tmp_path))
    assert dict(zip(table["setting"], table["gap"], strict=True)) == pytest.approx(
        {"data.path=data/wiki": 0.1, "data.path=data/gcide": 0.3}
    )


def test_the_setting_says_what_tells_points_apart(tmp_path: Path) -> None:
    for rate in (0.002, 0.004):
        for arm in ("sync", "delay"):
            settings = config(arm)
            settings["optimizer"]["lr"] = rate
            write(tmp_path, settings, result(settings, None if rate > 0.003 else 1.0))
    write_arms(tmp_path, {"sync": [1.0], "delay": [1.0]}, optimizer="muon")
    table = gaps(load(tmp_path))
    assert table["setting"].tolist() == ["optimizer.lr=0.002", "optimizer.lr=0.004", ""]


def test_nothing_to_compare_gives_an_empty_table(tmp_path: Path) -> None:
    assert list(gaps(load(tmp_path))) == list(GAP)
    write_arms(tmp_path, {"sync": [1.0]})
    assert gaps(load(tmp_path)).empty
