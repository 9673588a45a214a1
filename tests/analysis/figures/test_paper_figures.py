"""The data of the paper's figures, each against a naive computation, and what rows and maps say."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import FIGURES
from pipegap.analysis.figures.figure import plot, whole
from pipegap.analysis.table.metrics import training_losses
from tests.support.swept_store import write_sweep
from tests.support.synthetic_store import put

BY_NAME = {figure.name.partition("_")[0]: figure for figure in FIGURES}


def data(name: str, store: Path) -> pd.DataFrame:
    trials = load(store)
    return BY_NAME[name].data(trials, gaps(trials))


def of_sweep(name: str, store: Path) -> pd.DataFrame:
    write_sweep(store, BY_NAME[name].sweeps[-1])
    return data(name, store)


def rows(name: str, table: pd.DataFrame) -> list[dict[str, Any]]:
    """All that is in the specification."""
    datasets = whole(plot(BY_NAME[name], table))["datasets"].values()
    return [row for dataset in datasets for row in dataset]


def test_a_loss_far_from_the_others_stays_on_the_axis_which_says_what_it_is(tmp_path: Path) -> None:
    for rate, loss in ((0.001, 2.1), (0.002, 2.1), (0.004, 2.1), (0.008, 2.1), (0.016, 12.5)):
        put(tmp_path, "sync", [2.0, 2.02], lr=rate)
        put(tmp_path, "delay", [loss, loss], lr=rate)
    spec = whole(plot(BY_NAME["fig07"], data("fig07", tmp_path)))
    [gap, loss] = [part["layer"][-2]["encoding"]["x"] for part in spec["concat"]]
    assert gap["scale"]["type"] == "symlog"
    assert gap["scale"]["domain"][1] > 10
    assert (loss["scale"]["type"], loss["title"][1]) == ("log", "logarithmic")
    assert loss["scale"]["domain"][1] > 12.5


def test_a_row_says_how_many_diverged(tmp_path: Path) -> None:
    for rate in (0.002, 0.004):
        put(tmp_path, "sync", [2.0, 2.0, None], lr=rate)
        put(tmp_path, "delay", [2.1, None, 2.1], lr=rate)
    words = {row["words"] for row in rows("fig07", data("fig07", tmp_path)) if "words" in row}
    of_losses = {"2.000  n=2  × 1 of 3", "2.100  n=2  × 1 of 3"}
    assert words == {"+0.100  n=1  × 1 of 2"} | of_losses


def test_training_losses_are_means_over_parts_of_the_run(tmp_path: Path) -> None:
    table = of_sweep("fig19", tmp_path)
    trial = table["trial_id"].iloc[0]
    assert len(table[table["trial_id"] == trial]) == 100
    trials = load(tmp_path).assign(num_updates_asked=250)
    coarse = BY_NAME["fig19"].data(trials, gaps(trials))
    shown = coarse[coarse["trial_id"] == trial].set_index("update")["train_loss"]
    own = training_losses(trials.set_index("trial_id")["folder"][trial])["train_loss"]
    assert shown.to_dict() == pytest.approx(
        {2 * k + 1: own[2 * k : 2 * k + 2].mean() for k in range(50)}
    )


def test_cells_are_means_and_the_best_is_framed(tmp_path: Path) -> None:
    for size in (8, 16):
        for rate in (0.002, 0.004):
            put(tmp_path, "sync", [1 + rate, 1.2 + rate], batch_size=size, lr=rate)
            lost = None if rate == 0.004 and size == 16 else 1.5
            put(tmp_path, "delay", [1.3 + size / 100, lost], batch_size=size, lr=rate)
    table = data("fig13", tmp_path)
    maps, keys = ["arm", "quantity"], ["batch_size", "optimizer.lr"]
    cells = table.set_index([*maps, *keys])
    assert table[maps].drop_duplicates().to_numpy().tolist() == [
        ["sync", "loss"],
        ["delay", "loss"],
        ["delay", "gap"],
    ]
    assert cells.loc[("sync", "loss", 8, 0.002), "mean"] == pytest.approx(1.102)
    assert cells.loc[("delay", "gap", 8, 0.004), "mean"] == pytest.approx((0.376 + 0.296) / 2)
    one_lost = cells.loc[("delay", "loss", 16, 0.004)]
    assert one_lost[["n", "diverged", "pairs"]].tolist() == [1, 1, 2]
    best = table[table["best"]].set_index(maps)[keys]
    assert best.loc[("sync", "loss")].tolist() == [8, 0.002]
    assert best.loc[("delay", "loss"), "batch_size"] == 8, "the lowest mean where none diverged"
    assert len(best) == 2
    assert "1.460\n× 1/2" in {row.get("words") for row in rows("fig13", table)}


def test_staleness_counts_updates_from_the_switch(tmp_path: Path) -> None:
    table = of_sweep("fig17", tmp_path)
    assert (table["from_switch"] == table["update"] - 10).all()
    assert set(table["series"]) == {"delay, sync start 10 %", "delay + EF, sync start 10 %"}
    late = table.loc[table["update"] >= 10, "update_cosine"]
    assert (late == 0.5).all()
    assert "AdamW, at the switch" in str(whole(plot(BY_NAME["fig17"], table)))


def test_the_spike_is_the_running_mean_around_the_switch(tmp_path: Path) -> None:
    table = of_sweep("fig20", tmp_path)
    assert sorted(table["optimizer.variance_decay"].unique()) == [0.9, 0.99]
    one = table[table["trial_id"] == table["trial_id"].iloc[0]].set_index("update")
    assert one.index.min() == 5
    assert one.index.max() == 25
    expected = one.loc[11:20, "train_loss"].mean()
    assert one.loc[20, "running_mean"] == pytest.approx(expected)
    assert (table["n"] == 2).all()
