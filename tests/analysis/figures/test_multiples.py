"""Many series are many panels on one scale: five curves in one picture at most, and none lost."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME, plot
from pipegap.analysis.figures import figure as figure_module
from pipegap.analysis.figures.figure import MOST_PANELS, Spec, whole
from pipegap.analysis.figures.files import picture
from pipegap.analysis.figures.multiples import MOST_CURVES
from pipegap.analysis.table.names import optimizer as optimizer_name
from tests.support.synthetic_store import config, put, result, write

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


def by_size(store: Path) -> None:
    for width in (48, 96, 144):
        for rate, arm in product((0.002, 0.004), ("sync", "delay", "delay_ef")):
            settings = config(arm)
            settings["model"]["hidden_size"] = width
            settings["optimizer"]["lr"] = rate
            write(store, settings, result(settings, 1.0 + width * rate, num_parameters=width**2))


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
SIZES = ("2.3k", "9.22k", "20.7k")


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
            "fig16_model_size",
            by_size,
            [
                {f"{size} {arm}" for arm in arms}
                for size in SIZES
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
