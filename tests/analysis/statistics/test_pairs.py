"""Which trials make a pair: those of one seed, point, corpus and code; depths are never mixed."""

from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.trainer.config.names import names
from tests.support.paired import add, one
from tests.support.synthetic_store import TWO_BUFFERED, config, result, write, write_arms


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
    add(tmp_path, "delay", 1.2)
    trials = load(tmp_path)
    assert one(gaps(pd.concat([trials, trials])), "delay")["n"] == 1


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
        {"data=wiki": 0.1, "data=gcide": 0.3}
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


def test_a_model_is_told_by_its_name(tmp_path: Path) -> None:
    """And by what differs among the models of one name."""
    for name, width, depth in (("small", 32, 2), ("large", 64, 4), ("large", 64, 8)):
        for arm, loss in (("sync", 1.0), ("delay", 1.25)):
            settings = config(arm)
            settings["model"] |= {"hidden_size": width, "num_layers": depth}
            settings["choices"] = names(settings) | {"model": name}
            write(tmp_path, settings, result(settings, loss))
    assert {*gaps(load(tmp_path))["setting"]} == {
        "model.num_layers=2, model=small",
        "model.num_layers=4, model=large",
        "model.num_layers=8, model=large",
    }
