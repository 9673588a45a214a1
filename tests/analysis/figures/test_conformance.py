"""Every registered figure: whatever the store holds, nothing is lost, hidden or a traceback."""

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
from pipegap.analysis.figures.colors import NIGHT, ON_COLOR, PAPER, READABLE, contrast, on_dark
from pipegap.analysis.figures.figure import Spec, whole
from pipegap.analysis.figures.style import CONFIG, LETTERS
from pipegap.analysis.table.metrics import training_losses
from pipegap.trainer.base.errors import BadInput
from tests.support.swept_store import ANSWERED, SWEEPS, write_sweep

ANY_TRIALS = ("momentum", "coefficient", "staleness", "horizon", ANSWERED)
"""Sweeps one of which has what a figure of any trials shows."""
VEGA_LITE = Draft7Validator(alt.load_schema())
KINDS = ("final_losses", "gap_by_coefficient", "fig13_batch_size", "fig20_spike")
"""Figures that are drawn in ways of their own."""
pytestmark = pytest.mark.filterwarnings("ignore:.*pairs mix:UserWarning")


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
