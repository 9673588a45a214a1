"""The page says what the files say, of any store, and nothing of a store is taken for markup."""

import html
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.claims import CLAIMS
from pipegap.analysis.figures import BY_NAME, FIGURES, plot
from pipegap.analysis.figures.figure import FEWEST, MOST_POINTS, OVER_TRAINING, thin, whole
from pipegap.analysis.figures.lines import MOST_VALUES
from pipegap.analysis.figures.style import ARMS, ORDERED, arm_styles, optimizer_styles
from pipegap.analysis.report import report as report_module
from pipegap.analysis.report.contents import PAPER, places
from pipegap.analysis.report.paper_tables import TABLES
from pipegap.analysis.report.report import report
from pipegap.analysis.table.metrics import MOST
from pipegap.analysis.table.points import flatten
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.lease import leased
from tests.support.pages import VENDOR, Made, own, page, vendored
from tests.support.synthetic_store import (
    LOSSES,
    add,
    config,
    ids,
    put,
    record,
    write,
    write_arms,
)

TABLE = re.compile(
    r'<section class="table".*?href="([^"]+\.csv)"'
    r'.*?<script type="application/json">(.*?)</script>',
    re.DOTALL,
)


def tables(text: str) -> list[tuple[str, list[str], list[list[Any]]]]:
    """The CSV of each table of the page, the columns of it that are shown, and its rows' values."""
    shown = []
    for file, content in TABLE.findall(text):
        listing = json.loads(content)
        names = [name for head in listing["heads"] for name in head["names"]]
        cells = zip(*map(spread, listing["columns"]), strict=True)
        rows = [[value for cell in row for value in values(cell)] for row in cells]
        shown.append((file, names, rows))
    return shown


def spread(column: dict[str, Any]) -> list[Any]:
    """The cell of each row."""
    cells, at = column["cells"], column["at"]
    return cells if at is None else [cells[place] for place in at]


def values(cell: Any) -> list[Any]:
    return cell[1:] if isinstance(cell, list) else [cell]


@pytest.mark.usefixtures("few_figures")
def test_every_number_of_a_table_is_that_of_its_csv(recorded: Made) -> None:
    found, out = tables(recorded.text), recorded.out
    assert {"tiny/table1_2_losses.csv", "tiny/tableF_overhead.csv", "tiny/gaps_main.csv"} < {
        file for file, _, _ in found
    }
    for file, names, rows in found:
        if file in ("provenance.csv", "missing.csv"):  # the page shows other columns
            continue
        table = pd.read_csv(out / file)
        assert names == [*table]
        shown = [row for row in rows if row]
        assert len(shown) == len(table)
        for row, values in zip(shown, table.itertuples(index=False), strict=True):
            for told, value in zip(row, values, strict=True):
                same = told == value or (told is None and pd.isna(value))
                assert same or math.isclose(told, value, rel_tol=1e-12)


@pytest.mark.usefixtures("few_figures")
def test_the_numbers_of_the_losses_are_those_of_the_trials(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    record(store, "main", "360m", ids(store))
    page(store, tmp_path / "out")
    (row,) = pd.read_csv(tmp_path / "out" / "360m" / "table1_2_losses.csv").to_dict("records")
    for arm, losses in LOSSES.items():
        assert row[arm] == pytest.approx(sum(filter(None, losses)) / 3)
    assert row["delay gap"] == pytest.approx(0.5)
    assert (row["delay n"], row["delay diverged"]) == (3, 0)
    assert (row["paper sync"], row["paper delay"], row["paper delay_ef"]) == (2.612, 2.890, 2.640)


@pytest.mark.usefixtures("few_figures")
def test_the_papers_numbers_are_beside_ours_at_its_own_scale_alone(recorded: Made) -> None:
    assert "paper sync" not in recorded.text
    assert "the scale does not match" in recorded.text


@pytest.mark.usefixtures("few_figures")
def test_scales_are_never_mixed_and_a_sweep_of_ones_own_is_shown(scattered: Made) -> None:
    store, out, _ = scattered
    made = {"tiny": ids(store)[:2], "micro": ids(store)[2:4]}
    for scale, named in made.items():
        shown = pd.read_csv(out / scale / "fig03_curves.csv")
        assert set(shown["trial_id"].astype(str).str.zfill(4)) == set(named)
    own = pd.read_csv(out / "tiny" / "final_losses_mine.csv", dtype={"trial_id": str})
    assert set(own["trial_id"]) == set(ids(store)[4:6])
    rest = pd.read_csv(out / "final_losses.csv", dtype={"trial_id": str})
    assert rest["trial_id"].tolist() == [ids(store)[-1]]


@pytest.mark.usefixtures("few_figures")
def test_a_sweeps_own_report_is_of_its_trials(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    named = [name for name in ids(store) if name < "0006"]
    record(store, "main", "tiny", named)
    text = page(store, tmp_path / "out", "main-tiny")
    assert len(pd.read_csv(tmp_path / "out" / "trials.csv")) == 6
    assert {"final_losses.csv", "gaps.csv"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "main-tiny: chosen" in text
    without_claims = "No claim of the paper is about the sweeps here."
    assert without_claims not in text
    record(store, "mine", "tiny", named)
    assert without_claims in page(store, tmp_path / "out", "mine-tiny")
    with pytest.raises(BadInput, match=r"label=other.*main-tiny"):
        report(store, tmp_path / "out", "other")


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("arms", [(), ("delay",)])
def test_a_store_that_lacks_nearly_everything(arms: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "results"
    (store / "trials").mkdir(parents=True)
    for arm in arms:
        put(store, arm, [None])
        write(store, config(arm, seed=1), None)
    record(store, "main", "tiny", ["gone", *ids(store)])
    (store / "sweeps" / "broken.json").write_text('{"sweep":')
    text = page(store, tmp_path / "out")
    assert "not enough data" in text
    assert "broken.json" in text
    assert ("sync is missing" in text) == bool(arms)


@pytest.mark.usefixtures("few_figures")
def test_nothing_of_a_store_is_markup(tmp_path: Path) -> None:
    store, bad = tmp_path / "results", "</script><script>alert(1)</script>"
    write_arms(store, LOSSES)
    for path in (store / "trials").iterdir():
        settings = json.loads((path / "config.json").read_text())
        settings["optimizer"]["_target_"] = f"trainer.optimizers.{bad}"
        settings["pipeline"]["note"] = bad
        (path / "config.json").write_text(json.dumps(settings))
        told = json.loads((path / "result.json").read_text())
        told |= {"device_name": bad, "git": bad, "versions": {"torch": bad}}
        (path / "result.json").write_text(json.dumps(told))
    record(store, "main", "tiny", ids(store), verdict=bad, remarks=[bad], words=[bad])
    text = page(store, tmp_path / "out")
    assert "alert(1)" in text
    assert not re.search(r"<script>alert", text)
    assert own(text).count("</script>") == own(text).count("<script")
    for path in (tmp_path / "out" / "trials").iterdir():
        assert path.read_text().startswith("pipegap.trials({")


@pytest.mark.usefixtures("few_figures")
def test_the_page_needs_nothing_from_anywhere(recorded: Made) -> None:
    _, out, text = recorded
    elsewhere = r"(?<!schema\":\")https?://(?!www.w3.org/2000/svg)"
    assert not re.search(rf"<(script|iframe)[^>]*\ssrc=|{elsewhere}", own(text))
    links = re.findall(r"<link[^>]*>", text)
    assert links == ['<link rel="icon" href="data:,">']
    files = re.findall(r'(?:href|src)="([^"]+\.(?:svg|png|csv|tex))"', text)
    assert {Path(file).suffix for file in files} == {".svg", ".png", ".csv", ".tex"}
    for file in files:
        assert (out / file).exists(), file


@pytest.mark.usefixtures("few_figures")
def test_a_running_trial_is_shown_with_its_newest_update(tmp_path: Path) -> None:
    settings = config("delay", seed=2)
    folder = write(tmp_path / "results", settings, None)
    with leased(folder, lambda: "completed"):
        row = {"update": 4, "train_loss": 2.5, "tokens_per_second": 1234.5}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        report(tmp_path / "results", tmp_path / "out")
        text = (tmp_path / "out" / "index.html").read_text()
        assert "<td>5 of 400</td><td>2.5000</td><td>1,234</td>" in text
    report(tmp_path / "results", tmp_path / "out")
    assert "Running now" not in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.usefixtures("few_figures")
def test_provenance_names_what_made_each_trial(scattered: Made) -> None:
    store, out, _ = scattered
    made = pd.read_csv(out / "provenance.csv", dtype={"trial_id": str})
    assert made["trial_id"].tolist() == ids(store)
    assert set(made["git"]) == {"abc"}
    assert set(made["data_hash"]) == {"d" * 12}
    assert set(made["packages"]) == {"torch 2.13.0"}
    assert made["sweeps"].notna().tolist() == [True] * 6 + [False]
    losses = load(store)["final_val_loss"].tolist()
    assert made["final_val_loss"].tolist() == losses


@pytest.mark.usefixtures("few_figures")
def test_a_trial_opens_with_its_config_curves_and_log(recorded: Made) -> None:
    store, out, _ = recorded
    content = (out / "trials" / "00.js").read_text()
    common, trials = json.loads(f"[{content.partition('(')[2].rpartition(')')[0]}]")
    assert sorted(trials) == ids(store)
    for trial_id, trial in trials.items():
        asked = json.loads((store / "trials" / trial_id / "config.json").read_text())
        assert common | trial["config"] == dict(flatten(asked))
        rows = [
            json.loads(line)
            for line in (store / "trials" / trial_id / "metrics.jsonl").read_text().splitlines()
        ]
        training = dict(trial["curves"]["training"])
        assert training.items() <= {row["update"]: row["train_loss"] for row in rows}.items()
        assert (len(training), min(training), max(training)) == (MOST, 0, 399)
        validation = dict(trial["curves"]["validation"])
        assert validation == {r["update"]: r["val_loss"] for r in rows if "val_loss" in r}
    line = "attempt 1: 1970-01-01 00:00:00 UTC on h pid 7, completed 1970-01-01 00:01:00 UTC"
    assert trials["0001"]["log"] == [line]


@pytest.mark.usefixtures("few_figures")
def test_the_libraries_of_the_page_come_with_their_licence(recorded: Made) -> None:
    text = recorded.text
    licence = (VENDOR / "LICENSE.txt").read_text()
    assert licence.startswith("The MIT License")
    assert html.escape(licence, quote=False).replace('"', "&#34;") in text
    for library in vendored():
        assert library in text or library == licence


# `pipegap report` writes the same report from the same store, and never a traceback.

TABLES_OF_REPORT = ("trials", "gaps", "claims", "missing", "provenance", "makers")
LOSSES_OF_REPORT: dict[str, list[float | None]] = {
    "sync": [1.70, 1.69],
    "delay": [2.2, None],
    "delay_ef": [1.9, 1.95],
}


def shown(store: Path, *names: str) -> dict[str, pd.DataFrame]:
    """The data of the figures of any trials (or these) that show something of a store, by name."""
    trials = load(store)
    table = gaps(trials)
    figures = [figure for figure in FIGURES if figure.name in names or not (names or figure.sweeps)]
    data = {figure.name: figure.data(trials, table) for figure in figures}
    return {name: rows for name, rows in data.items() if not rows.empty}


def test_the_command_writes_every_file_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_arms(tmp_path / "results", LOSSES_OF_REPORT)
    assert main([f"results={tmp_path / 'results'}", f"out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    names = {path.name for path in (tmp_path / "out").iterdir()}
    drawn = shown(tmp_path / "results")
    assert drawn
    figures = {f"{name}.{form}" for name in drawn for form in ("svg", "png", "pdf", "csv")}
    tables = {f"{name}.csv" for name in TABLES_OF_REPORT}
    assert names == figures | tables | {"index.html", "gaps.md", "gaps.tex", "trials"}
    assert "| +0.5000 n=1" in said.out
    assert "| 1 of 2" in said.out
    assert str(tmp_path / "out") in said.out


@pytest.mark.usefixtures("without_figures")
def test_what_is_left_out_is_said_in_the_file_too(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, None], "delay": [1.2, 1.2]})
    settings = config("delay", seed=0)
    write(tmp_path, settings, {"status": "failed", "data_hash": "d" * 64})
    write_arms(tmp_path, {"sync": [1.0], "delay_ef": [1.2]}, optimizer="muon")
    report(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "gaps.md").read_text()
    for remark in (
        "1 of 7 failed: no reason is recorded (trial ",
        "1 seeds of adamw delay are left out: their sync trial diverged",
        "delay is missing: muon seeds 0",
        "delay_ef is missing: adamw seeds 0, 1",
    ):
        assert remark in text


@pytest.mark.usefixtures("without_figures")
def test_warnings_are_part_of_the_report(tmp_path: Path) -> None:
    for arm, commit in (("sync", "abc"), ("delay", "def")):
        add(tmp_path, arm, 1.0, git=commit)
    assert "warning: 1 of 1 pairs mix git (def and abc" in report(tmp_path, tmp_path / "out")


def test_a_file_in_the_way_is_bad_input(tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES_OF_REPORT)
    (tmp_path / "out").write_text("")
    with pytest.raises(BadInput, match="out="):
        report(tmp_path, tmp_path / "out")


def test_figures_show_every_seed_of_the_best_point(tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES_OF_REPORT)
    for arm, loss in (("sync", 1.8), ("delay", 1.9)):
        put(tmp_path, arm, [loss], lr=0.001)
    losses, curves = shown(tmp_path, "final_losses", "validation_curves").values()
    assert set(losses["group"]) == {"AdamW"}
    assert set(losses["setting"]) == {"learning rate 0.004: best sync of 2"}
    assert losses["quantity"].value_counts().to_dict() == {"loss": 6, "gap": 4}
    assert curves[curves["trial_id"] == "0000"]["tokens"].tolist() == [
        count * 4 * 16 * 128 for count in range(1, 101)
    ]
    assert curves[curves["status"] == "diverged"]["update"].tolist() == [3], "a part of 4 updates"


def test_arms_and_optimizers_keep_their_looks() -> None:
    found = arm_styles(of_series("pipedream", "delay", "delay_ef(0.5)"))
    assert found["delay"] == ARMS["delay"]
    assert found["pipedream"] != found["delay_ef(0.5)"]
    few = arm_styles(of_series(*(f"delay_ef({value})" for value in range(10))))
    assert len({style.color for style in few.values()}) == 10
    many = arm_styles(of_series(*(f"delay_ef({value})" for value in range(20))))
    assert len({(style.color, style.dash) for style in many.values()}) == 20
    looks = optimizer_styles(of_series("soap", "muon", "x"))
    colors = {name: style.color for name, style in looks.items()}
    assert colors["muon"] == optimizer_styles(of_series("muon"))["muon"].color
    assert len(set(colors.values())) == 3


def of_series(*names: str) -> pd.DataFrame:
    return pd.DataFrame({"series": names, "arm": names, "optimizer": names})


@pytest.mark.usefixtures("without_figures")
def test_many_sweeps_end_in_a_few_lines_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have the rest."""
    for name, most in {"MOST_LINES": 4, "MANY": 20}.items():
        monkeypatch.setattr(report_module, name, most)
    store = tmp_path / "results"
    names = [f"optimizer{number}" for number in range(5)]
    for name in names:
        write_arms(store, {"sync": [1.0, 1.1], "delay": [1.1, 1.3]}, optimizer=name)
    for sweep in ("main", "optimizers", "momentum"):
        record(store, sweep, "tiny", ids(store), remarks=["chosen", "also"])
    text = report(store, tmp_path / "out").split("nothing is decided yet")[0]
    assert len(text.splitlines()) <= 10
    assert "5 gaps: " in text
    told = (tmp_path / "out" / "gaps.md").read_text()
    assert told.count(": chosen") == 3
    assert told.count("| delay") == len(names)
    monkeypatch.setattr(report_module, "MOST_GAPS", 3)
    monkeypatch.setattr(report_module, "MANY", 1_000)  # in this process
    report(store, tmp_path / "out")
    told = (tmp_path / "out" / "gaps.md").read_text()
    assert told.count("| delay") == 3
    assert "2 more rows: gaps.csv" in told


def test_series_that_differ_in_a_number_have_its_order_and_its_colours() -> None:
    values = [10, 2, 0.25, 0.5]
    series = ["sync", *(f"delay + EF, λ = {value}" for value in values), "PACI"]
    looks = arm_styles(pd.DataFrame({"series": series, "arm": ["sync", *["x"] * 5]}))
    ramp = [name for name in looks if "λ" in name]
    assert ramp == [f"delay + EF, λ = {value}" for value in sorted(values)]
    places = [ORDERED.index(looks[name].color) for name in ramp]
    assert places == sorted({*places})
    assert looks["PACI"].color not in ORDERED


# The gallery: every figure and table of the paper in its order, also those that are not drawn.


@pytest.mark.usefixtures("few_figures")
def test_a_page_of_many_sweeps_opens_with_the_papers_figures_and_tables(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    for sweep in ("optimizers", "main"):
        record(store, sweep, "tiny", ids(store))
    text = page(store, tmp_path / "out")
    galleries = [part.split("</ul>")[0] for part in text.split('<ul class="gallery">')[1:]]
    shown = [re.findall(r"<li>(.*?)</li>", gallery, re.DOTALL) for gallery in galleries]
    of_run, of_rest = (
        [re.findall("<small>([^<]+)</small>", entry)[0] for entry in entries] for entries in shown
    )
    # What was run comes first, the rest is in one line that opens.
    assert {"tables 1, 2", "figure 3", "appendix F"} <= {*of_run}
    assert not {"figure 4", "table 4"} & {*of_run}
    assert [name for name in PAPER if name in of_run] == of_run
    assert [name for name in PAPER if name not in of_run] == of_rest
    line = f"<details><summary>{len(of_rest)} more of the paper: not run here</summary>"
    assert text.index(line) < text.index(galleries[1]) < text.index('id="answer"')
    gallery = "".join(galleries)
    of_place = dict(zip([*of_run, *of_rest], [*shown[0], *shown[1]], strict=True))
    assert 'src="tiny/fig03_curves.svg"' in of_place["figure 3"]
    assert "not enough data" in of_place["tables 1, 2"]
    assert "<img" not in of_place["figure 4"]
    assert "Gap against momentum: its sweep was not run" in of_place["figure 4"]
    assert "pipegap sweep sweep=momentum scale=tiny" in of_place["figure 4"]
    assert "no trial has answered its tasks yet" in of_place["table 4"]
    assert 'href="#table-tiny/tableF_overhead"' in of_place["appendix F"]
    # None states what the memory of an arm is, though claims are judged on the same sweeps.
    assert "badge" not in of_place["appendix F"]
    for anchor in re.findall('href="#([^"]+)"', gallery):
        assert f'id="{anchor}"' in text


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tables 1, 2 (360M: figure 9)", {"table 1", "table 2"}),
        ("tables 1 to 3, figure 2", {"table 1", "table 2", "table 3", "figure 2"}),
        ("figures 17 and 18", {"figure 17", "figure 18"}),
        ("A.9 (135M)", {"appendix A.9"}),
        ("appendix F", {"appendix F"}),
        ("", set()),
    ],
)
def test_places_of_the_paper_are_read_from_words(words: str, expected: set[str]) -> None:
    assert places(words) == expected


@pytest.mark.usefixtures("few_figures")
def test_each_figure_table_and_claim_of_the_paper_has_a_place_in_the_gallery() -> None:
    known = {place for name in PAPER for place in places(name)}
    sources = {shown.source for shown in (*FIGURES, *TABLES) if shown.source}
    assert {place for words in sources for place in places(words)} == known
    for claim in CLAIMS:
        assert places(claim.place) <= known, claim.place
        assert places(claim.place), claim.place


# Of many seeds a picture has a part, evenly spaced; of means it has all, and it says so.

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
