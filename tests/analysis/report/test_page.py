"""The page says what the files say, of any store, and nothing of a store is taken for markup."""

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import load
from pipegap.analysis.report.report import report
from pipegap.analysis.table.metrics import MOST
from pipegap.analysis.table.points import flatten
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.lease import leased
from tests.support.pages import VENDOR, Made, own, page, vendored
from tests.support.synthetic_store import LOSSES, config, ids, record, result, write, write_arms

pytestmark = pytest.mark.usefixtures("few_figures")

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


def test_the_papers_numbers_are_beside_ours_at_its_own_scale_alone(recorded: Made) -> None:
    assert "paper sync" not in recorded.text
    assert "the scale does not match" in recorded.text


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


def test_a_sweeps_own_report_is_of_its_trials(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    named = [name for name in ids(store) if name < "0006"]
    record(store, "main", "tiny", named)
    text = page(store, tmp_path / "out", "main-tiny")
    assert len(pd.read_csv(tmp_path / "out" / "trials.csv")) == 6
    assert {"final_losses.csv", "gaps.csv"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "main-tiny: chosen" in text
    with pytest.raises(BadInput, match=r"label=other.*main-tiny"):
        report(store, tmp_path / "out", "other")


@pytest.mark.parametrize("arms", [(), ("delay",)])
def test_a_store_that_lacks_nearly_everything(arms: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "results"
    (store / "trials").mkdir(parents=True)
    for arm in arms:
        settings = config(arm)
        write(store, settings, result(settings, None), curve=True)
        write(store, config(arm, seed=1), None)
    record(store, "main", "tiny", ["gone", *ids(store)])
    (store / "sweeps" / "broken.json").write_text('{"sweep":')
    text = page(store, tmp_path / "out")
    assert "not enough data" in text
    assert "broken.json" in text
    assert ("sync is missing" in text) == bool(arms)


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


def test_the_libraries_of_the_page_come_with_their_licence(recorded: Made) -> None:
    text = recorded.text
    licence = (VENDOR / "LICENSE.txt").read_text()
    assert licence.startswith("The MIT License")
    assert html.escape(licence, quote=False).replace('"', "&#34;") in text
    for library in vendored():
        assert library in text or library == licence
