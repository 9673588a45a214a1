"""`python -m findings publish` writes the trials that a sweep compares, and nothing else."""

import json
import re
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from findings import __main__ as command
from findings import front
from findings.__main__ import publish
from pipegap.analysis import load
from pipegap.trainer.base.errors import BadInput
from tests.support.processes import Refused
from tests.support.synthetic_store import record, write_arms


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of the sweep `momentum` at `tiny`, which compares all of its trials but the last."""
    results = tmp_path / "results"
    write_arms(results, {"sync": [1.7, 1.6], "delay": [1.8, None]})
    ids = sorted(path.name for path in (results / "trials").iterdir())
    record(results, "momentum", "tiny", ids, compared=ids[:-1])
    return results


@pytest.fixture
def findings(tmp_path: Path) -> Path:
    folder = tmp_path / "findings"
    (folder / "momentum").mkdir(parents=True)
    (folder / "momentum" / "README.md").write_text("# Momentum\n")
    return folder


def test_a_table_has_the_compared_trials_without_places(store: Path, findings: Path) -> None:
    said = publish("momentum", str(store), findings=findings)
    path = findings / "momentum" / "trials_tiny.csv"
    assert said == "findings/momentum/trials_tiny.csv: 3 trials"
    trials, of_store = load(path), load(store)
    assert trials["trial_id"].tolist() == of_store["trial_id"].tolist()[:-1]
    assert trials["final_val_loss"].tolist() == of_store["final_val_loss"].tolist()[:-1]
    assert not {"folder", "results", "data.path"} & {*path.read_text().split("\n")[0].split(",")}
    assert publish("momentum", str(store), findings=findings) == said, "again is the same"


def test_trials_of_several_commits_are_said_to_be(store: Path, findings: Path) -> None:
    path = next((store / "trials").iterdir()) / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"git": "other"}))
    assert publish("momentum", str(store), findings=findings).endswith("they are of 2 commits")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"study": "nothing"}, "study=nothing: must be one of momentum"),
        ({"sweep": "nothing"}, "sweep=nothing: must be one of"),
        ({"scale": "micro"}, "must have finished trials of sweep=momentum scale=micro"),
        ({"results": "nowhere"}, "no such folder"),
    ],
)
def test_what_cannot_be_published_is_refused(
    words: dict[str, str], said: str, store: Path, findings: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        publish(**{"study": "momentum", "results": str(store), **words}, findings=findings)
    assert not [*findings.rglob("*.csv")]


def test_trials_of_other_data_and_fewer_trials_are_refused(store: Path, findings: Path) -> None:
    publish("momentum", str(store), findings=findings)
    table = findings / "momentum" / "trials_tiny.csv"
    kept = table.read_text()
    first, *rest = sorted((store / "trials").iterdir())
    changed = json.loads((first / "result.json").read_text()) | {"data_hash": "e" * 64}
    (first / "result.json").write_text(json.dumps(changed))
    with pytest.raises(BadInput, match="must be trials of the data of those published before"):
        publish("momentum", str(store), findings=findings)
    ids = [path.name for path in rest]
    record(store, "momentum", "tiny", ids, compared=ids[:-1])
    with pytest.raises(BadInput, match="1 published trials that the store lacks"):
        publish("momentum", str(store), findings=findings)
    assert table.read_text() == kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["publish", "results=results"], "study=: must be given"),
        (["publish", "study=main", "results=results", "size=2"], "size=2: is not a key"),
        (["print"], "print=: must be key=value"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr("sys.argv", ["findings", *words])
    assert said in refused(command.main)


# The README says what its published trials say.

NUMBER = "+0.0295 [+0.0154, +0.0437]"


def test_the_answer_and_the_table_are_what_the_trials_say() -> None:
    text = front.README.read_text()
    assert front.front_page(text) == text, "make docs"
    changed = text.replace(NUMBER, "+0.0295 [+0.0154, +0.0438]").replace(": yes,", ": no,")
    assert changed.count(": no,") == 1
    assert front.front_page(changed) == text


def test_the_first_table_has_the_differences_that_the_trials_have() -> None:
    """By hand from the published CSVs: runs of 2,750 updates take the time of 1F1B's 2,000."""
    rows = [line.strip("| ").split(" | ") for line in front.answer().splitlines() if "| " in line]
    heads, _, slowest, slowest_look, _, _, updates, look = rows
    tables = [
        pd.read_csv(path)
        .astype({"num_updates": int})
        .set_index(["optimizer", "arm", "num_updates", "seed"])["final_val_loss"]
        .sort_index()
        for path in (front.JOB, front.LOOK_AHEAD / "trials_tiny.csv")
    ]
    for column, name in enumerate(heads[1:], 1):
        job, study = (table[name.lower()] for table in tables)
        sync_look = study[front.SYNC_LOOK, 2000]
        expected = {
            slowest[column]: job["delay_ef", 2750] - job["sync", 2000],
            slowest_look[column]: study[front.DELAY_LOOK, 2750] - sync_look,
            updates[column]: job["delay_ef", 2000] - job["sync", 2000],
            look[column]: sync_look - study["sync", 2000],
        }
        for cell, differences in expected.items():
            mean = float(cell.split(" ")[0].replace("\N{MINUS SIGN}", "-"))
            assert mean == pytest.approx(differences.mean(), abs=5.1e-4)
            assert len(differences.dropna()) == 5
    in_time_losses = [tables[0][name.lower()]["delay_ef", 2750].mean() for name in heads[1:]]
    assert in_time_losses == sorted(in_time_losses)


def test_the_price_of_the_paper_s_scale_is_that_of_the_table_of_prices() -> None:
    [hours] = re.findall(r"make sweep-135m .*: (\S+) GPU-hours", front.README.read_text())
    assert f"| `main` | `135m` | 24 | {hours} |" in front.SWEEPS.read_text()


def test_the_picture_is_what_the_trials_say() -> None:
    """By what it says to a reader who does not see it: every mean with its interval."""
    kept = front.PICTURE.read_text()
    words = re.search(r'aria-label="([^"]*)"', kept)
    assert words is not None, "make docs"
    assert unescape(words[1]) == front.pictured()["description"], "make docs"
    assert "@font-face" in kept, "its letters are those that it was measured with"


def test_the_hours_of_the_paper_s_scales_are_those_of_a_plan() -> None:
    """One of them, by its row; the others take a while."""
    text = front.SWEEPS.read_text()
    row = front.gpu_hours([("main", "135m")]).splitlines()[-1]
    assert f"\n{row}\n" in text, "make docs"


@pytest.mark.slow
def test_all_hours_are_those_of_a_plan() -> None:
    text = front.SWEEPS.read_text()
    assert front.filled(text, {"hours": front.gpu_hours()}) == text, "make docs"


SURPRISES = "## What would surprise the field"
INTERVAL = re.compile(r"[+−]?\d[\d.]* \[[^\]]+\]")


def test_each_surprise_stands_in_the_page_that_it_names() -> None:
    """Its numbers are that page's, its table and figure are there, and so is its n."""
    folder = Path(command.__file__).parent
    text = (folder / "README.md").read_text()
    section = text.split(SURPRISES)[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 10
    for what, measured, n, places in rows:
        page, table, figure = (folder / link for link in re.findall(r"\]\(([^)]+)\)", places))
        lines = page.read_text().splitlines()
        stated = " ".join(" ".join(lines).split())
        intervals = INTERVAL.findall(measured)
        assert intervals, what
        for interval in intervals:
            assert interval in stated, f"{page}: {interval}"
            # n stands in the row of the number, right behind it, or on the page for all of them.
            in_row = re.compile(rf"{re.escape(interval)}.*\| {n}( of {n})? \|")
            in_text = f"{interval} n={n}" in stated or f"n = {n};" in stated
            assert in_text or any(map(in_row.search, lines)), f"{page}: {interval}, n = {n}"
        assert len(pd.read_csv(table)) >= int(n), "a trial per seed at least"
        assert figure.is_file(), figure
