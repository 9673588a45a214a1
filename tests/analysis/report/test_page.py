"""The page says what the files say, of any store, and nothing of a store is taken for markup."""

import html
import json
import math
import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import vl_convert

from analysis import gaps, load
from analysis.__main__ import main as analysis
from analysis.advice.rows import verdict_rows
from analysis.figures import save
from analysis.figures.curves import FEWEST
from analysis.report import contents
from analysis.report.answer import MICROBATCHES, STAGES
from analysis.report.contents import EXPECTED
from analysis.report.page import page as page_module
from analysis.report.page.listing import listed, write_latex
from analysis.report.page.page import MOST_POINTS, OVER_TRAINING, thin
from analysis.report.report import report
from analysis.statistics.overhead import overhead
from analysis.table.metrics import MOST
from analysis.table.points import flatten
from sweeps.__main__ import main as sweeps
from sweeps.request.command_line import parse_request
from tests.support.synthetic_store import (
    LOSSES,
    config,
    ids,
    put,
    record,
    result,
    write,
    write_arms,
)
from trainer.base.errors import BadInput

pytestmark = pytest.mark.usefixtures("few_figures")

TABLE = re.compile(
    r'<section class="table block".*?href="([^"]+\.csv)"'
    r'.*?<script type="application/json">(.*?)</script>',
    re.DOTALL,
)
VENDOR = Path(page_module.__file__).parent / "vendor"


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


def own(text: str) -> str:
    """A page without what others wrote."""
    for library in (charts(), *vendored()):
        text = text.replace(library, "")
    return text.replace("http://datatables.net", "")  # in its licence


@cache
def charts() -> str:
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def vendored() -> list[str]:
    return [path.read_text() for path in sorted(VENDOR.iterdir())]


def page(store: Path, out: Path, label: str | None = None) -> str:
    report(store, out, label)
    return (out / "index.html").read_text()


class Made(NamedTuple):
    """A report that several tests read, and none changes."""

    store: Path
    out: Path
    text: str


@pytest.fixture(scope="module")
def recorded(few_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report of two optimizers in a sweep, with the pictures of its links, and a log."""
    folder = tmp_path_factory.mktemp("recorded")
    store, out = folder / "results", folder / "out"
    write_arms(store, LOSSES)
    write_arms(store, {"sync": [1.0, 1.1], "delay": [1.1, 1.2]}, optimizer="muon")
    record(store, "main", "tiny", ids(store))
    made = {"attempt": 1, "host": "h", "pid": 7, "started_at": 0.0}
    made |= {"ended": "completed", "ended_at": 60.0}
    (store / "trials" / "0001" / "attempt-000001.json").write_text(json.dumps(made))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "save", save)
        return Made(store, out, page(store, out))


@pytest.fixture(scope="module")
def unfinished(few_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report of two optimizers in a sweep that lacks a trial and has a diverged one."""
    folder = tmp_path_factory.mktemp("unfinished")
    store, out = folder / "results", folder / "out"
    write_arms(store, LOSSES)
    write_arms(store, {"sync": [1.0, None], "delay": [1.1, 1.2]}, optimizer="muon")
    record(store, "main", "tiny", [*ids(store), "never"], words=["sweep=main", "results=other"])
    return Made(store, out, page(store, out))


@pytest.fixture(scope="module")
def scattered(few_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report of one sweep at two scales, a sweep of one's own, and a last trial of no sweep."""
    folder = tmp_path_factory.mktemp("scattered")
    store, out = folder / "results", folder / "out"
    for number, size in enumerate((8, 4, 2)):
        for arm, loss in (("sync", 1.0), ("delay", 1.5)):
            settings = config(arm) | {"batch_size": size}
            write(store, settings, result(settings, loss + number), curve=True)
    record(store, "optimizers", "tiny", ids(store)[:2])
    record(store, "optimizers", "micro", ids(store)[2:4])
    record(store, "mine", "tiny", ids(store)[4:])
    settings = config("sync", seed=7)
    write(store, settings, result(settings, 1.0), curve=True)
    return Made(store, out, page(store, out))


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


def test_the_answer_comes_first_then_verdicts_which_follow_the_records(recorded: Made) -> None:
    _, out, text = recorded
    places = [
        *('id="answer"', "<figure", 'id="facts"', 'id="verdicts"', 'id="chapter-1"'),
        *('id="figure-tiny/validation_curves', 'id="table-tiny/', 'id="trials"', 'id="missing"'),
        'id="provenance"',
    ]
    assert sorted(places, key=text.index) == places
    claims = pd.read_csv(out / "claims.csv")
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
    assert re.search(r"false alarm rate \d\.\d % \[", text)
    assert re.search(r"\d+ seeds would decide it with a probability of 80%", text)
    assert "not in the paper, does not count: <b>NAdamW</b>" in text
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
    assert "2 trials of 1 sweep are missing: 60 min one after the other, 2,000 tokens" in text
    assert "python -m sweeps sweep=main scale=tiny" in text
    never = left[left["sweep"] == "momentum"].to_dict("records")[0]
    assert never["command"] == f"python -m sweeps sweep=momentum scale=tiny results={store}"
    assert pd.isna(never["seconds"])


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


def test_a_commit_is_cut_to_what_finds_it_and_a_release_is_not(tmp_path: Path) -> None:
    for seed, git in enumerate(["0123456789ab" + "f" * 28 + "-dirty", "pipegap 0.1.0"]):
        settings = config(seed=seed)
        write(tmp_path / "r", settings, result(settings, 1.0, git=git))
    page(tmp_path / "r", tmp_path / "out")
    made = pd.read_csv(tmp_path / "out" / "provenance.csv")
    assert made["git"].tolist() == ["0123456789ab-dirty", "pipegap 0.1.0"]


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


def test_a_thinned_curve_has_its_ends_and_points_enough() -> None:
    curves = [{"trial_id": i, OVER_TRAINING: t} for i in range(1000) for t in range(100)]
    specs = [{"datasets": {"seeds": curves}}]
    assert thin(specs) == (1000 * FEWEST, 100_000)
    for trial in (0, 999):
        kept = [r[OVER_TRAINING] for r in specs[0]["datasets"]["seeds"] if r["trial_id"] == trial]
        assert (kept[0], kept[-1], len(kept)) == (0, 99, FEWEST)


def test_gaps_of_a_table_are_those_of_the_library(recorded: Made) -> None:
    written = pd.read_csv(recorded.out / "gaps.csv")
    pd.testing.assert_series_equal(written["gap"], gaps(load(recorded.store))["gap"])


ANSWER = re.compile(
    r'<td data-rival="([^"]*)"[^>]*><span class="badge [^"]*">([^<]*)</span>'
    r"(?:<small>(\S+) <span>([^<]*)</span></small>)?</td>"
)


def words_of(printed: str) -> list[str]:
    """The words of a command of the page."""
    _, _, _, *words = shlex.split(html.unescape(printed))
    return words


def test_the_first_screen_is_the_answer_the_picture_and_what_was_trained(tmp_path: Path) -> None:
    """Longer delayed runs decide for Muon; nothing decides for AdamW."""
    store = tmp_path / "results"
    for arm, loss in (("sync", 1.0), ("delay", 1.01)):
        write_arms(store, {arm: [loss, loss + 0.1, loss + 0.2]})
        put(store, arm, [loss, loss + 0.1, loss + 0.21], optimizer="muon")
    put(store, "delay", [0.9, 1.0, 1.09], optimizer="muon", num_updates=550)
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out").split("<header id=")[1].split("</header>")[0]
    places = ["<table", "<li>", "<figure", "<dl>"]
    assert sorted(places, key=text.index) == places
    shown = [row.split("</tr>")[0] for row in text.split("<tr><th>")[2:]]
    assert [row.partition("<")[0] for row in shown] == ["Muon", "AdamW"], "what is decided is first"
    expected = verdict_rows(load(store), stages=STAGES, microbatches=MICROBATCHES)
    for row, optimizer in zip(shown, ("muon", "adamw"), strict=True):
        of_optimizer = expected[expected["optimizer"] == optimizer].to_dict("records")
        for cell, told in zip(ANSWER.findall(row), of_optimizer, strict=True):
            assert cell[:2] == (told["rival"], told["verdict"])
            numbers = re.findall(r"[+-][\d.]+", "".join(cell[2:]).replace("−", "-"))
            known = [told[name] for name in ("difference", "low", "high")] if told["n"] else []
            assert [float(number) for number in numbers] == pytest.approx(known, abs=5e-5)
    assert {*expected["verdict"]} == {"go", "not enough data"}
    settles, asks = re.findall(r"<code>(python -m .+?)</code>", text)
    assert parse_request(words_of(settles)).where == str(store)
    assert analysis(words_of(asks)) == 0
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", text))
    assert facts["model"].endswith("450,000 parameters")
    assert facts["training"] == "400, 550 updates, seeds 0, 1, 2, 15 completed"


def test_a_store_that_decides_nothing_says_what_to_run(unfinished: Made, tmp_path: Path) -> None:
    """The sweep that is begun, or else the main sweep."""
    write_arms(tmp_path / "results", {"sync": [1.0]})
    store, _, begun = unfinished
    without = page(tmp_path / "results", tmp_path / "out")
    for text, command in (
        (begun, f"sweep=main results={store}"),
        (without, f"sweep=main results={tmp_path / 'results'}"),
    ):
        first = text.split('id="answer"')[1].split("</section>")[0]
        assert f"<code>python -m sweeps {command}</code>" in first
        assert "not enough data" not in first


def test_undecided_claims_are_folded_and_the_others_are_not(recorded: Made) -> None:
    verdicts = recorded.text.split('id="verdict-list"')[1].split("</section>")[0]
    shown, folded = re.split(r"<details><summary>\d+ not enough data", verdicts)
    assert "It costs AdamW more than Muon" in shown
    assert "High momentum makes an optimizer robust" not in shown
    assert "High momentum makes an optimizer robust" in folded


def test_each_command_of_the_page_runs_as_it_is_printed(
    unfinished: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out, whole = unfinished
    text = own(whole)
    printed = {html.unescape(line) for line in re.findall(r"python -m [^<\"]+", text)}
    assert len(printed) >= len(EXPECTED)
    for line in printed:
        assert f"results={store}" in words_of(line), line
        parse_request(words_of(line))
    [name] = (out / "trials").iterdir()
    [_, trials] = json.loads(f"[{name.read_text().partition('(')[2].rpartition(')')[0]}]")
    for trial_id, trial in [*trials.items()][:1]:
        capsys.readouterr()
        _, _, _, *words = shlex.split(trial["command"])
        sweeps([*words, "dry_run=true"])
        assert capsys.readouterr().out.startswith("1 trials selected"), trial_id


def test_a_trial_opens_with_its_config_curves_and_log(recorded: Made) -> None:
    store, out, _ = recorded
    content = (out / "trials" / "00.js").read_text()
    common, trials = json.loads(f"[{content.partition('(')[2].rpartition(')')[0]}]")
    assert [*trials] == ids(store)
    for trial_id, trial in trials.items():
        asked = json.loads((store / "trials" / trial_id / "config.json").read_text())
        assert common | trial["config"] == dict(flatten(asked))
        rows = [
            json.loads(line)
            for line in (store / "trials" / trial_id / "metrics.jsonl").read_text().splitlines()
        ]
        training = {u: loss for u, loss, of in trial["curve"] if of == "training"}
        assert training.items() <= {row["update"]: row["train_loss"] for row in rows}.items()
        assert (len(training), min(training), max(training)) == (MOST, 0, 399)
        validation = {u: loss for u, loss, of in trial["curve"] if of == "validation"}
        assert validation == {r["update"]: r["val_loss"] for r in rows if "val_loss" in r}
    line = "attempt 1: 1970-01-01 00:00:00 UTC on h pid 7, completed 1970-01-01 00:01:00 UTC"
    assert trials["0001"]["log"] == [line]


def test_speed_counts_of_trials_that_had_the_machine_for_themselves(tmp_path: Path) -> None:
    """The first two of four trials of 40 s overlap; one device is another machine."""
    for arm, ended, device in (
        ("sync", 100.0, "a"),
        ("delay", 139.0, "a"),
        ("delay_ef", 180.0, "a"),
    ):
        settings = config(arm)
        write(tmp_path, settings, result(settings, 1.0, finished_at=ended, device_name=device))
    settings = config("sync", optimizer="muon")
    write(tmp_path, settings, result(settings, 1.0, finished_at=110.0, device_name="b"))
    table = overhead(load(tmp_path)).set_index(["optimizer", "arm"])
    assert table["speed n"].to_dict() == {
        ("adamw", "delay"): 0,
        ("adamw", "delay_ef"): 1,
        ("adamw", "sync"): 0,
        ("muon", "sync"): 1,
    }
    assert table["speed"].dropna().tolist() == [20_000, 20_000]
    assert (table["memory"] == 10**9).all()


def test_latex_has_the_words_of_the_page(tmp_path: Path) -> None:
    gap = {"gap": [0.5], "gap_low": [0.4], "gap_high": [0.6]}
    listing = listed("t", pd.DataFrame({"arm": ["delay_ef"], **gap, "removed": 0.58}), "", "t.csv")
    assert listing.rows[0][1].values == [0.5, 0.4, 0.6]
    write_latex(listing, tmp_path)
    text = (tmp_path / "t.tex").read_text()
    assert "delay\\_ef & +0.5000 [+0.4000, +0.6000] & 58\\% \\\\" in text
    assert text.index("\\toprule") < text.index("\\midrule") < text.index("\\bottomrule")


def test_the_libraries_of_the_page_come_with_their_licence(recorded: Made) -> None:
    text = recorded.text
    licence = (VENDOR / "LICENSE.txt").read_text()
    assert licence.startswith("The MIT License")
    assert html.escape(licence, quote=False).replace('"', "&#34;") in text
    for library in vendored():
        assert library in text or library == licence
