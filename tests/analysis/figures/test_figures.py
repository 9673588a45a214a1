"""The data of the figures: what was swept is the axis, and no seed is lost."""

import json
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME, FIGURES, plot
from pipegap.analysis.figures.figure import FEWEST
from pipegap.analysis.report.paper_tables import TABLES
from tests.support.synthetic_store import config, late, put, result, write, write_arms


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
        "gap_lines",
        "gap_by_coefficient",
        "gap_by_delay",
        "update_cosine",
        "update_error",
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
