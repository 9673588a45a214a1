"""Every registered figure: whatever the store holds, nothing is lost, hidden or a traceback."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import pandas as pd
import pytest
from jsonschema import Draft7Validator
from scipy import stats

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME, FIGURES, Figure, Plot, panels, plot, save
from pipegap.analysis.figures.figure import Spec, whole
from pipegap.analysis.figures.style import (
    CONFIG,
    LETTERS,
    NIGHT,
    ON_COLOR,
    PAPER,
    READABLE,
    contrast,
    on_dark,
)
from pipegap.analysis.figures.taxes import ROW_HEIGHT
from pipegap.analysis.report.paper_tables import TABLES
from pipegap.analysis.report.report import report
from pipegap.analysis.statistics.tax import ESTIMATED, REPORTED, reported_taxes
from pipegap.analysis.table.metrics import training_losses
from pipegap.trainer.base.errors import BadInput
from tests.support.pages import as_svg, with_figures
from tests.support.synthetic_store import ANSWERED, SWEEPS, ids, put, record, write_sweep

pytestmark = pytest.mark.filterwarnings("ignore:.*pairs mix:UserWarning")

ANY_TRIALS = ("momentum", "coefficient", "staleness", "horizon", ANSWERED)
"""Sweeps one of which has what a figure of any trials shows."""
VEGA_LITE = Draft7Validator(alt.load_schema())
KINDS = ("final_losses", "gap_by_coefficient", "fig13_batch_size", "fig20_spike")
"""Figures that are drawn in ways of their own."""


Table = tuple[pd.DataFrame, pd.DataFrame]
"""Trials and their gaps."""


class Drawn(NamedTuple):
    plot: Plot
    spec: Spec


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


@pytest.fixture(scope="module")
def shown(swept: Callable[..., Table]) -> Callable[[str], Table]:
    """The data of a figure of its whole sweep, and the trials of that, made once for all tests."""
    return cache(lambda name: of_sweep(BY_NAME[name], swept))


@pytest.fixture(scope="module")
def drawn(shown: Callable[[str], Table]) -> Callable[[str], Drawn]:
    """That figure, drawn once for all tests: altair is slow."""

    @cache
    def of(name: str) -> Drawn:
        made = plot(BY_NAME[name], shown(name)[0])
        return Drawn(made, whole(made))

    return of


def of_sweep(figure: Figure, swept: Callable[..., Table], **changes: Any) -> Table:
    """Return the data of a figure's last sweep, or of the first sweep that it shows, and its
    trials."""
    data = trials = pd.DataFrame()
    for sweep in figure.sweeps[-1:] or ANY_TRIALS:
        trials, of_gaps = swept(sweep, **changes)
        data = figure.data(trials.copy(), of_gaps.copy())
        if not data.empty:
            break
    return data, trials


def layers(spec: Spec) -> Iterator[dict[str, Any]]:
    for part in spec.get("concat", [spec]):
        for layer in part.get("layer", [part]):
            yield {"data": part.get("data"), **layer}


def axes(spec: Spec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Channel, axis and layer of each axis with a domain."""
    for layer in layers(spec):
        for channel in ("x", "y"):
            axis = layer["encoding"].get(channel, {})
            if "domain" in (axis.get("scale") or {}):
                yield channel, axis, layer


def rows(spec: Spec, layer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["datasets"][layer["data"]["name"]]
    return found


def short(value: object) -> object:
    """A number as a specification rounds it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


each = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)


def test_a_figure_has_a_name_of_its_own_and_one_of_a_sweep_has_a_source() -> None:
    assert len(BY_NAME) == len(FIGURES)
    assert all(figure.source for figure in FIGURES if figure.sweeps)


def test_a_figure_of_any_sweep_gets_its_store_or_hears_which_sweep_is_missing(
    swept: Callable[..., Table],
) -> None:
    """Of a sweep that no figure has yet, the store holds the trials for which its file asks."""
    figure, sweep = BY_NAME["final_losses"]._replace(sweeps=("families",)), "families"
    assert sweep not in {*SWEEPS}
    data, trials = of_sweep(figure, swept, num_points=2)
    assert {*data["trial_id"].dropna()} <= {*trials["trial_id"]}
    assert {*trials["arm"]} == {"sync", "delay", "delay_ef"}
    assert {*trials["model"]} == {"tiny", "micro_moe"}
    with pytest.raises(BadInput, match="sweep=nowhere: must be one of "):
        of_sweep(figure._replace(sweeps=("nowhere",)), swept)


def test_nothing_to_show_is_no_figure(tmp_path: Path) -> None:
    trials = load(tmp_path)
    assert [f.name for f in FIGURES if not f.data(trials, gaps(trials)).empty] == []


def unlike(figures: Iterable[Figure]) -> list[Figure]:
    """One of those that the same functions make, for whatever key."""
    made = {(*_made_by(figure.data), *_made_by(figure.charts)): figure for figure in figures}
    return [*made.values()]


def _made_by(function: Any) -> tuple[object, ...]:
    return getattr(function, "func", function), *getattr(function, "keywords", ())


@pytest.mark.parametrize("figure", unlike(FIGURES), ids=lambda figure: figure.name)
@pytest.mark.parametrize(
    "changes", [{"arms": ("sync",)}, {"diverged": "delay", "num_points": 1}, {"diverged": "sync"}]
)
def test_a_store_that_lacks_something_is_drawn_or_left_out(
    figure: Figure, changes: dict[str, Any], swept: Callable[..., Table]
) -> None:
    """A single seed has no interval either."""
    data, _ = of_sweep(figure, swept, optimizers=("adamw",), seeds=1, **changes)
    assert data.empty or plot(figure, data).specs


@each
def test_every_row_is_in_the_picture_and_no_axis_hides_a_value(
    figure: Figure, drawn: Callable[[str], Drawn]
) -> None:
    (_, data, _), spec = drawn(figure.name)
    assert not data.empty
    in_picture = [row for of_layer in spec["datasets"].values() for row in of_layer]
    for column in ["trial_id"] if "trial_id" in data else ["mean", "low", "high"]:
        values = {short(row[column]) for row in in_picture if column in row}
        assert {short(value) for value in data[column].dropna()} <= values
    for _, axis, layer in axes(spec):
        low, high = axis["scale"]["domain"]
        values = {row[axis["field"]] for row in rows(spec, layer)} - {None}
        assert all(low <= value <= high for value in values)


@each
def test_its_panels_are_vega_lite(figure: Figure, drawn: Callable[[str], Drawn]) -> None:
    """Altair validates nothing when a report draws: it would take as long as drawing. The last
    panel stands for those that the same function draws, after the first of another kind."""
    for spec in {len(spec["layer"]): spec for spec in drawn(figure.name).plot.specs}.values():
        VEGA_LITE.validate({**spec, "datasets": {}})  # whose rows may have any columns


@each
def test_panels_have_one_axis_for_one_quantity(
    figure: Figure, drawn: Callable[[str], Drawn]
) -> None:
    """Then they can be compared. What was swept may have other values in each panel."""
    domains: dict[str, set[str]] = {}
    for channel, axis, _ in axes(drawn(figure.name).spec):
        title = str(axis.get("title"))
        if channel == "y" or "nats" in title:
            domains.setdefault(channel + title, set()).add(str(axis["scale"]["domain"]))
    assert all(len(found) == 1 for found in domains.values())


SHOWN = dict(
    line.split(" | ", 1)
    for line in (Path(__file__).parent / "shown.txt").read_text().splitlines()[1:]
)
"""Figure → its panels, series, groups or values, and the titles of its axes x and y."""


@each
def test_it_has_its_panels_arms_and_axes(figure: Figure, drawn: Callable[[str], Drawn]) -> None:
    data, [spec, *_] = drawn(figure.name).plot[1:]

    def told(column: str) -> str:
        return "; ".join(dict.fromkeys(map(str, data[column]))) if column in data else ""

    def title(channel: str) -> str:
        titles = [layer["encoding"].get(channel, {}).get("title") for layer in spec["layer"]]
        words = next(filter(None, titles), "")
        return words if isinstance(words, str) else " ".join(words)

    found = told("panel"), told("series"), told("group") or told("value"), title("x"), title("y")
    assert {*SHOWN} <= {*BY_NAME}, "a figure that was shown is gone"
    if figure.name in SHOWN:  # one that is added has a file of its own, and no line there
        assert " | ".join(found) == SHOWN[figure.name]


def by_hand(data: pd.DataFrame, trials: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Of each row the loss of its trial, at its update if it has one, and its gap to sync's."""
    point = ["point", "pipeline.num_stages", "seed"]
    of_trial = trials.set_index("trial_id")
    partner = trials[trials["arm"] == "sync"].set_index(point)["trial_id"].to_dict()
    ids = (
        data["trial_id"],
        [partner[key] for key in of_trial.loc[data["trial_id"], point].itertuples(index=False)],
    )
    if "update" in data:  # each point of a curve is one of a run's 100 updates
        curve = of_trial["folder"].map(lambda folder: training_losses(folder)["train_loss"])
        own, sync = (
            pd.Series([curve[name][t] for name, t in zip(names, data["update"], strict=True)])
            for names in ids
        )
    else:
        own, sync = (of_trial.loc[names, "final_val_loss"].reset_index(drop=True) for names in ids)
    return own, own - sync


PLACES = ["panel", "subtitle", "quantity", "group", "series", "key", "value", "update"]
"""What a mean is of, if a figure has the column."""


@each
def test_numbers_are_those_of_the_trials_their_pairs_and_students_t(
    figure: Figure, shown: Callable[[str], Table]
) -> None:
    """Of all that show losses and gaps of trials."""
    data, trials = shown(figure.name)
    if "trial_id" not in data or not {"of_seed", "gap"} & {*data}:
        return
    data = data.reset_index(drop=True)
    loss, gap = by_hand(data, trials)
    is_gap = data["quantity"] == "gap" if "quantity" in data else data["gap"].notna()
    expected = gap.where(is_gap, loss)
    found = data["of_seed"] if "of_seed" in data else data["gap"]
    for name in {"loss", "train_loss"} & {*data}:
        found = found.fillna(data[name])
    assert found.tolist() == pytest.approx(expected.tolist())
    with_mean = data["mean"].notna()
    places = [data.loc[with_mean, name] for name in PLACES if name in data]
    groups = expected[with_mean].groupby([*places, is_gap[with_mean]], dropna=False)
    mean, half = groups.transform("mean"), groups.transform("sem") * stats.t.ppf(0.975, 1)
    for name, end in (("mean", mean), ("low", mean - half), ("high", mean + half)):
        assert data.loc[with_mean, name].tolist() == pytest.approx(end.tolist(), abs=1e-9)
    assert {*groups.size()} == {*data.loc[with_mean, "n"]} == {2}
    assert with_mean[is_gap].all()


@each
def test_it_is_told_in_words_and_by_the_names_of_people(
    figure: Figure, drawn: Callable[[str], Drawn]
) -> None:
    (_, data, _), spec = drawn(figure.name)
    words = str(spec["description"])
    assert figure.title in words
    said = words + " ".join(map(str, data.get("panel", [])))
    assert not [name for name in ("adamw", "muon", "delay_ef", "optimizer.lr") if name in said]


@each
def test_its_words_can_be_read_on_paper_and_at_night(
    figure: Figure, drawn: Callable[[str], Drawn]
) -> None:
    """No word has the colour of a series, which may be a pale one."""
    for layer in layers(drawn(figure.name).spec):
        if (mark := layer["mark"])["type"] == "text":
            assert "color" not in layer["encoding"]
            assert mark.get("fontSize", CONFIG["text"]["fontSize"]) >= LETTERS
            color = mark.get("color", CONFIG["text"]["color"])
            assert contrast(color, PAPER) >= READABLE
            assert color == ON_COLOR or contrast(on_dark(color), NIGHT) >= READABLE


@pytest.mark.parametrize("name", KINDS)
def test_a_page_has_a_panel_each_of_its_own_width(name: str, drawn: Callable[[str], Drawn]) -> None:
    made, spec = drawn(name)
    specs = panels(made)
    assert len(specs) == len(spec["concat"])
    assert all(one["width"] == "container" for one in specs)
    assert all(one["description"] == spec["description"] for one in specs)


def files(folder: Path, name: str) -> dict[str, bytes]:
    return {path.suffix: path.read_bytes() for path in folder.glob(f"{name}.*")}


@pytest.mark.parametrize(
    "name", [KINDS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS[1:])]
)
def test_the_same_data_give_the_same_few_bytes(
    name: str, swept: Callable[..., Table], tmp_path: Path
) -> None:
    figure = BY_NAME[name]
    data, _ = of_sweep(figure, swept, optimizers=("adamw",), seeds=2)
    for out in ("a", "b"):
        (tmp_path / out).mkdir()
        save(plot(figure, data), tmp_path / out)
    first, second = (files(tmp_path / out, figure.name) for out in ("a", "b"))
    assert first.keys() == {".svg", ".png", ".pdf", ".csv"}
    assert {**first, ".pdf": b""} == {**second, ".pdf": b""}, "its objects may be in another order"
    assert b"NaN" not in first[".svg"]
    assert b"undefined" not in first[".svg"]
    assert len(first[".svg"]) < 80_000, "it is small, though it brings its font along"


# What the figures of the token tax show, and how others' numbers were converted.


@pytest.fixture(scope="module")
def of_taxes_alone() -> Iterator[None]:
    """Reports have these figures alone."""
    with with_figures(("token_tax", "break_even"), as_svg):
        yield


def store(path: Path) -> None:
    """Sync falls by 0.3 nats with each doubling, and a delayed run needs twice the updates."""
    for length, level in ((200, 2.3), (400, 2.0), (800, 1.7)):
        losses = [level, level + 0.01, level - 0.01]
        put(path, "sync", losses, num_updates=length)
        put(path, "delay", [loss + 0.3 for loss in losses], num_updates=length)


def data(path: Path, name: str) -> pd.DataFrame:
    trials = load(path)
    return BY_NAME[name].data(trials, gaps(trials))


@pytest.mark.usefixtures("of_taxes_alone")
def test_ours_stand_before_the_others(tmp_path: Path) -> None:
    store(tmp_path)
    shown = data(tmp_path, "token_tax")
    assert shown["who"].iloc[0] == "these trials"
    assert shown["mean"].iloc[1:].is_monotonic_increasing
    [own] = shown[shown["who"] == "these trials"].to_dict("records")
    assert (own["mean"], own["n"], own["tax_from"]) == (pytest.approx(2), 3, "slope")
    assert len(shown) == 1 + len(reported_taxes())
    drawn = str(whole(plot(BY_NAME["token_tax"], shown)))
    assert "Muon, PipeDream (marin, 130M MoE, T = 15,000)" in drawn
    assert "'words': '1.16'" in drawn
    assert "reported by others" in drawn


@pytest.mark.usefixtures("of_taxes_alone")
def test_no_line_goes_through_a_name(tmp_path: Path) -> None:
    """What marks the tax 1 are pieces, lower than the row of which the name takes a half."""
    store(tmp_path)
    [chart] = BY_NAME["token_tax"].charts(data(tmp_path, "token_tax"))
    layers = chart.to_dict()["layer"]
    at_one = [layer for layer in layers if layer["encoding"]["x"].get("datum") == 1]
    assert [layer["mark"]["size"] for layer in at_one] == [ROW_HEIGHT / 2]
    rules = [layer for layer in layers if layer["mark"]["type"] == "rule"]
    assert all("low" in str(layer["encoding"]["x"]) for layer in rules)


@pytest.mark.usefixtures("of_taxes_alone")
def test_the_break_even_is_what_the_simulator_says(tmp_path: Path) -> None:
    """Equal stages: 1F1B takes m + p − 1 where 2BW takes m."""
    store(tmp_path)
    shown = data(tmp_path, "break_even")
    speeds = shown[shown["kind"] == "speed-up"]
    assert len(speeds) > 10
    for row in speeds.to_dict("records"):
        m, p = row["microbatches"], row["stages"]
        assert row["mean"] == pytest.approx((m + p - 1) / m)
    assert shown.loc[shown["kind"] == "tax", "mean"].tolist() == pytest.approx([2])


@pytest.mark.usefixtures("of_taxes_alone")
def test_numbers_of_others_are_converted_as_they_say() -> None:
    table = reported_taxes().set_index(["who", "optimizer", "arm"])
    muon = table.loc[("paper, 360M", "muon", "delay")]
    assert (muon["tax"], muon["tax_from"]) == (pytest.approx(math.exp(0.012 / 0.2)), ESTIMATED)
    marin = table.loc[("marin, 130M MoE, T = 15,000", "muon", "pipedream")]
    assert (marin["tax"], marin["tax_from"]) == (1.16, REPORTED)
    assert table[["source", "converted"]].notna().all(axis=None)


@pytest.mark.usefixtures("of_taxes_alone")
def test_the_report_begins_with_the_tax_of_all_sweeps_of_a_scale(tmp_path: Path) -> None:
    """No sweep of these has runs of several lengths by itself."""
    store(tmp_path / "store")
    names = ids(tmp_path / "store")
    for sweep, own in (("main", names[:6]), ("momentum", names[6:])):
        record(tmp_path / "store", sweep, "tiny", own, compared=own)
    text = report(tmp_path / "store", tmp_path / "out")
    line = "token tax, tiny: AdamW delay 2.00 [2.00, 2.00] (slope)"
    assert "2.00 [2.00, 2.00] (slope)" in text
    page = (tmp_path / "out" / "index.html").read_text()
    assert line in page[page.index('id="verdict-list"') : page.index('id="trials"')]
    table = pd.read_csv(tmp_path / "out" / "tiny" / "token_taxes.csv")
    assert {*table["tax_from"].dropna()} == {"lengths", "slope", REPORTED, ESTIMATED}
    assert (tmp_path / "out" / "tiny" / "break_even.svg").exists()


@pytest.mark.usefixtures("of_taxes_alone")
def test_longer_runs_that_a_sweep_asks_for_tell_its_tax_and_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main job asks for such runs; the report of its sweep compares the other runs alone."""
    advised_by: list[set[str]] = []
    monkeypatch.setattr(
        "pipegap.analysis.report.answer.advices",
        lambda trials, **_: [*filter(None, [advised_by.append({*trials["trial_id"]})])],
    )
    store(tmp_path / "store")
    names = ids(tmp_path / "store")
    record(tmp_path / "store", "main", "tiny", names, compared=names[:6])
    text = report(tmp_path / "store", tmp_path / "out", "main-tiny")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "token tax, main-tiny: AdamW delay 2.00 [2.00, 2.00] (slope)" in page
    assert "Nothing is missing of what was asked for." in text
    assert advised_by == [{*names}], "the advice rests on them too"
    drawn = pd.read_csv(tmp_path / "out" / "token_tax.csv")
    assert [*drawn.loc[drawn["who"] == "these trials", "mean"]] == [pytest.approx(2)]
    table = pd.read_csv(tmp_path / "out" / "token_taxes.csv")
    assert [*table["tax"]][:1] == [pytest.approx(2)]


@pytest.mark.usefixtures("of_taxes_alone")
def test_taxes_of_one_seed_or_of_few_updates_are_counted_and_not_listed(tmp_path: Path) -> None:
    store(tmp_path)
    for length, level in ((200, 2.3), (400, 2.0)):
        put(tmp_path, "sync", [level], num_updates=length, optimizer="muon")
        put(tmp_path, "delay", [level + 0.3], num_updates=length, optimizer="muon")
    for length, level in ((20, 2.3), (40, 2.0)):
        put(tmp_path, "sync", [level, level + 0.01], num_updates=length, optimizer="soap")
        put(tmp_path, "delay", [level + 0.3] * 2, num_updates=length, optimizer="soap")
    [taxes] = [table for table in TABLES if table.name == "token_taxes"]
    trials = load(tmp_path)
    ours = taxes.data(trials, gaps(trials), "tiny").query("who == 'these trials'")
    assert {*ours["optimizer"].dropna()} == {"adamw"}
    assert ours["tax_why"].iloc[-1].startswith("4 more have one seed or fewer than 100 updates")
