"""The page says what the files say, of any store, and nothing of a store is taken for markup."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import vl_convert

from analysis import gaps, load
from analysis.report.page.listing import listed
from analysis.report.page.page import MOST_POINTS, thin
from analysis.report.report import report
from tests.support.synthetic_store import LOSSES, config, ids, record, result, write, write_arms
from trainer.base.errors import BadInput


class Cells(HTMLParser):
    """Of each table that sorts: its link, the names behind its columns, and its rows' values."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[str], list[list[Any]]]] = []
        self._file = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self._file = given["href"] or ""
        if tag == "thead" and self._file.endswith(".csv"):
            self.tables.append((self._file, [], []))
        if tag == "th" and "data-names" in given:
            self.tables[-1][1].extend(json.loads(given["data-names"] or ""))
        if tag == "tr" and self.tables:
            self.tables[-1][2].append([])
        if tag == "td" and "data-values" in given:
            self.tables[-1][2][-1].extend(json.loads(given["data-values"] or ""))


def page(store: Path, out: Path, label: str | None = None) -> str:
    report(store, out, label)
    return (out / "index.html").read_text()


def test_every_number_of_a_table_is_that_of_its_csv(tmp_path: Path) -> None:
    store, out = tmp_path / "results", tmp_path / "out"
    for optimizer in ("adamw", "muon"):
        write_arms(store, LOSSES, optimizer=optimizer)
    record(store, "main", "tiny", ids(store))
    found = Cells(page(store, out)).tables
    assert {"tiny/table1_2_losses.csv", "tiny/tableF_overhead.csv", "tiny/gaps_main.csv"} < {
        file for file, _, _ in found
    }
    for file, names, rows in found:
        if file == "provenance.csv":  # of its two tables one counts trials
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


def test_the_papers_numbers_are_beside_ours_at_its_own_scale_alone(tmp_path: Path) -> None:
    write_arms(tmp_path / "r", LOSSES)
    record(tmp_path / "r", "main", "tiny", ids(tmp_path / "r"))
    text = page(tmp_path / "r", tmp_path / "out")
    assert "paper sync" not in text
    assert "the scale does not match" in text


def test_verdicts_come_first_and_follow_the_records(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    write_arms(store, {"sync": [1.0, 1.1], "delay": [1.1, 1.2]}, optimizer="muon")
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out")
    assert text.index('id="verdicts"') < text.index("<figure") < text.index('id="missing"')
    claims = pd.read_csv(tmp_path / "out" / "claims.csv")
    says = dict(zip(claims["claim"], claims["verdict"], strict=True))
    assert says["It costs AdamW more than Muon"] == "reproduced"
    assert says["High momentum makes an optimizer robust"] == "not enough data"
    assert "python -m sweeps sweep=momentum scale=tiny" in text
    assert "the rule of its file" in text


def test_each_verdict_says_how_often_its_rule_errs(tmp_path: Path) -> None:
    store = tmp_path / "results"
    wide = {"sync": [1.0, 1.1, 1.2], "delay": [1.9, 1.8, 2.5], "delay_ef": [1.4, 2.0, 1.5]}
    write_arms(store, LOSSES)
    write_arms(store, wide, optimizer="nadamw")
    write_arms(store, {"sync": [1.0] * 3, "delay": [1.1, 1.2, 1.5]}, optimizer="muon")
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out")
    assert re.search(r"were it just false, the rule would say so in \d\.\d% \[", text)
    assert re.search(r"\d+ seeds would decide it with a probability of 80%", text)
    assert "not in the paper, does not count: <b>nadamw</b>" in text
    claims = pd.read_csv(tmp_path / "out" / "claims.csv")
    rows = claims[claims["claim"] == "Error Feedback removes a part of the gap"]
    assert rows.set_index("part")["counts"].to_dict() == {"adamw": True, "nadamw": False}
    assert (rows["reproduced_if_false"] <= 0.05).all()
    assert (rows["reproduced_if_false_low"] < rows["reproduced_if_false"]).all()
    costs = claims[claims["claim"] == "A one-step delay costs loss"]
    assert (costs["verdict"] == "not enough data").all()
    assert (costs["seeds_to_decide"] > 3).all()


def test_what_a_record_asks_and_the_store_lacks_is_missing_and_priced(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, {"sync": [1.0], "delay": [1.2]})
    write(store, config("delay", seed=1), None)
    record(store, "main", "tiny", [*ids(store), "never"], settled=False)
    text = page(store, tmp_path / "out")
    left = pd.read_csv(tmp_path / "out" / "missing.csv")
    row = left[left["sweep"] == "main"].to_dict("records")[0]
    assert [row[name] for name in ("asked", "done", "missing", "seconds", "tokens")] == [
        4,
        2,
        2,
        3600,
        2000,
    ]
    assert row["arms"] == "2 delay"
    assert "2 trials of 1 sweep are missing: 1.0 hours one after the other, 2,000 tokens" in text
    assert "python -m sweeps sweep=main scale=tiny" in text
    never = left[left["sweep"] == "momentum"].to_dict("records")[0]
    assert never["command"] == "python -m sweeps sweep=momentum scale=tiny"


def test_scales_are_never_mixed_and_a_sweep_of_ones_own_is_shown(tmp_path: Path) -> None:
    store = tmp_path / "results"
    made: dict[str, list[str]] = {}
    for scale, size in (("tiny", 8), ("micro", 4), ("mine", 2)):
        before = set(ids(store)) if made else set()
        for arm, loss in (("sync", 1.0), ("delay", 1.5)):
            settings = config(arm) | {"batch_size": size}
            write(store, settings, result(settings, loss), curve=True)
        made[scale] = [name for name in ids(store) if name not in before]
    record(store, "optimizers", "tiny", made["tiny"])
    record(store, "optimizers", "micro", made["micro"])
    record(store, "mine", "tiny", made["mine"])
    settings = config("sync", seed=7)
    write(store, settings, result(settings, 1.0), curve=True)
    page(store, tmp_path / "out")
    out = tmp_path / "out"
    for scale in ("tiny", "micro"):
        shown = pd.read_csv(out / scale / "fig03_curves.csv")
        assert set(shown["trial_id"].astype(str).str.zfill(4)) == set(made[scale])
    own = pd.read_csv(out / "tiny" / "final_losses_mine.csv", dtype={"trial_id": str})
    assert set(own["trial_id"]) == set(made["mine"])
    rest = pd.read_csv(out / "final_losses.csv", dtype={"trial_id": str})
    assert rest["trial_id"].tolist() == [ids(store)[-1]]


def test_a_sweeps_own_report_is_of_its_trials(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    named = [name for name in ids(store) if name < "0006"]
    record(store, "main", "tiny", named)
    text = page(store, tmp_path / "out", "main-tiny")
    assert len(pd.read_csv(tmp_path / "out" / "trials.csv")) == 6
    assert {"final_losses.svg", "gaps.csv"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "main-tiny: chosen" in text
    with pytest.raises(BadInput, match=r"label=other.*main-tiny"):
        report(store, tmp_path / "out", "other")


@pytest.mark.parametrize("arms", [(), ("sync",), ("delay",), ("delay_ef",)])
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
    for arm in arms:
        if arm != "sync":
            assert "sync is missing" in text


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
    assert text.count("</script>") == text.count("<script")


def test_the_page_needs_nothing_from_anywhere(tmp_path: Path) -> None:
    write_arms(tmp_path / "r", LOSSES)
    text = page(tmp_path / "r", tmp_path / "out")
    own = text.replace(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), "")
    assert not re.search(r"<(script|img|iframe)[^>]*\ssrc=|(?<!schema\": \")https?://", own)
    links = re.findall(r"<link[^>]*>", text)
    assert links == ['<link rel="icon" href="data:,">']
    for file in re.findall(r'href="([^"]+\.(?:svg|png|csv))"', text):
        assert (tmp_path / "out" / file).exists(), file


def test_provenance_names_what_made_each_trial(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    record(store, "main", "tiny", ids(store)[:2])
    page(store, tmp_path / "out")
    made = pd.read_csv(tmp_path / "out" / "provenance.csv", dtype={"trial_id": str})
    assert made["trial_id"].tolist() == ids(store)
    assert set(made["git"]) == {"abc"}
    assert set(made["data_hash"]) == {"d" * 12}
    assert set(made["packages"]) == {"torch 2.13.0"}
    assert made["sweeps"].notna().sum() == 2
    losses = load(store)["final_val_loss"].tolist()
    assert made["final_val_loss"].tolist() == losses


def test_a_commit_is_cut_to_what_finds_it_and_a_release_is_not(tmp_path: Path) -> None:
    for seed, git in enumerate(["0123456789ab" + "f" * 28 + "-dirty", "pipegap 0.1.0"]):
        settings = config(seed=seed)
        write(tmp_path / "r", settings, result(settings, 1.0, git=git))
    page(tmp_path / "r", tmp_path / "out")
    made = pd.read_csv(tmp_path / "out" / "provenance.csv")
    assert made["git"].tolist() == ["0123456789ab-dirty", "pipegap 0.1.0"]


def test_intervals_and_shares_in_words() -> None:
    table = pd.DataFrame({"gap": [0.5], "gap_low": [0.4], "gap_high": [0.6], "removed": [0.58]})
    ((gap, share),) = listed("t", table, "", "t.csv").rows
    assert (gap.words, gap.values) == ("+0.5000 [+0.4000, +0.6000]", [0.5, 0.4, 0.6])
    assert share.words == "58%"


def test_many_points_are_thinned_evenly_and_counted() -> None:
    specs = [{"datasets": {"seeds": [{"x": x} for x in range(20_000)], "means": [{"x": 0}]}}]
    shown, were = thin(specs)
    assert were == 20_001
    assert MOST_POINTS * 0.99 < shown <= MOST_POINTS + 1
    kept = [row["x"] for row in specs[0]["datasets"]["seeds"]]
    assert (kept[0], kept[-1]) == (0, 19_999)
    steps = {after - before for before, after in pairwise(kept)}
    assert max(steps) - min(steps) <= 1
    few = [{"datasets": {"seeds": [{"x": 1}] * 10}}]
    assert thin(few) == (10, 10)


def test_gaps_of_a_table_are_those_of_the_library(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    page(store, tmp_path / "out")
    written = pd.read_csv(tmp_path / "out" / "gaps.csv")
    pd.testing.assert_series_equal(written["gap"], gaps(load(store))["gap"])
