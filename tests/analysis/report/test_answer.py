"""The first screen, the verdicts and what is missing: the words of the page, and its commands."""

import html
import json
import re
import shlex
from difflib import ndiff
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import load
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.advice.advise import verdict_rows
from pipegap.analysis.commands import advise
from pipegap.analysis.report.answer import BY_HAND, MICROBATCHES, STAGES
from pipegap.analysis.report.contents import EXPECTED
from pipegap.analysis.report.report import report
from pipegap.analysis.table.points import settings
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.request.command_line import parse_request
from tests.support.pages import Made, own, page
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

pytestmark = pytest.mark.usefixtures("few_figures")


def test_the_answer_comes_first_then_verdicts_which_follow_the_records(recorded: Made) -> None:
    _, out, text = recorded
    places = [
        *("<figure", 'class="gaps"', 'id="answer"', 'id="verdict"', 'id="verdicts"'),
        'id="chapter-1"',
        *('id="figure-tiny/validation_curves', 'id="table-tiny/', 'id="trials"', 'id="missing"'),
        'id="provenance"',
    ]
    assert sorted(places, key=text.index) == places
    claims = pd.read_csv(out / "claims.csv")
    says = dict(zip(claims["claim"], claims["verdict"], strict=True))
    assert says["It costs AdamW more than Muon"] == "reproduced"
    assert says["High momentum makes an optimizer robust"] == "not enough data"
    assert "pipegap sweep sweep=momentum scale=tiny" in text
    assert "the rule of its file" in text


@pytest.mark.usefixtures("without_figures")
def test_each_verdict_says_how_often_its_rule_errs(tmp_path: Path) -> None:
    store = tmp_path / "results"
    wide = {"sync": [1.0, 1.1, 1.2], "delay": [1.9, 1.8, 2.5], "delay_ef": [1.4, 2.0, 1.5]}
    write_arms(store, LOSSES)
    write_arms(store, wide, optimizer="nadamw")
    write_arms(store, {"sync": [1.0] * 3, "delay": [1.1, 1.2, 1.5]}, optimizer="muon")
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out")
    assert re.search(r"false alarm rate \d\.\d % \[.*?\]", text)
    assert re.search(r"\d+ seeds would decide it with a probability of 80%", text)
    assert "not in the paper, does not count: <b>NAdamW</b>" in text
    claims = pd.read_csv(tmp_path / "out" / "claims.csv")
    rows = claims[claims["claim"] == "Error Feedback removes a part of the gap"]
    assert rows.set_index("part")["counts"].to_dict() == {"adamw": True, "nadamw": False}
    assert (rows["decided_if_placebo"] <= 0.05).all()
    assert (rows["decided_if_placebo_low"] <= rows["decided_if_placebo"]).all()
    costs = claims[claims["claim"] == "A one-step delay costs loss"]
    assert (costs["verdict"] == "not enough data").all()
    assert (costs["seeds_to_decide"] > 3).all()


@pytest.mark.usefixtures("without_figures")
def test_what_a_record_asks_and_the_store_lacks_is_missing_and_priced(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, {"sync": [1.0], "delay": [1.2]})
    write(store, config("delay", seed=1), None)
    record(store, "main", "tiny", [*ids(store), "never"], settled=False)
    text = page(store, tmp_path / "out")
    left = pd.read_csv(tmp_path / "out" / "missing.csv")
    row = left[left["sweep"] == "main"].to_dict("records")[0]
    numbers = [row[name] for name in ("asked", "done", "missing", "seconds", "tokens")]
    assert numbers == [4, 2, 2, 3600, 2000]
    assert row["arms"] == "2 delay"
    assert "2 trials of 1 sweep are missing: 60 min one after the other, 2,000 tokens" in text
    assert "pipegap sweep sweep=main scale=tiny" in text
    never = left[left["sweep"] == "momentum"].to_dict("records")[0]
    assert never["command"] == f"pipegap sweep sweep=momentum scale=tiny results={store}"
    assert pd.isna(never["seconds"])


ANSWER = re.compile(
    r'<td data-rival="([^"]*)"[^>]*><span class="badge [^"]*">([^<]*)</span>'
    r"(?:<small>(\S+) <span>([^<]*)</span></small>)?(?:<small>(.*?)</small>)?</td>"
)


def words_of(printed: str) -> list[str]:
    """The words of a command of the page, for the package that has the command."""
    _, command, *words = shlex.split(html.unescape(printed))
    return words if command == "sweep" else [command, *words]


def test_the_first_screen_is_the_answer_the_picture_and_what_was_trained(tmp_path: Path) -> None:
    """Longer delayed runs decide for Muon; nothing decides for AdamW."""
    store = tmp_path / "results"
    for arm, loss in (("sync", 1.0), ("delay", 1.01)):
        write_arms(store, {arm: [loss, loss + 0.1, loss + 0.2]})
        put(store, arm, [loss, loss + 0.1, loss + 0.21], optimizer="muon")
    put(store, "delay", [0.9, 1.0, 1.09], optimizer="muon", num_updates=550)
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out").split("<header id=")[1].split("</header>")[0]
    places = ["<h1>", "450,000 parameters", "<figure", '"gaps"', '"answer"', "<li>", "<pre>"]
    places += ["Claims of the paper"]
    assert sorted(places, key=text.index) == places
    of_answer = text.split('class="answer"')[1]
    shown = [row.split("</tr>")[0] for row in of_answer.split("<tr><th>")[2:]]
    assert [row.partition("<")[0] for row in shown] == [*("AdamW", "Muon")], (
        "the lowest loss of the runs that both have first"
    )
    assert "in nats per token [95 %], n = 3.</caption>" in text
    expected = verdict_rows(load(store), stages=STAGES, microbatches=MICROBATCHES)
    for row, optimizer in zip(shown, ("adamw", "muon"), strict=True):
        of_optimizer = expected[expected["optimizer"] == optimizer].to_dict("records")
        for cell, told in zip(ANSWER.findall(row), of_optimizer, strict=True):
            assert cell[:2] == (told["rival"], told["verdict"])
            numbers = re.findall(r"[+-][\d.]+", "".join(cell[2:4]).replace("−", "-"))
            known = [told[name] for name in ("difference", "low", "high")] if told["n"] else []
            assert cell[4] == (told["evidence"] if told["n"] else "")
            assert [float(number) for number in numbers] == pytest.approx(known, abs=5e-5)
    assert {*expected["verdict"]} == {"go", "not enough data"}
    settles, asks = re.findall(r"<code>(pipegap (?:sweep|advise) .+?)</code>", text)
    assert parse_request(words_of(settles)).where == str(store)
    assert analysis(words_of(asks)) == 0
    assert "450,000 parameters; wiki; 400, 550 updates, seeds 0 to 2; 15 completed; time" in text


@pytest.mark.usefixtures("without_figures")
def test_runs_and_seeds_that_all_cells_share_are_said_once(tmp_path: Path) -> None:
    store = tmp_path / "results"
    for optimizer in ("adamw", "muon"):
        write_arms(store, {"sync": [1.0, 1.1, 1.2], "delay": [1.0, 1.1, 1.21]}, optimizer=optimizer)
        put(store, "delay", [0.9, 1.0, 1.09], optimizer=optimizer, num_updates=550)
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out").split('class="answer"')[1].split("</table>")[0]
    assert "<th>1F1B<small>550 against 400 updates</small></th>" in text
    assert text.count("<small>550 against 400 updates") == 1
    assert text.count("n = 3") == 1


@pytest.mark.usefixtures("without_figures")
def test_the_line_of_a_failed_trial_stands_before_everything(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    settings = config("delay", seed=9)
    error = "RuntimeError: no more memory"
    write(store, settings, {"status": "failed", "data_hash": "d" * 64, "error": error})
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out").split("<header id=")[1]
    assert text.index("no more memory") < text.index("<h1>")


@pytest.mark.usefixtures("without_figures")
def test_the_first_table_has_the_gaps_of_the_best_setting(tmp_path: Path) -> None:
    """Of two learning rates sync ends lower at the usual one; its gaps are 0.5 and 0.21."""
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    put(store, "sync", [2.7, 2.69, 2.71], lr=0.1)
    put(store, "delay", [2.75, 2.76, 2.74], lr=0.1)
    record(store, "main", "tiny", ids(store))
    text = page(store, tmp_path / "out").split('class="gaps"')[1].split("</table>")[0]
    [row] = text.split("<tbody>")[1].split("</tbody>")[0].strip().splitlines()
    cells = dict(re.findall(r'<td data-head="([^"]+)">([^ <]*)', row))
    assert cells["delay"] == "+0.5000"
    assert cells["delay + EF"] == "+0.2100"
    assert cells["removed"] == "58%"


def test_a_store_that_decides_nothing_says_what_to_run(unfinished: Made, tmp_path: Path) -> None:
    """The sweep that is begun; without trials the main sweep; trials of no sweep go on by hand."""
    (tmp_path / "none" / "trials").mkdir(parents=True)
    write_arms(tmp_path / "own", {"sync": [1.0]})
    store, _, begun = unfinished
    none, own = (page(tmp_path / name, tmp_path / "out") for name in ("none", "own"))
    for text, words in (
        (begun, f"<code>pipegap sweep sweep=main results={store}</code>"),
        (none, f"<code>pipegap sweep sweep=main results={tmp_path / 'none'}</code>"),
        (own, BY_HAND),
    ):
        first = text.split('id="answer"')[1].split("</section>")[0]
        assert words in first
        assert "not enough data" not in first
    assert "pipegap sweep sweep=" not in own
    assert "never run here" not in own


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("delay", "misses"),
    [
        ([1.02, 1.11, 1.23], "for AdamW against ZB-V: num_updates=550"),
        ([1.02], "for AdamW against ZB-V: seeds=[0, 1, 2]"),
    ],
)
def test_an_own_loop_with_pairs_is_told_what_they_miss(
    delay: list[float], misses: str, tmp_path: Path
) -> None:
    """No sweep made its trials, so that no command can make more."""
    store = tmp_path / "own"
    write_arms(store, {"sync": [1.0, 1.1, 1.2], "delay": delay})
    told = f"nothing is decided yet: more of these trainings decide {misses}"
    assert told in report(store, tmp_path / "out")
    assert f"{told[0].upper()}{told[1:]}." in page(store, tmp_path / "out")


def test_a_sweeps_page_opens_with_its_question_its_verdict_and_its_own_figure(
    tmp_path: Path,
) -> None:
    """No figure of any trials repeats its own."""
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    record(store, "optimizers", "tiny", ids(store), question="What does it cost?")
    for label in (None, "optimizers-tiny"):
        text = page(store, tmp_path / "out", label).split("<header id=")[1]
        first = text.split("</header>\n<main")[0]
        places = ["<h1>What does it cost?</h1>", 'fig03_curves"', 'id="answer"']
        places += ['<a href="#verdicts">']
        assert sorted(places, key=first.index) == places
        assert "figure-final_losses" not in text.replace("tiny/", "")
    record(store, "mine", "tiny", ids(store), verdict="It costs if it costs.")
    first = page(store, tmp_path / "out", "mine-tiny").split("<header id=")[1].split("</header>")[0]
    assert "<h1>The sweep mine</h1>" in first
    assert "It costs if it costs." in first


@pytest.mark.usefixtures("without_figures")
def test_trials_that_no_table_compares_are_counted_by_what_they_are_for(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, {"sync": [1.0, 1.1], "delay": [1.2, None]})
    compared = ids(store)
    put(store, "delay", [0.9, 1.0, 1.1], num_updates=550)
    put(store, "sync", [2.0], lr=0.1)
    record(store, "main", "tiny", ids(store), compared=compared)
    said = "8 trials: 7 completed, 1 diverged; 4 compared, 3 longer for the answer, 1 to choose"
    for label in (None, "main-tiny"):
        text = page(store, tmp_path / "out", label)
        assert f"{said} settings" in text
        # Each opens, and what made it is told, also of those that no table compares.
        assert len(pd.read_csv(tmp_path / "out" / "provenance.csv")) == 8
        listing = text.split('id="table-provenance"')[1].split("</script>")[0]
        assert {*re.findall(r'"(\d{4})"', listing)} == {*ids(store)}
    record(store, "main", "tiny", ids(store))
    assert "8 trials: 7 completed, 1 diverged</p>" in page(store, tmp_path / "out")


def put_on_text(store: Path, arm: str, seed: int, **keys: Any) -> None:
    """A trial on a text of one's own, as `data=text data.path=…` records it."""
    trial = config(arm, seed=seed) | {"choices": {"data": "text"}} | keys
    trial["data"] = {
        "_target_": "trainer.data.own.TextFiles",
        "path": "/home/me/notes",
        "shards": f"/home/me/shards/{len(keys)}",
    }
    loss = 1.5 + 0.01 * seed + 0.2 * (arm == "delay")
    write(store, trial, result(trial, loss, data_hash="e" * 64))


def visible(text: str) -> list[str]:
    """What the page says up to its list of trials and what made it, but the time and the count."""
    words = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    words = html.unescape(re.sub(r"<[^>]+>", " ", words)).rpartition("Trials  ")[0]
    return re.sub(r", made .*?\d+ trials: [^.;\n]*(;[^\n]*)?", "", words).split()


@pytest.mark.usefixtures("without_figures")
def test_a_stray_trial_changes_no_number_and_no_label(tmp_path: Path) -> None:
    """The tutorial's first two trials lie in the store of its sweep: other sizes, no pair."""
    store, out = tmp_path / "results", tmp_path / "out"
    for arm in ("sync", "delay"):
        for seed, batch_size in product(range(3), (8, 16)):
            put_on_text(store, arm, seed, batch_size=batch_size)
    of_sweep = ids(store)
    record(store, "main", "tiny", of_sweep)
    first = page(store, out)
    assert "notes; 400 updates" in first
    assert "text; 400 updates" not in first
    gaps_before, settings_before = (out / "gaps.md").read_text(), settings(load(store))
    put_on_text(store, "sync", 0, num_updates=20, seq_len=64)
    put_on_text(store, "sync", 0, num_updates=20, clip_norm=None, seq_len=64)
    second = page(store, out)
    assert "14 trials: 14 completed; 12 compared, 2 of no sweep</p>" in second
    changes = [word for word in ndiff(visible(first), visible(second)) if word[0] in "+-"]
    assert " ".join(changes).startswith("+ Trials + of + no + sweep")
    assert all(re.fullmatch(r"\+ [A-Za-z]+", word) for word in changes), changes
    assert (out / "gaps.md").read_text() == gaps_before
    of_points = load(store).set_index("trial_id")["point"][of_sweep]
    assert {point: settings(load(store))[point] for point in of_points} == settings_before
    assert {*settings_before.values()} == {"batch_size=8", "batch_size=16"}
    assert "/home/me" not in "".join(settings(load(store)).values()) + own(second)


@pytest.mark.usefixtures("without_figures")
def test_what_diverged_is_named_where_nothing_is_decided(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, {"sync": [1.0, 1.1, 1.2], "delay": [1.1, 1.2, 1.3]})
    put(store, "delay_ef", [1.0, 1.1, 1.2])
    put(store, "delay_ef", [None] * 3, num_updates=550)
    words = "delay + Error Feedback in 3 of 3 runs of 550 updates"
    assert words in report(store, tmp_path / "out").split("nothing is decided yet")[1]
    first = (tmp_path / "out" / "index.html").read_text().split('id="answer"')[1]
    assert words in first.split("</section>")[0]


@pytest.mark.usefixtures("without_figures")
def test_the_next_step_from_a_smoke_test_is_a_scale_that_decides(tmp_path: Path) -> None:
    """Though its own sweep is not done."""
    store = tmp_path / "results"
    for arm, loss in (("sync", 1.0), ("delay", 1.2)):
        put(store, arm, [loss, loss + 0.1], num_updates=20)
    record(store, "main", "micro", [*ids(store), "never"], settled=False)
    text = page(store, tmp_path / "out")
    first = text.split('id="answer"')[1].split("</section>")[0]
    assert "<code>pipegap sweep sweep=main scale=tiny" in first
    assert "scale=micro" not in first
    commands = re.findall("not run: pipegap sweep [^<]*", text)
    assert commands
    assert all(" scale=tiny " in command for command in commands)


def test_a_smoke_test_of_ones_own_loop_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command of ours trains it longer."""
    store = tmp_path / "results"
    for arm, loss in (("sync", 1.0), ("delay", 1.2)):
        put(store, arm, [loss, loss + 0.1], num_updates=20)
    why = "runs of 20 updates decide nothing: fewer than 100 are a smoke test"
    assert report(store, tmp_path / "out").endswith(f"nothing is decided yet: {why}")
    text = (tmp_path / "out" / "index.html").read_text()
    assert why in text.split('id="answer"')[1].split("</section>")[0]
    advise.main({"stages": "4", "microbatches": "8", "results": str(store)})
    told = capsys.readouterr().out
    assert why in told
    assert " scale=" not in told + text


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
    printed = {html.unescape(line) for line in re.findall(r"pipegap sweep sweep=[^<\"]+", text)}
    assert len(printed) >= len(EXPECTED)
    for line in printed:
        assert f"results={store}" in words_of(line), line
        parse_request(words_of(line))
    [name] = (out / "trials").iterdir()
    [_, trials] = json.loads(f"[{name.read_text().partition('(')[2].rpartition(')')[0]}]")
    for trial_id, trial in [*trials.items()][:1]:
        capsys.readouterr()
        sweeps([*words_of(trial["command"]), "dry_run=true"])
        assert capsys.readouterr().out.startswith("1 trials selected"), trial_id


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("decided", ["tiny", "135m"])
def test_the_part_that_is_answered_first_does_not_depend_on_what_it_says(
    tmp_path: Path, decided: str
) -> None:
    """Of two scales with pairs, of which the delayed runs of one alone end surely higher."""
    store = tmp_path / "results"
    for scale, size in (("tiny", 450_000), ("135m", 90_000)):
        before = {*ids(store)} if (store / "trials").exists() else set()
        for arm, spread in (("sync", 0.01), ("delay", 0.01 if scale == decided else -0.5)):
            for seed in range(3):
                trial = config(arm, seed=seed)
                trial["model"]["hidden_size"] = size // 1000
                loss = 1.0 + spread * seed + 0.4 * (arm == "delay")
                write(store, trial, result(trial, loss, num_parameters=size))
            settings = {"num_updates": 425}
            if arm == "delay":
                for seed in range(3):
                    trial = config(arm, seed=seed) | settings
                    trial["model"]["hidden_size"] = size // 1000
                    loss = 1.4 + spread * seed
                    write(store, trial, result(trial, loss, num_parameters=size))
        new_ids = sorted({*ids(store)} - before)
        planned = {"arm": "delay", "seed": 0, "tokens": 1000, "flops": float(size), "seconds": 1.0}
        record(store, "main", scale, new_ids, trials=dict.fromkeys(new_ids, planned))
    text = page(store, tmp_path / "out")
    first = text.split('id="answer"')[1].split("</section>")[0]
    assert "90k" not in first  # an answer that decides nothing names no model
    assert ("450k" in first, "Nothing is decided" in first) == (
        decided == "tiny",
        decided != "tiny",
    )
