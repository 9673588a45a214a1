"""A store that version 0.2 made opens, reports and advises, choices dropped since included."""

import json
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.advice.advise import verdict_rows
from pipegap.analysis.table.load import load
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.base.places import CODE_ROOT
from tests.support.pages import FEW, with_figures

FILES = CODE_ROOT / "tests" / "stores" / "v0_2.jsonl"
"""The text files of its store: five sweeps of tiny models, their records and finished trials."""
GAPS = [
    ("adamw", "delay", 3.3474, 3.6243, 1),  # micro_moe, with diagnostics of its routing
    ("adamw", "delay", 3.4586, 3.6440, 2),
    ("adamw", "delay", 3.4890, 3.6425, 1),  # compile=update, by preference
    ("adamw", "delay", 3.4890, 3.6425, 1),  # shard_optimizer=true
    ("adamw", "delay", 3.6819, 3.9385, 1),  # nanogpt
    ("adamw", "delay_ef", 3.4586, 3.7231, 2),
    ("sophia", "delay", 3.2803, 3.4665, 2),
    ("sophia", "delay_ef", 3.2803, 3.5056, 2),
]
"""Optimizer, arm, mean losses of sync and of the arm, and pairs, as version 0.2 reported them."""
DIFFERENCE = [0.1862, 0.0705, 0.3019]
"""What Sophia loses in the time of ZB-V, with its interval, as version 0.2 advised."""
DROPPED = [
    ("optimizer=sophia", 8, "optimizer=sophia"),
    ("num_replicas=2", 2, "shard_optimizer=True"),
    ("model=nanogpt", 2, "model=nanogpt"),
]
"""Selections of its trials that this version cannot run, their number, and what was dropped."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for line in FILES.read_text().splitlines():
        file = json.loads(line)
        path = tmp_path / file["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["text"])
    return tmp_path


def test_it_reports_as_before(store: Path) -> None:
    out = store / "report"
    with with_figures(FEW):
        assert analysis(["report", f"results={store}", f"out={out}"]) == 0
    gaps = pd.read_csv(out / "gaps.csv").query("n > 0")
    columns = gaps[["optimizer", "arm", "loss_sync", "loss", "n"]].round(4)
    assert sorted(columns.itertuples(index=False, name=None)) == GAPS
    assert len(pd.read_csv(out / "trials.csv")) == 24


def test_it_advises_as_before(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analysis(["advise", f"results={store}", "stages=4", "microbatches=8"]) == 0
    assert "decide nothing" in capsys.readouterr().out, "as version 0.2 did not say of short runs"
    rows = verdict_rows(load(store), stages=4, microbatches=8).set_index(["optimizer", "rival"])
    told = rows.loc[("sophia", "ZB-V"), ["difference", "low", "high"]]
    assert [*told] == pytest.approx(DIFFERENCE, abs=5e-5)


def test_it_lists_every_trial(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweeps(["list", f"results={store}"]) == 0
    assert capsys.readouterr().out.count("completed") == 24


@pytest.mark.parametrize(("selection", "number", "dropped"), DROPPED)
def test_its_dropped_trials_are_not_run_again(
    store: Path, capsys: pytest.CaptureFixture[str], selection: str, number: int, dropped: str
) -> None:
    assert sweeps(["rerun", f"results={store}", selection, "force=true"]) == 1
    lines = capsys.readouterr().err.splitlines()
    says = f"({dropped}: dropped in 0.3.0; its trials are still read; stay with 0.2 to run it)"
    assert [line.endswith(says) for line in lines] == [True] * number
