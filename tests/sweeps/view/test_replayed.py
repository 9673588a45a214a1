"""The time left of recorded jobs: what a log would have said, and what was true."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from pipegap.sweeps.plan import devices
from pipegap.sweeps.plan.devices import core, counted_seconds
from pipegap.sweeps.plan.pace import ASSUMED_START
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Expected
from pipegap.sweeps.view.progress import Progress, State
from pipegap.trainer.base.status import Status
from tests.support.zen_4 import ZEN_4

MAIN = Path(__file__).parents[3] / "findings/main"
KEY = ["optimizer", "arm", "seed", "num_updates"]
JOBS: Mapping[str, Sequence[str]] = {
    "job": (),
    "job_0.2": (),  # of a Zen 5, eight seeds
    "trials_tiny": ("num_updates=1600", "compile=false", "eval_tokens=null", "advice=null"),
}
"""Table of a job of two processes → words beside those of its sweep."""


def state(start: float, end: float, num_updates: int, now: float) -> State:
    """What a driver knew of a trial, whose updates took equally long."""
    if now < start:
        return State()
    share = min(1.0, (now - start) / (end - start))
    status = Status.RUNNING if share < 1 else Status.COMPLETED
    return State(status, int(share * num_updates), wall_seconds=share * (end - start))


@pytest.mark.parametrize("name", JOBS)
def test_the_time_left_is_within_a_quarter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "device_of", lambda config: core(ZEN_4, config["compile"]))
    monkeypatch.setattr(devices, "_counted", cache(devices._counted.__wrapped__))
    job = pd.read_csv(MAIN / f"{name}.csv")
    ends = pd.to_datetime(job.finished_at, format="mixed", utc=True).map(pd.Timestamp.timestamp)
    starts = ends - job.wall_seconds
    times = dict(
        zip(
            zip(*(job[key] for key in KEY), strict=True),
            zip(starts, ends, strict=True),
            strict=True,
        )
    )
    seeds = f"seeds={sorted({*job.seed})}"
    request = parse_request(["sweep=main", "scale=tiny", *JOBS[name], seeds, f"results={tmp_path}"])
    trials = {
        (t.config["choices"]["optimizer"], t.arm, t.config["seed"], t.plan.num_updates): t
        for t in all_planned(plan_sweeps(request))
    }
    assert trials.keys() == times.keys()
    seconds = {
        t.trial_id: ASSUMED_START + counted_seconds(t.config, t.plan) for t in trials.values()
    }
    progress = Progress([*trials.values()], expected=Expected(seconds, compiler=0.0))
    for share in (0.2, 0.5, 0.8):
        now = starts.min() + share * (ends.max() - starts.min())
        for key, trial in trials.items():
            progress.states[trial.trial_id] = state(*times[key], trial.plan.num_updates, now)
        left = progress.seconds_left
        assert left is not None
        assert 0.75 < left / (ends.max() - now) < 1.25
