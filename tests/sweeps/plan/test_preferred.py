"""What a scale prefers is added to all trials of a sweep or to none, and a sweep keeps to it."""

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest

from analysis.report.contents import StoreViews, scopes
from analysis.report.facts import missing
from analysis.table.load import load
from analysis.table.records import records
from sweeps.plan import sweep_record
from sweeps.plan.sweep_plan import SweepPlan, plan_sweeps
from sweeps.request.command_line import parse_request
from sweeps.request.files import STUDIES
from sweeps.store.opened import FileStore
from tests.support import small
from tests.support.records import leave_finished
from trainer.base.errors import BadInput

SWEEP = """\
prefer: [compile=update]
grid: {optimizer: [adamw, muon]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw, correction=error_feedback]}
seeds: [0]
"""
ADDED = ("compile=update",)


@pytest.fixture(autouse=True)
def a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a compiler, which no plan calls, and with Python's headers."""
    program, headers = tmp_path / "bin" / "c++", tmp_path / "include" / "Python.h"
    for file in (program, headers):
        file.parent.mkdir()
        file.touch()
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(headers.parent))


def planned(folder: Path, *words: str, record: bool = False, content: str = SWEEP) -> SweepPlan:
    (folder / "mine.yaml").write_text(content)
    given = [f"sweep={folder / 'mine.yaml'}", "scale=micro", *small.overrides(folder), *words]
    request = parse_request(given)
    [plan] = plan_sweeps(request)
    if record:
        sweep_record.write(request, [plan], FileStore(request.results))
    return plan


def ways(plan: SweepPlan) -> set[bool | str]:
    return {trial.config["compile"] for trial in plan.planned}


def test_it_is_added_to_all_trials(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert (ways(plan), plan.added, plan.not_added) == ({"update"}, ADDED, "")


@pytest.mark.parametrize("given", ["compile=false", "compile=update"])
def test_a_word_of_the_command_line_counts_more(tmp_path: Path, given: str) -> None:
    plan = planned(tmp_path, given)
    assert ways(plan) == {"update" if given == "compile=update" else False}
    assert (plan.added, plan.not_added) == ((), "")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("runner=pipelined", "runner=pipelined: must be emulated"),
        ("device=cuda", "device=cuda: must be cpu"),
        ("diagnostics=4", "diagnostics=4: must be null"),
        ("grid.optimizer=[adamw,lion,signum]", "optimizer=signum: must be one of adamw, adan"),
        (
            "grid.optimizer=[adamw,{optimizer: muon, optimizer.cautious_decay: true}]",
            "optimizer.cautious_decay=True: must be False",
        ),
    ],
)
def test_one_trial_without_it_leaves_all_as_they_are_and_a_line_says_why(
    tmp_path: Path, word: str, why: str
) -> None:
    plan = planned(tmp_path, word)
    assert (ways(plan), plan.added) == ({False}, ())
    assert plan.not_added.startswith(f"compile=update is not added: {why}")
    assert "\n" not in plan.not_added


@pytest.mark.parametrize("word", ["compil=update", "compile=all"])
def test_a_word_that_no_trial_allows_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(BadInput, match=f"^{word}: must be "):
        planned(tmp_path, content=SWEEP.replace(*ADDED, word))


@pytest.mark.parametrize("missing", ["a compiler", "headers"])
def test_a_machine_that_cannot_compile(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "a compiler":
        monkeypatch.setenv("CXX", str(tmp_path / "none"))
    else:
        (tmp_path / "include" / "Python.h").unlink()
    plan = planned(tmp_path)
    assert ways(plan) == {False}
    assert "which this machine does not have" in plan.not_added


def test_a_sweep_that_was_begun_with_it_goes_on_with_it_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(tmp_path, record=True)
    again = planned(tmp_path, "seeds=[0,1]", record=True)
    assert {t.plan.trial_id for t in first.planned} < {t.plan.trial_id for t in again.planned}
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    begun = "which this machine does not have: the sweep was begun with compile=update"
    with pytest.raises(BadInput, match=begun) as refused:
        planned(tmp_path)
    assert "\n" not in str(refused.value)
    assert ways(planned(tmp_path, "compile=false")) == {False}


def test_a_sweep_that_was_begun_without_it_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:
        away.setenv("CXX", str(tmp_path / "none"))
        first = planned(tmp_path, record=True)
    again = planned(tmp_path)
    assert again.planned == first.planned
    assert again.not_added == "compile=update is not added: the record of mine-micro has none"


def test_a_record_from_before_there_was_a_preference_has_none(tmp_path: Path) -> None:
    planned(tmp_path, record=True)
    [path] = (tmp_path / "results" / "sweeps").iterdir()
    content = json.loads(path.read_text())
    content["words"].remove("compile=update")
    path.write_text(json.dumps(content))
    assert ways(planned(tmp_path)) == {False}


def test_the_command_that_goes_on_is_the_one_that_was_given(tmp_path: Path) -> None:
    """A command of several sweeps adds words to some of them, and others would refuse them."""
    plan = planned(tmp_path, record=True)
    [record] = records(tmp_path / "results")
    assert record.words[-1:] == record.added == ("compile=update",)
    nothing_done = pd.DataFrame(columns=["trial_id", "status"])
    [command] = missing(nothing_done, [record], [], "results=r")["command"]
    words = [w for w in record.words if w not in plan.added and not w.startswith("results=")]
    assert command == shlex.join(["python", "-m", "sweeps", *words, "results=r"])


def test_studies_stay_as_their_trials_were_published(tmp_path: Path) -> None:
    """And the sweeps of the paper are compiled at this scale, but for mixtures."""
    study = f"sweep={STUDIES / 'noise' / 'sweep.yaml'}"
    plain = (study, "sweep=nesterov", "sweep=families")
    ways_of = {**dict.fromkeys(plain, False), "sweep=main": "update"}
    for sweep, way in ways_of.items():
        words = [sweep, "scale=tiny", "seeds=[0]", f"results={tmp_path}"]
        [plan] = plan_sweeps(parse_request(words))
        assert ways(plan) == {way}


def test_a_report_judges_sweeps_that_were_compiled_in_other_ways_apart(tmp_path: Path) -> None:
    """One sweep of each way at one scale: no view of a scope holds trials of both."""
    compiled = planned(tmp_path, record=True)
    (tmp_path / "results" / "sweeps" / "mine-micro.json").rename(tmp_path / "of_mine.json")
    plain = planned(tmp_path, "compile=false", record=True)
    of_mine = json.loads((tmp_path / "of_mine.json").read_text())
    other = tmp_path / "results" / "sweeps" / "main-micro.json"
    other.write_text(json.dumps({**of_mine, "sweep": "main", "label": "main-micro"}))
    for plan in (compiled, plain):
        for trial in plan.planned:
            delays = [int(trial.plan.is_delayed)]
            leave_finished(trial.folder, trial.config, trial_id=trial.plan.trial_id, delays=delays)
    results = tmp_path / "results"
    views = StoreViews(load(results), records(results))
    parts = {scope.title: scope for scope in scopes(views)}
    assert {*parts} == {"micro", "micro compile=update"}
    assert len({scope.folder for scope in parts.values()}) == 2
    for title, plan in (("micro", plain), ("micro compile=update", compiled)):
        seen = {*parts[title].whole().trials["trial_id"]}
        assert seen == {trial.plan.trial_id for trial in plan.planned}
        both = parts[title].of_sweeps(["mine", "main"])
        assert both is not None
        assert {*both.trials["trial_id"]} == seen
    whole = views.whole()
    assert (whole.trials.groupby("point")["compile"].nunique() == 1).all()
    assert len(whole.gaps) == 2 * len(compiled.points), "a pair has one way"
