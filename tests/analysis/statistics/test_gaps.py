"""Every gap is a mean over pairs with its interval; it counts what it leaves out.

Its table in words has the rows with a pair, and the columns that tell them apart."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipegap.analysis import gaps, load
from pipegap.analysis.claims.measure import share
from pipegap.analysis.commands import advise
from pipegap.analysis.report.page.page import listed
from pipegap.analysis.report.paper_tables import all_gaps
from pipegap.analysis.statistics.gaps import INACTIVE, SHORT, regimes, spreads
from pipegap.analysis.statistics.pairs import detectable_gap, seeds_needed
from pipegap.analysis.statistics.text import gap_table, notes
from pipegap.analysis.table.schema import GAP
from pipegap.analysis.table.text import markdown_row
from pipegap.trainer.config.identity import names
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.delayed import record as recorded_loop
from tests.support import synthetic_store
from tests.support.synthetic_store import (
    TWO_BUFFERED,
    add,
    config,
    one,
    put,
    result,
    write,
    write_arms,
)

Losses = list[float | None]


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


@pytest.mark.parametrize(
    ("sync", "delay", "counts", "gap"),
    [
        ([1.0] * 3, [1.2, None, 1.4], (2, 1, 3, 0), 0.3),
        ([1.0, 1.0], [None, None], (0, 2, 2, 0), np.nan),
        ([1.0, None, None, 1.0], [1.2, 1.9, None, 1.4], (2, 0, 2, 2), 0.3),
        ([1.0], [1.2], (1, 0, 1, 0), 0.2),
    ],
    ids=["an arm diverged once", "an arm always diverged", "sync diverged", "one pair"],
)
def test_what_diverged_is_left_out_and_counted(
    tmp_path: Path, sync: Losses, delay: Losses, counts: tuple[int, ...], gap: float
) -> None:
    """`counts`: pairs in the mean, diverged arms, pairs whose sync completed, diverged sync."""
    write_arms(tmp_path, {"sync": sync, "delay": delay})
    row = one(gaps(load(tmp_path)), "delay")
    assert tuple(row[["n", "diverged", "pairs", "sync_diverged"]]) == counts
    assert row["gap"] == pytest.approx(gap, nan_ok=True)
    assert np.isnan([row["low"], row["high"]]).all() == (row["n"] < 2)


def test_the_share_removed_is_a_ratio_of_means_over_the_same_seeds(tmp_path: Path) -> None:
    losses = {
        "sync": [1.0, 1.0, 1.0, 1.0],
        "delay": [1.4, 1.41, 1.39, 9.0],
        "delay_ef": [1.1, 1.2, 1.15],
    }
    write_arms(tmp_path, losses)
    row = one(gaps(load(tmp_path)), "delay_ef")
    assert row["removed"] == pytest.approx(1 - 0.45 / 1.2)
    assert row["removed_n"] == 3
    left, whole = np.array([0.1, 0.2, 0.15]), np.array([0.4, 0.41, 0.39])
    for end in (row["removed_low"], row["removed_high"]):
        assert stats.ttest_1samp(left - (1 - end) * whole, 0).pvalue == pytest.approx(0.05)
    assert row["removed_low"] < row["removed"] < row["removed_high"]


@pytest.mark.parametrize(
    "losses",
    [
        {"sync": [1.0] * 3, "delay": [1.4, 1.0, 0.8], "delay_ef": [1.1] * 3},
        {"sync": [1.0] * 3, "delay": [1.4, 1.5, 1.3], "delay_ef": [1.1, 1.2, 1.15]},
        {"sync": [1.0], "delay": [1.4], "delay_ef": [1.1]},
        {"sync": [1.0] * 3, "delay": [1.4, 1.5, 1.4], "delay_ef": [1.1, 1.1, None]},
        {"sync": [1.0] * 3, "delay": [1.4, 1.4, None], "delay_ef": [1.1, 1.1, 1.1]},
        {"sync": [1.0] * 3, "delay_ef": [1.1, 1.1, 1.1]},
    ],
    ids=[
        *("gap may be zero", "gap is weak", "one seed", "correction diverged", "plain diverged"),
        "no plain arm",
    ],
)
def test_no_share_where_it_would_mislead(tmp_path: Path, losses: dict[str, Any]) -> None:
    write_arms(tmp_path, losses)
    assert np.isnan(one(gaps(load(tmp_path)), "delay_ef")["removed"])


@pytest.mark.parametrize(
    ("delay", "left", "says"),
    [
        ([1.4, 1.5, 1.3], [1.1, 1.2, 1.15], "too weak for a share"),
        ([1.4, 1.469, 1.331], [1.2, 1.21, 1.19], "2987%, 68%]"),
        ([1.4, 1.42, 1.38], [1.2, 1.21, 1.19], "50% [50%, 50%]"),
    ],
    ids=["no interval", "an interval of thousands of percents", "known"],
)
def test_the_share_of_a_gap_that_may_be_0_is_told_nowhere(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    delay: list[float | None],
    left: list[float | None],
    says: str,
) -> None:
    """The terminal, the page and its tables, `advise` and its JSON, the numbers of a claim."""
    write_arms(tmp_path, {"sync": [1.0] * 3, "delay": delay, "delay_ef": left})
    trials = load(tmp_path)
    table = gaps(trials)
    page = listed("", all_gaps(trials, table, ""), "", "")
    asked = {"stages": "4", "microbatches": "8", "results": str(tmp_path), "optimizer": "adamw"}
    advise.main({**asked, "format": "json"})
    advice = json.loads(capsys.readouterr().out)
    [as_json] = [gap for gap in advice["evidence"]["gaps"] if gap["coefficient"]]
    advise.main(asked)
    gap = one(table, "delay_ef")
    values = (np.array(losses, float) - 1.0 for losses in (left, delay))
    texts = [
        gap_table(table),
        "\n".join(cell.words for row in page.rows for cell in row),
        str(share("share", *values)),
        capsys.readouterr().out,
    ]
    assert all(says in text for text in texts[:2]), texts
    is_known = says != "too weak for a share"
    assert [re.search(r"\d%", text) is not None for text in texts[:2]] == [is_known] * 2, texts
    assert (says in texts[2], "removes 50%" in texts[3]) == (not is_known, is_known)
    for number in (as_json["removed"], *as_json["removed_interval"]):
        assert (number is not None) == is_known
    assert gap["removed_n"] == 3


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


def test_nothing_to_compare_gives_an_empty_table(tmp_path: Path) -> None:
    assert list(gaps(load(tmp_path))) == list(GAP)
    write_arms(tmp_path, {"sync": [1.0]})
    assert gaps(load(tmp_path)).empty


def test_a_row_without_a_pair_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.0, 1.1])
    put(tmp_path, "delay", [1.2, 1.3])
    put(tmp_path, "delay_ef", [1.2], momentum=0.9)  # no sync with this momentum
    table = gaps(load(tmp_path))
    assert (table["pairs"] > 0).sum() == 1 < len(table)
    rows = gap_table(table).strip().splitlines()[2:]
    assert len(rows) == 1
    assert "+0.2000" in rows[0]


def test_only_what_varies_has_a_column(tmp_path: Path) -> None:
    for momentum in (0.5, 0.9):
        put(tmp_path, "sync", [1.0], momentum=momentum)
        put(tmp_path, "delay", [1.2], momentum=momentum)
    header = gap_table(gaps(load(tmp_path))).strip().splitlines()[0]
    assert "setting" in header
    assert "stages" not in header
    assert "microbatches" not in header


def test_a_point_at_which_no_gap_was_asked_for_has_no_row(tmp_path: Path) -> None:
    """Longer delayed runs have no sync of their length; one that is still running was asked for."""
    write_arms(tmp_path, {"sync": [1.0, 1.0], "delay": [1.2, 1.2], "delay_ef": [1.1, 1.1]})
    put(tmp_path, "delay_ef", [1.0, 1.0], num_updates=550)
    assert gaps(load(tmp_path))[["arm", "n"]].to_numpy().tolist() == [["delay", 2], ["delay_ef", 2]]
    write(tmp_path, config("sync") | {"num_updates": 550}, None)
    longer = gaps(load(tmp_path)).iloc[2:]
    assert longer[["arm", "n"]].to_numpy().tolist() == [["delay", 0], ["delay_ef", 0]]
    put(tmp_path, "delay", [1.2], optimizer="muon")  # whose sync was forgotten
    assert one(gaps(load(tmp_path)), "delay", "muon")["missing_sync_seeds"] == "0"


@given(st.lists(st.text("ab|<>&\\\n`", max_size=8), min_size=1, max_size=3))
def test_a_row_of_markdown_has_as_many_cells_whatever_they_hold(cells: list[str]) -> None:
    """A bar in a name ends no cell, a line break no row, and no name is raw HTML."""
    row = markdown_row(cells)
    assert "\n" not in row
    assert "<" not in row
    assert row.count("|") == len(cells) + 1


# Which trials make a pair: those of one seed, point, corpus and code; depths are never mixed.


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer_version", 2),
        ("git", "abc-dirty"),
        ("device_name", "NVIDIA H200"),
        ("versions", {"torch": "2.11.0"}),
    ],
)
def test_a_pair_of_two_codes_or_machines_warns(tmp_path: Path, key: str, value: object) -> None:
    add(tmp_path, "sync", 1.0)
    add(tmp_path, "delay", 1.2, **{key: value})
    with pytest.warns(UserWarning, match=f"1 of 1 pairs mix {key}"):
        table = gaps(load(tmp_path))
    assert one(table, "delay")["gap"] == pytest.approx(0.2)


def test_the_pair_of_one_machine_is_preferred_to_the_newest_trials(tmp_path: Path) -> None:
    """Seed by seed: no kind of device ran every trial of seed 0, but one ran those of seed 1."""
    for arm, device, seed, loss in (
        ("sync", "NVIDIA A100", 0, 1.0),
        ("delay", "NVIDIA A100", 0, 1.1),
        ("sync", "NVIDIA A100", 1, 2.0),
        ("sync", "NVIDIA H100", 1, 3.0),
        ("delay", "NVIDIA H100", 1, 3.3),
    ):
        finished = 1e9 + (device == "NVIDIA A100")  # the newest sync trial has no partner
        add(tmp_path, arm, loss, seed=seed, device_name=device, finished_at=finished)
    row = one(gaps(load(tmp_path)), "delay")  # a warning would be an error
    assert (row["n"], row["loss_sync"]) == (2, pytest.approx(2.0))
    assert row["gap"] == pytest.approx(0.2)


def test_a_recorded_loop_of_more_ranks_is_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"model": "mine", "data": "ours", "optimizer": "sgd", "seed": 0, "batch_size": 1}
    words |= {"seq_len": 32, "num_updates": 3}
    for delay in (0, 1):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = DelayedOptimizer(torch.optim.SGD([weight], lr=0.1), delay, 0.0)
        with recorded_loop(tmp_path, optimizer, words) as run:
            for _ in range(3):
                weight.grad = torch.ones(2)
                optimizer.step()
                run.update(1.0, 1.0)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with pytest.warns(UserWarning, match=r"1 of 1 pairs mix device_name \(8 × cpu and cpu, for"):
        gaps(load(tmp_path))


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
            put(tmp_path, arm, [None if rate > 0.003 else 1.0], lr=rate)
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


# A point outside of the paper's regime says so in every table, and in words.

BOTH = f"{SHORT}, {INACTIVE}"


@pytest.mark.parametrize(
    ("updates", "momentum", "lr", "decay", "expected"),
    [
        (1000, 0.9, 0.002, 1.0, ""),  # 0.002 · 1 · 550 = 1.1
        (999, 0.9, 0.002, 1.0, SHORT),
        (1000, 0.9, 0.001, 1.0, INACTIVE),
        (400, 0.9, 0.004, 0.1, BOTH),  # the scale few_updates
        (1600, 0.95, 0.002, 1.0, SHORT),  # Muon at the scale tiny: 2,000 are needed
        (2000, 0.95, 0.002, 1.0, ""),
        (2000, 0.95, 0.002, 0.0, INACTIVE),
        (11_725, 0.95, 0.001, 0.1, INACTIVE),  # 0.64
        (20_000, None, 0.002, 0.1, ""),
    ],
)
def test_each_rule_by_hand(
    updates: int, momentum: float | None, lr: float, decay: float, expected: str
) -> None:
    keys = {"optimizer.momentum": momentum, "optimizer.lr": lr, "optimizer.weight_decay": decay}
    trials = pd.DataFrame([{"point": "a", "num_updates": updates, **keys}])
    assert regimes(trials) == {"a": expected}


USUAL = {"optimizer.momentum": 0.9, "optimizer.lr": 0.01, "optimizer.weight_decay": 1.0}


@pytest.mark.parametrize(
    ("updates", "keys"),
    [([7, 1000], USUAL), ([None], USUAL), ([10], {})],
    ids=["a run that diverged early", "a length that is not known yet", "keys of no optimizer"],
)
def test_what_breaks_no_rule(updates: list[int | None], keys: dict[str, float]) -> None:
    rows = [{"point": "a", "num_updates": num, **keys} for num in updates]
    trials = pd.DataFrame(rows).astype({"num_updates": "Int64", "point": "string"})
    assert regimes(trials) == {"a": ""}


def test_the_gap_of_such_a_point_and_the_remarks_say_so(tmp_path: Path) -> None:
    """Of momenta 0.5 and 0.9 in 400 updates, the second is short; neither has a decay."""
    for momentum in (0.5, 0.9):
        for arm, loss in (("sync", 1.7), ("delay", 2.0)):
            put(tmp_path, arm, [loss, loss], momentum=momentum)
    trials = load(tmp_path)
    table = gaps(trials)
    assert dict(zip(table["setting"], table["regime"], strict=True)) == {
        "optimizer.momentum=0.5": "",
        "optimizer.momentum=0.9": SHORT,
    }
    [remark] = [line for line in notes(trials, table) if "regime" in line]
    assert SHORT in remark
    assert remark.endswith("adamw (optimizer.momentum=0.9)")


# What a plan says of its seeds: against simulated experiments, and a search by hand.

NUM_EXPERIMENTS = 40_000


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_the_detectable_gap_is_detected_four_times_in_five(n: int) -> None:
    """By scipy's own t-test of simulated gaps: the binomial error of the share is 0.002."""
    sd = 0.03
    gaps = np.random.default_rng(n).normal(detectable_gap(sd, n), sd, (NUM_EXPERIMENTS, n))
    detected = stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.05
    assert detected.mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 1, 3, 20])
def test_so_many_seeds_reach_a_precision_and_one_less_does_not(ratio: float) -> None:
    n = seeds_needed(ratio, 1.0)

    def reaches(n: int) -> bool:
        low, high = stats.t.interval(0.95, n - 1, scale=ratio / math.sqrt(n))
        return bool((high - low) / 2 <= 1)

    assert n >= 2
    assert reaches(n)
    assert n == 2 or not reaches(n - 1)


def test_the_spread_of_an_optimizer_is_pooled_over_its_arms(tmp_path: Path) -> None:
    """AdamW's gaps 0.1, 0.3 of one arm and 0.2, 0.2, 0.5 of another: squares 0.02 and 0.06, of 1
    and 2 degrees of freedom.

    What diverged is no pair; an optimizer with one pair an arm, or two of one arm, has no spread.
    """
    synthetic_store.write_arms(
        tmp_path, {"sync": [2.0] * 3, "delay": [2.1, 2.3, None], "delay_ef": [2.2, 2.2, 2.5]}
    )
    synthetic_store.write_arms(
        tmp_path, {"sync": [3.0, 3.0], "delay": [3.2, None]}, optimizer="muon"
    )
    synthetic_store.write_arms(
        tmp_path, {"sync": [3.0, 3.0], "delay": [3.2, 3.3]}, optimizer="soap"
    )
    everything = [folder.name for folder in (tmp_path / "trials").iterdir()]
    [(optimizer, spread)] = spreads(tmp_path, everything).items()
    assert optimizer == "adamw"
    assert spread.sd == pytest.approx(math.sqrt((0.02 + 0.06) / 3))
    assert spread.num_pairs == 5
    assert spreads(tmp_path, everything[:1]) == {}
    assert spreads(tmp_path, []) == {}


def test_three_pairs_of_one_arm_are_enough_for_a_spread(tmp_path: Path) -> None:
    synthetic_store.write_arms(tmp_path, {"sync": [2.0] * 3, "delay": [2.1, 2.2, 2.3]})
    everything = [folder.name for folder in (tmp_path / "trials").iterdir()]
    [spread] = spreads(tmp_path, everything).values()
    assert spread.sd == pytest.approx(0.1)
