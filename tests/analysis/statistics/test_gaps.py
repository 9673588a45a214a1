"""Every gap is a mean over pairs with its interval; it counts what it leaves out.

Its table in words has the rows with a pair, and the columns that tell them apart.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipegap.analysis import gaps, load
from pipegap.analysis.claims.measure import share
from pipegap.analysis.commands import advise
from pipegap.analysis.report.page.listing import listed
from pipegap.analysis.report.table_data import all_gaps
from pipegap.analysis.statistics.text import gap_table
from pipegap.analysis.table.schema import GAP
from pipegap.analysis.table.text import markdown_row
from tests.support.paired import one
from tests.support.synthetic_store import config, put, write, write_arms

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
        "gap may be zero",
        "gap is weak",
        "one seed",
        "correction diverged",
        "plain diverged",
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
