"""The data of the figures: what was swept is the axis, and no seed is lost."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME, FIGURES, plot
from pipegap.analysis.figures import figure as figure_module
from pipegap.analysis.figures.figure import FEWEST, MOST_PANELS, Spec, picture, whole
from pipegap.analysis.figures.panels import MOST_CURVES
from pipegap.analysis.report.paper_tables import TABLES
from pipegap.analysis.table.metrics import training_losses
from pipegap.analysis.table.names import optimizer as optimizer_name
from tests.support.synthetic_store import config, late, put, result, write, write_arms, write_sweep


def shown(store: Path, name: str) -> pd.DataFrame:
    trials = load(store)
    return BY_NAME[name].data(trials, gaps(trials))


def means(data: pd.DataFrame) -> dict[tuple[str, float], float]:
    rows = data.drop_duplicates(["series", "value"])
    return dict(zip(zip(rows["series"], rows["value"], strict=True), rows["mean"], strict=True))


def test_what_diverged_is_counted_and_what_sync_lost_is_left_out(tmp_path: Path) -> None:
    for momentum, losses in ((0.8, [None, 1.4, None]), (0.9, [1.1, 1.1, 1.1])):
        put(tmp_path, "sync", [1.0, 1.0, None], momentum=momentum)
        put(tmp_path, "delay", losses, momentum=momentum)
    rows = shown(tmp_path, "gap_lines").drop_duplicates("value").set_index("value")
    assert rows.loc[0.8, ["n", "mean", "diverged", "pairs"]].tolist() == [
        1,
        pytest.approx(0.4),
        1,
        2,
    ]
    assert rows.loc[0.9, ["n", "diverged", "pairs"]].tolist() == [2, 0, 2]


def test_a_second_swept_key_makes_panels_of_its_own(tmp_path: Path) -> None:
    for momentum in (0.8, 0.9):
        for rate in (0.002, 0.004):
            put(tmp_path, "sync", [1.0], momentum=momentum, lr=rate)
            put(tmp_path, "delay", [1.0 + momentum + rate], momentum=momentum, lr=rate)
    data = shown(tmp_path, "gap_lines")
    assert set(data["panel"]) == {"AdamW"}
    assert set(data["subtitle"]) == {
        "momentum 0.8",
        "momentum 0.9",
        "learning rate 0.002",
        "learning rate 0.004",
    }
    one = data[data["subtitle"] == "learning rate 0.004"]
    assert means(one) == {("delay", m): pytest.approx(m + 0.004) for m in (0.8, 0.9)}


def test_a_key_that_moves_along_is_named_and_splits_nothing(tmp_path: Path) -> None:
    """The number of updates moves with the batch size, or a tuned learning rate does."""
    for size, updates, rate in ((8, 800, 0.002), (16, 400, 0.004), (32, 200, 0.004)):
        for arm, loss in (("sync", 1.0), ("delay", 1.1)):
            put(tmp_path, arm, [loss], batch_size=size, num_updates=updates, lr=rate)
    data = shown(tmp_path, "gap_lines")
    by_size = data[data["key"] == "batch_size"]
    assert set(by_size["subtitle"]) == {"with learning rate moving along"}
    assert by_size["value"].tolist() == [8, 16, 32]


def test_no_swept_number_no_figure(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0], "delay": [1.2], "delay_ef": [1.1]})
    write_arms(tmp_path, {"sync": [1.0], "delay": [1.1]}, optimizer="muon")
    for name in (
        *("gap_lines", "gap_by_coefficient", "gap_by_delay", "update_cosine", "update_error"),
    ):
        assert shown(tmp_path, name).empty
    put(tmp_path, "sync", [1.0], lr=0.002)  # a second point without a pair
    assert shown(tmp_path, "gap_lines").empty


def test_coefficients_are_a_line_of_each_lag_beside_the_plain_delay(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.0, 1.0])
    put(tmp_path, "delay", [1.4, 1.6])
    for value in (0.5, 1.0):
        put(tmp_path, "delay_ef", [1.1 + value, None], correction={"coefficient": value})
        put(tmp_path, "delay_ef", [1.3] * 2, correction={"coefficient": value, "lag": "delay"})
    data = shown(tmp_path, "gap_by_coefficient")
    plain = data[data["value"].isna()]
    assert (plain["series"].unique().tolist(), plain["mean"].iloc[0]) == (["delay"], 0.5)
    assert means(data.dropna(subset="value")) == {
        **{("delay + EF", value): pytest.approx(0.1 + value) for value in (0.5, 1.0)},
        **{("delay + EF (lag τ)", value): pytest.approx(0.3) for value in (0.5, 1.0)},
    }
    assert set(data.loc[data["series"] == "delay + EF", "diverged"]) == {1}


def test_delays_of_all_stages_are_the_axis(tmp_path: Path) -> None:
    """PipeDream's stages are not all equally late, Error Feedback has one delay, and of a running
    trial nothing is counted."""
    put(tmp_path, "sync", [1.0, 1.0])
    put(tmp_path, "delay", [1.1, 1.3])
    put(tmp_path, "delay_ef", [1.05, 1.05])
    late(tmp_path, 2, [1.4, None])
    for delay in (3, 4):
        of_first = config(seed=0)
        own = {"_target_": "pipegap.trainer.schedules.pipedream", "num_stages": delay + 1}
        of_first["pipeline"] |= own
        write(tmp_path, of_first, result(of_first, 1.5, delays=[delay, 0]))
    write(tmp_path, config(seed=7), None)
    data = shown(tmp_path, "gap_by_delay")
    expected = {("delay of τ", 1.0): pytest.approx(0.2), ("delay of τ", 2.0): pytest.approx(0.4)}
    assert means(data) == expected
    assert data.groupby("value")["diverged"].first().tolist() == [0, 1]


def test_diagnostics_are_shown_where_they_were_measured(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0], "delay": [1.2, 1.3]})
    folder = tmp_path / "trials" / "0001"  # delay, seed 0
    of_model = {"update_cosine": 0.5, "update_error": None, "gradient_change": 0.0}
    measured = {"all": of_model, "matrix": {}, "routing": {"changed_share": 0.25}}
    rows = [
        {"update": 9, "train_loss": 2.0, "diagnostics": measured},
        {"update": 10, "train_loss": 2.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = shown(tmp_path, "update_cosine")
    assert data[["series", "seed", "tokens", "update_cosine"]].to_numpy().tolist() == [
        ["delay", 0, 10 * 16 * 128, 0.5]
    ]
    assert shown(tmp_path, "update_error")["update_error"].isna().all()
    assert shown(tmp_path, "gradient_change").empty, "nothing changed it"
    assert shown(tmp_path, "changed_share")["changed_share"].tolist() == [0.25]


def test_no_table_has_the_name_of_a_figure() -> None:
    """Both write NAME.csv to one folder."""
    assert not {figure.name for figure in FIGURES} & {table.name for table in TABLES}


def test_a_panel_per_size_says_how_long_its_trials_are() -> None:
    main = Path(__file__).parents[3] / "findings" / "main"
    trials = pd.concat([load(main / f"trials_{scale}.csv") for scale in ("tiny", "few_updates")])
    data = BY_NAME["final_losses"].data(trials, gaps(trials))
    assert {*data["panel"]} == {"109k parameters, 1,600 updates", "419k parameters, 400 updates"}
    longer = trials["batch_size"].eq(2) & trials["seed"].eq(0)
    trials.loc[longer, "num_updates_asked"] = 3200
    data = BY_NAME["final_losses"].data(trials, gaps(trials))
    assert {*data["panel"]} == {"109k parameters", "419k parameters, 400 updates"}


@pytest.mark.parametrize(
    ("gaps_of", "symlog"),
    [
        ({"adamw": 0.034, "muon": 0.014, "soap": 0.007}, False),
        ({"adamw": 0.034, "muon": 0.014, "soap": 0.0001}, False),  # the smallest may be noise
        ({"adamw": 0.5, "muon": 0.003, "soap": 0.004}, True),
    ],
)
def test_the_axis_of_gaps_is_linear_from_0_within_two_decades(
    gaps_of: dict[str, float], symlog: bool, tmp_path: Path
) -> None:
    for optimizer, gap in gaps_of.items():
        write_arms(tmp_path, {"sync": [1.0], "delay": [1.0 + gap]}, optimizer=optimizer)
    [spec, _] = plot(BY_NAME["final_losses"], shown(tmp_path, "final_losses")).specs
    scales = [layer["encoding"]["x"].get("scale") for layer in spec["layer"]]
    axis = next(scale for scale in scales if scale)
    assert (axis.get("type") == "symlog") == symlog
    low, high = axis["domain"]
    assert low <= 0 < max(gaps_of.values()) <= high


@pytest.mark.parametrize("optimizer", ["muon", "muon_of_a_long_name_of_ones_own"])
def test_a_long_name_stands_above_its_row_and_leaves_the_panel_its_width(
    optimizer: str, tmp_path: Path
) -> None:
    for name in ("adamw", optimizer):
        write_arms(tmp_path, {"sync": [1.0], "delay": [1.1]}, optimizer=name)
    [spec, _] = plot(BY_NAME["final_losses"], shown(tmp_path, "final_losses")).specs
    is_long = optimizer != "muon"
    lines = [layer["encoding"]["yOffset"]["sort"] for layer in spec["layer"][1:]]
    assert {*map(tuple, lines)} == {("", "delay") if is_long else ("delay",)}
    assert spec["layer"][-1]["encoding"]["y"]["axis"]["labels"] == (not is_long)
    data = spec["datasets"][spec["layer"][-1]["data"]["name"]]
    assert len(data) == 2
    assert ({row["series"] for row in data} == {""}) == is_long


@pytest.mark.parametrize("evaluations", [4, 20])
def test_curves_have_points_enough_whatever_was_evaluated(evaluations: int, tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.1], "delay": [1.2, 1.3]})
    for path in (tmp_path / "trials").glob("*/metrics.jsonl"):
        rows = [{"update": t, "train_loss": 5.0 - t / 100} for t in range(400)]
        for row in rows[:: 400 // evaluations]:
            row["val_loss"] = row["train_loss"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = shown(tmp_path, "validation_curves")
    assert (data["trial_id"].value_counts() >= FEWEST).all()
    [spec, *_] = plot(BY_NAME["validation_curves"], data).specs
    said = str(spec["layer"][0]["encoding"]["y"]["title"])
    assert ("means of 1 %" in said) == ("train_loss" in data) == (evaluations < FEWEST)
    if "train_loss" in data:
        means = data[data["trial_id"] == "0000"].set_index("update")["train_loss"]
        assert means.loc[3] == pytest.approx(5.0 - 1.5 / 100), "of updates 0 to 3"


# Many series are many panels on one scale: five curves in one picture at most, and none lost.

OPTIMIZERS = ("adamw", "muon", "soap", "adan", "mars", "normuon", "lion", "nadamw")
COEFFICIENTS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.25, 1.5, 2.0)


def by_momentum(store: Path) -> None:
    for number, optimizer in enumerate(OPTIMIZERS):
        for momentum in (0.8, 0.9, 0.95)[number % 2 :]:
            put(store, "sync", [1.0, 1.1], optimizer=optimizer, momentum=momentum)
            put(store, "delay", [1.0 + number / 10, 1.3], optimizer=optimizer, momentum=momentum)


def by_coefficient(store: Path) -> None:
    put(store, "sync", [1.0, 1.1])
    put(store, "delay", [1.2, 1.4])
    for value in COEFFICIENTS:
        put(store, "delay_ef", [1.1 + value, 1.2], correction={"coefficient": value})


def by_tokens(store: Path) -> None:
    for updates in (50, 100, 200):
        for rate, arm in product((0.002, 0.004), ("sync", "delay", "delay_ef")):
            settings = config(arm)
            settings["num_updates"] = updates
            settings["optimizer"]["lr"] = rate
            write(store, settings, result(settings, 1.0 + updates * rate, tokens=updates * 2048))


def at_lengths(store: Path) -> None:
    """Of which a token tax is known."""
    for updates in (200, 400, 800):
        for arm, loss in (("sync", 1.0), ("delay", 1.2), ("delay_ef", 1.1)):
            put(store, arm, [loss + 100 / updates, loss + 101 / updates], num_updates=updates)


def panels(spec: Spec) -> Iterator[tuple[frozenset[str], str, str]]:
    """Of each panel its series, and what its axes x and y show, with their domains."""
    for panel in spec["concat"]:
        encodings = [layer["encoding"] for layer in panel["layer"]]
        series: set[str] = set()
        axes = {"x": "", "y": ""}
        for encoding in encodings:
            series |= {*encoding.get("color", {}).get("scale", {}).get("domain", [])}
            for channel in axes:
                axis = encoding.get(channel, {})
                if domain := (axis.get("scale") or {}).get("domain"):
                    axes[channel] = f"{axis.get('title')} {domain}"
        yield frozenset(series), axes["x"], axes["y"]


OWN = [optimizer_name(name) for name in OPTIMIZERS]
"""By their losses, as `by_momentum` writes them."""
PIPELINES = {f"p = {stages}" for stages in (2, 4, 8, 16)}
TOKENS = ("102k", "205k", "410k")


@pytest.mark.parametrize(
    ("name", "write_store", "expected", "num_axes"),
    [
        ("fig04_momentum", by_momentum, [{name} for name in OWN], 1),
        (
            "validation_curves",
            by_coefficient,
            [
                {f"delay + EF (λ = {value:g})", "delay"} | sync
                for sync in ({"sync"}, set())
                for value in COEFFICIENTS
            ],
            2,
        ),
        (
            "fig16b_moe_learning_rate",
            by_tokens,
            [
                {f"{tokens} tokens {arm}" for arm in arms}
                for tokens in TOKENS
                for arms in (("sync", "delay", "delay + EF"), ("delay", "delay + EF"))
            ],
            2,
        ),
        ("break_even", at_lengths, [PIPELINES | {"AdamW, delay + EF"}], 1),
    ],
)
def test_each_series_has_a_panel_of_its_own_beside_what_it_is_compared_with(
    name: str,
    write_store: Callable[[Path], None],
    expected: list[set[str]],
    num_axes: int,
    tmp_path: Path,
) -> None:
    """Each panel of the loss has one of the gap, and what is alike has one axis."""
    write_store(tmp_path)
    trials = load(tmp_path)
    figure = BY_NAME[name]
    data = figure.data(trials, gaps(trials))
    spec = whole(plot(figure, data))
    shown = [*panels(spec)]
    assert [series for series, *_ in shown] == expected
    assert len({x for _, x, _ in shown}) == 1
    assert len({y for *_, y in shown}) == num_axes
    if "update" in data:  # a curve's means are of the seeds that are drawn
        return
    told = {value for rows in spec["datasets"].values() for row in rows for value in row.values()}
    assert {float(f"{mean:.6g}") for mean in data["mean"].dropna()} <= told


def test_few_series_stay_in_one_panel(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.0, 1.1])
    for value in COEFFICIENTS[: MOST_CURVES - 1]:
        put(tmp_path, "delay_ef", [1.1, 1.2], correction={"coefficient": value})
    trials, figure = load(tmp_path), BY_NAME["validation_curves"]
    spec = whole(plot(figure, figure.data(trials, gaps(trials))))
    assert [len(series) for series, *_ in panels(spec)] == [MOST_CURVES, MOST_CURVES - 1]


def test_many_panels_are_small_and_few_enough_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_module, "MOST_SMALL", most := MOST_PANELS + 1)
    names = [f"optimizer{number:02d}" for number in range(most + 1)]
    for optimizer, momentum in product(names, (0.8, 0.9)):
        put(tmp_path, "sync", [1.0, 1.1], optimizer=optimizer, momentum=momentum)
        put(tmp_path, "delay", [1.0 + momentum, 2.0], optimizer=optimizer, momentum=momentum)
    trials, figure = load(tmp_path), BY_NAME["fig04_momentum"]
    table = gaps(trials)
    drawn = plot(figure, figure.data(trials, table))
    said = f"the first {most} of {len(names)} panels: the CSV has all"
    assert {said, "axes: momentum; gap to sync (nats per token)", "n=2"} <= {*drawn.figure.caption}
    assert [panel["title"]["text"] for panel in drawn.specs] == [
        name.title() for name in names[:most]
    ]
    layers = json.dumps([panel["layer"] for panel in drawn.specs])
    assert '"legend": {' not in layers, "its title says which it is"
    width = re.search(r'width="(\d+)', picture(whole(drawn)))
    assert width is not None
    assert int(width[1]) < 1_400
    some = trials[trials["optimizer"].isin(names[:MOST_PANELS])]
    usual = plot(figure, figure.data(some, gaps(some)))
    assert usual.figure == figure
    assert "width" not in usual.specs[0]


# The data of the paper's figures, each against a naive computation, and what rows and maps say.

BY_NAME_OF_PAPER_FIGURES = {figure.name.partition("_")[0]: figure for figure in FIGURES}


def data(name: str, store: Path) -> pd.DataFrame:
    trials = load(store)
    return BY_NAME_OF_PAPER_FIGURES[name].data(trials, gaps(trials))


def of_sweep(name: str, store: Path) -> pd.DataFrame:
    write_sweep(store, BY_NAME_OF_PAPER_FIGURES[name].sweeps[-1])
    return data(name, store)


def rows(name: str, table: pd.DataFrame) -> list[dict[str, Any]]:
    """All that is in the specification."""
    datasets = whole(plot(BY_NAME_OF_PAPER_FIGURES[name], table))["datasets"].values()
    return [row for dataset in datasets for row in dataset]


def test_a_loss_far_from_the_others_stays_on_the_axis_which_says_what_it_is(tmp_path: Path) -> None:
    for rate, loss in ((0.001, 2.1), (0.002, 2.1), (0.004, 2.1), (0.008, 2.1), (0.016, 12.5)):
        put(tmp_path, "sync", [2.0, 2.02], lr=rate)
        put(tmp_path, "delay", [loss, loss], lr=rate)
    spec = whole(plot(BY_NAME_OF_PAPER_FIGURES["fig07"], data("fig07", tmp_path)))
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
    coarse = BY_NAME_OF_PAPER_FIGURES["fig19"].data(trials, gaps(trials))
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
    assert "AdamW, at the switch" in str(whole(plot(BY_NAME_OF_PAPER_FIGURES["fig17"], table)))


def test_the_spike_is_the_running_mean_around_the_switch(tmp_path: Path) -> None:
    table = of_sweep("fig20", tmp_path)
    assert sorted(table["optimizer.variance_decay"].unique()) == [0.9, 0.99]
    one = table[table["trial_id"] == table["trial_id"].iloc[0]].set_index("update")
    assert one.index.min() == 5
    assert one.index.max() == 25
    expected = one.loc[11:20, "train_loss"].mean()
    assert one.loc[20, "running_mean"] == pytest.approx(expected)
    assert (table["n"] == 2).all()
