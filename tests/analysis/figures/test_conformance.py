"""Every registered figure: whatever the store holds, nothing is lost, hidden or a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import gaps, load
from analysis.figures import MODULES, Figure, Rows, panels, registered, save
from analysis.figures.figure import whole
from tests.support.swept_store import SWEEPS, write_sweep

FIGURES = registered((*MODULES, "tests.support.gap_intervals"))
"""Those of the report and one of intervals."""
ANY_TRIALS = ("momentum", "coefficient", "staleness", "horizon")
"""Sweeps one of which has what a figure of any trials shows."""
BY_NAME = {figure.name: figure for figure in FIGURES}
ONE_OF_A_KIND = (
    *("final_losses", "gap_by_coefficient", "fig07_learning_rate", "fig13_batch_size"),
    *("fig16_model_size", "fig17_update_cosine", "fig20_spike", "token_tax", "break_even"),
)
pytestmark = pytest.mark.filterwarnings("ignore:.*pairs mix:UserWarning")


Table = tuple[pd.DataFrame, pd.DataFrame]
"""Trials and their gaps."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Table]:
    """The table of a sweep, whose store is written and read once for all figures."""

    @cache
    def table(sweep: str, **changes: Any) -> Table:
        store = tmp_path_factory.mktemp(sweep)
        write_sweep(store, sweep, **changes)
        trials = load(store)
        return trials, gaps(trials)

    return table


def shown(figure: Figure, swept: Callable[..., Table], **changes: Any) -> pd.DataFrame:
    """What it shows of the last of its sweeps, or of the first that it shows anything of."""
    data = pd.DataFrame()
    for sweep in figure.sweeps[-1:] or ANY_TRIALS:
        trials, of_gaps = swept(sweep, **changes)
        data = figure.data(trials.copy(), of_gaps.copy())
        if not data.empty:
            break
    return data


def layers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in spec.get("concat", [spec]):
        for layer in part.get("layer", [part]):
            yield {"data": part.get("data"), **layer}


def rows(spec: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["datasets"][layer["data"]["name"]]
    return found


KEPT = {Rows.SEEDS: ["trial_id"], Rows.INTERVALS: ["mean", "low", "high"]}
"""Columns of a figure's data whose every value must be in the picture."""


def short(value: object) -> object:
    """A number as a specification rounds it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
    figure: Figure, changes: dict[str, Any], swept: Callable[..., Table]
) -> None:
    data = shown(figure, swept, optimizers=("adamw",), **changes)
    if not data.empty:
        assert whole(figure, data)["datasets"]


@each
def test_every_row_is_in_the_picture_and_no_axis_hides_a_value(
    figure: Figure, swept: Callable[..., Table]
) -> None:
    data = shown(figure, swept)
    spec = whole(figure, data)
    assert not data.empty
    assert {*figure.rows.columns} <= {*data}
    drawn = [row for of_layer in spec["datasets"].values() for row in of_layer]
    for column in KEPT[figure.rows]:
        values = {short(row[column]) for row in drawn if column in row}
        assert {short(value) for value in data[column].dropna()} <= values
    for layer in layers(spec):
        axis = layer["encoding"].get("y", {})
        if "domain" in (axis.get("scale") or {}):
            low, high = axis["scale"]["domain"]
            values = [row[axis["field"]] for row in rows(spec, layer)]
            assert all(low <= value <= high for value in values if value is not None)


@each
def test_a_page_has_a_panel_each_of_its_own_width_with_one_y_axis(
    figure: Figure, swept: Callable[..., Table]
) -> None:
    """A single seed has no interval, and is shown."""
    data = shown(figure, swept, seeds=1)
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
def test_the_same_data_give_the_same_bytes(
    name: str, swept: Callable[..., Table], tmp_path: Path
) -> None:
    figure = BY_NAME[name]
    data = shown(figure, swept, optimizers=("adamw",), seeds=2)
    for out in ("a", "b"):
        (tmp_path / out).mkdir()
        save(figure, data, tmp_path / out)
    first, second = (files(tmp_path / out, figure.name) for out in ("a", "b"))
    assert first.keys() == {".svg", ".png", ".csv"}
    assert first == second
    assert b"NaN" not in first[".svg"]
    assert b"undefined" not in first[".svg"]
