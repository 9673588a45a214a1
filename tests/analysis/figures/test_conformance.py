"""Every registered figure: whatever the store holds, nothing is lost, hidden or a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from swept_store import SWEEPS, write_sweep

from analysis import gaps, load
from analysis.figures import FIGURES, Figure, panels, save
from analysis.figures.figure import whole

GENERAL = {"gap_by_coefficient": "coefficient", "update_cosine": "staleness"}
GENERAL |= {"update_error": "staleness", "gradient_change": "staleness"}
BY_NAME = {figure.name: figure for figure in FIGURES}
ONE_OF_A_KIND = (
    *("final_losses", "gap_by_coefficient", "fig07_learning_rate", "fig13_batch_size"),
    *("fig16_model_size", "fig17_update_cosine", "fig20_spike"),
)
pytestmark = pytest.mark.filterwarnings("ignore:.*pairs mix:UserWarning")


def sweep_of(figure: Figure) -> str:
    return figure.sweeps[-1] if figure.sweeps else GENERAL.get(figure.name, "momentum")


def shown(figure: Figure, store: Path, **changes: Any) -> pd.DataFrame:
    write_sweep(store, sweep_of(figure), **changes)
    trials = load(store)
    return figure.data(trials, gaps(trials))


def layers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in spec.get("concat", [spec]):
        for layer in part.get("layer", [part]):
            yield {"data": part.get("data"), **layer}


def rows(spec: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["datasets"][layer["data"]["name"]]
    return found


each = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)


def test_names_and_sweeps_are_those_of_the_paper() -> None:
    assert len(BY_NAME) == len(FIGURES)
    named = {sweep for figure in FIGURES for sweep in figure.sweeps}
    assert named == set(SWEEPS)
    assert all(figure.source for figure in FIGURES if figure.sweeps)


@each
def test_nothing_to_show_is_no_figure(figure: Figure, tmp_path: Path) -> None:
    trials = load(tmp_path)
    assert figure.data(trials, gaps(trials)).empty


@each
@pytest.mark.parametrize(
    "changes",
    [{"arms": ("sync",)}, {"diverged": "delay"}, {"diverged": "sync"}, {"num_points": 1}],
)
def test_a_store_that_lacks_something_is_drawn_or_left_out(
    figure: Figure, changes: dict[str, Any], tmp_path: Path
) -> None:
    data = shown(figure, tmp_path, optimizers=("adamw",), **changes)
    if not data.empty:
        assert whole(figure, data)["datasets"]


@each
def test_every_seed_is_in_the_picture_and_no_axis_hides_a_value(
    figure: Figure, tmp_path: Path
) -> None:
    data = shown(figure, tmp_path)
    spec = whole(figure, data)
    assert not data.empty
    if "trial_id" in data:
        drawn = {row.get("trial_id") for of_layer in spec["datasets"].values() for row in of_layer}
        assert set(data["trial_id"]) <= drawn
    for layer in layers(spec):
        axis = layer["encoding"].get("y", {})
        if "domain" in (axis.get("scale") or {}):
            low, high = axis["scale"]["domain"]
            values = [row[axis["field"]] for row in rows(spec, layer)]
            assert all(low <= value <= high for value in values if value is not None)


@each
def test_a_page_has_a_panel_each_of_its_own_width_with_one_y_axis(
    figure: Figure, tmp_path: Path
) -> None:
    """A single seed has no interval, and is shown."""
    data = shown(figure, tmp_path, seeds=1)
    specs = panels(figure, data)
    assert specs
    assert all(spec["width"] == "container" for spec in specs)
    domains = {
        str(axis["scale"]["domain"])
        for spec in specs
        for layer in layers(spec)
        if "domain" in (axis := layer["encoding"].get("y", {})).get("scale", {})
    }
    assert len(domains) <= 1


def files(folder: Path, name: str) -> dict[str, bytes]:
    return {path.suffix: path.read_bytes() for path in folder.glob(f"{name}.*")}


@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_the_same_data_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    figure = BY_NAME[name]
    data = shown(figure, tmp_path / "store", optimizers=("adamw",), seeds=2)
    for out in ("a", "b"):
        (tmp_path / out).mkdir()
        save(figure, data, tmp_path / out)
    first, second = (files(tmp_path / out, figure.name) for out in ("a", "b"))
    assert first.keys() == {".svg", ".png", ".csv"}
    assert first == second
    assert b"NaN" not in first[".svg"]
    assert b"undefined" not in first[".svg"]
