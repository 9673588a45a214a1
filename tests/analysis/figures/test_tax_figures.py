"""What the figures of the token tax show, and how others' numbers were converted."""

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.figures.figure import plot, whole
from pipegap.analysis.figures.taxes import ROW_HEIGHT
from pipegap.analysis.report.paper_tables import TABLES
from pipegap.analysis.report.report import report
from pipegap.analysis.statistics.tax import ESTIMATED, REPORTED, reported_taxes
from tests.support.reports import as_svg, with_figures
from tests.support.synthetic_store import ids, put, record


@pytest.fixture(autouse=True, scope="module")
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


def test_no_line_goes_through_a_name(tmp_path: Path) -> None:
    """What marks the tax 1 are pieces, lower than the row of which the name takes a half."""
    store(tmp_path)
    [chart] = BY_NAME["token_tax"].charts(data(tmp_path, "token_tax"))
    layers = chart.to_dict()["layer"]
    at_one = [layer for layer in layers if layer["encoding"]["x"].get("datum") == 1]
    assert [layer["mark"]["size"] for layer in at_one] == [ROW_HEIGHT / 2]
    rules = [layer for layer in layers if layer["mark"]["type"] == "rule"]
    assert all("low" in str(layer["encoding"]["x"]) for layer in rules)


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


def test_numbers_of_others_are_converted_as_they_say() -> None:
    table = reported_taxes().set_index(["who", "optimizer", "arm"])
    muon = table.loc[("paper, 360M", "muon", "delay")]
    assert (muon["tax"], muon["tax_from"]) == (pytest.approx(math.exp(0.012 / 0.2)), ESTIMATED)
    marin = table.loc[("marin, 130M MoE, T = 15,000", "muon", "pipedream")]
    assert (marin["tax"], marin["tax_from"]) == (1.16, REPORTED)
    assert table[["source", "converted"]].notna().all(axis=None)


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
