"""Of many seeds a picture has a part, evenly spaced; of means it has all, and it says so."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME, plot
from pipegap.analysis.figures.figure import FEWEST, MOST_POINTS, OVER_TRAINING, thin, whole
from pipegap.analysis.figures.lines import MOST_VALUES
from tests.support.synthetic_store import put

Rows = list[dict[str, Any]]


def test_many_points_are_thinned_evenly_and_counted_and_means_stay() -> None:
    seeds: Rows = [{"trial_id": x, "x": x} for x in range(20_000)]
    means: Rows = [{"x": x} for x in range(5_000)]
    specs = [{"datasets": {"seeds": seeds, "means": means}}]
    assert [*thin(specs)] == ["3,000 of 20,000 points of seeds: the CSV has all"]
    kept = [row["x"] for row in specs[0]["datasets"]["seeds"]]
    assert (len(kept), kept[0], kept[-1]) == (MOST_POINTS, 0, 19_999)
    steps = {after - before for before, after in pairwise(kept)}
    assert max(steps) - min(steps) <= 1
    assert specs[0]["datasets"]["means"] == means
    few = [{"datasets": {"seeds": seeds[:MOST_POINTS], "nothing": []}}]
    assert [*thin(few)] == []
    assert few[0]["datasets"]["seeds"] == seeds[:MOST_POINTS]


def test_a_thinned_curve_has_its_ends_and_points_enough_or_is_left_out() -> None:
    curves: Rows = [
        {"trial_id": i, "series": "sync", OVER_TRAINING: t} for i in range(1000) for t in range(100)
    ]
    specs = [{"datasets": {"seeds": curves}}]
    assert len([*thin(specs)]) == 1
    shown = specs[0]["datasets"]["seeds"]
    trials = {row["trial_id"] for row in shown}
    assert {0, 999} <= trials
    assert 0.9 * MOST_POINTS < len(shown) == FEWEST * len(trials) <= MOST_POINTS
    for trial in (0, 999):
        kept = [row[OVER_TRAINING] for row in shown if row["trial_id"] == trial]
        assert (kept[0], kept[-1], len(kept)) == (0, 99, FEWEST)


def test_a_grid_of_many_values_is_bands_and_not_a_row_for_each(tmp_path: Path) -> None:
    for step in range(MOST_VALUES + 1):
        rate = 0.001 * 1.1**step
        put(tmp_path, "sync", [2.0, 2.1, 2.05], lr=rate)
        put(tmp_path, "delay", [2.2 + step / 100, None if step == 3 else 2.25, 2.3], lr=rate)
    put(tmp_path, "sync", [2.0, 2.9], lr=0.01)  # whose interval is from -3.3 to 8.2
    trials, figure = load(tmp_path), BY_NAME["fig07_learning_rate"]
    data = figure.data(trials, gaps(trials))
    drawn = plot(figure, data)
    spec = whole(drawn)
    assert drawn.figure.caption[0].startswith("lines: means over n seeds; bands: 95 % intervals")
    rows = [row for of_layer in spec["datasets"].values() for row in of_layer]
    assert not [row for row in rows if "trial_id" in row]
    means = {float(f"{mean:.6g}") for mean in data["mean"].dropna()}
    assert means <= {value for row in rows for value in row.values()}
    assert {row["words"] for row in rows if "words" in row} == {"×"}
    for panel in spec["concat"]:
        [low, high] = next(
            layer["encoding"]["y"]["scale"]["domain"]
            for layer in panel["layer"]
            if "scale" in layer["encoding"].get("y", {})
        )
        assert -2 < low < high < 4, "the widest interval is cut off"
    few = trials[trials["optimizer.lr"] < 0.0015]
    assert {"group", "of_seed"} <= {*figure.data(few, gaps(few))}
