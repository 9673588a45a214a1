"""The time left of recorded jobs: what a log would have said, and what was true."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from pipegap.sweeps.plan.devices import core, counted_seconds
from pipegap.sweeps.plan.paces import ASSUMED_START
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Expected
from pipegap.sweeps.view.progress import COLD, Progress, State, Warm
from pipegap.trainer.base.status import Status
from tests.support.zen_4 import ZEN_4

JOBS = Path(__file__).parent / "jobs"
COMPILER = 18.5
"""Seconds that a plan says of an empty cache, on the two cores of these jobs."""
KEY = ["optimizer", "arm", "seed", "num_updates"]


def published() -> pd.DataFrame:
    """The front page's own job, 60 trials with a full cache of the compiler."""
    job = pd.read_csv(Path(__file__).parents[3] / "findings/main/job.csv")
    end = pd.to_datetime(job.finished_at).map(pd.Timestamp.timestamp)
    start = end - job.wall_seconds
    return job[KEY].assign(start=start - start.min(), end=end - start.min())


def state(row: Mapping[str, float], now: float) -> State:
    """What a driver knew of a trial; of the published job, no row of its first updates."""
    if now < row["start"]:
        return State()
    seconds = min(now, row["end"]) - row["start"]
    status = Status.RUNNING if now < row["end"] else Status.COMPLETED
    known = [(0, 0.0)]
    if "first_two" in row:
        known += [(2, row["first_two"]), (row["evaluated"], row["evaluated_at"])]
    known.append((row["num_updates"], row["end"] - row["start"]))
    after = next(i for i, (_, at) in enumerate(known) if i and at >= seconds)
    (done, at), (more, later) = known[after - 1 : after + 1]
    num_done = done + (more - done) * (seconds - at) / (later - at) if more > 2 else 0
    passed = [Warm(*point) for point in known[1:-1] if point[1] <= seconds]
    return State(status, int(num_done), wall_seconds=seconds, warm=[COLD, *passed][-1])


@pytest.mark.parametrize("name", ["published"])
def test_the_time_left_is_within_a_quarter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipegap.sweeps.plan.devices.device_of", lambda config: core(ZEN_4, config["compile"])
    )
    job = published() if name == "published" else pd.read_csv(JOBS / f"{name}.csv")
    rows = {tuple(row[key] for key in KEY): row for row in job.to_dict("records")}
    seeds = f"seeds={sorted({*job.seed})}"
    request = parse_request(["sweep=main", "scale=tiny", seeds, f"results={tmp_path}"])
    trials = {
        (t.config["choices"]["optimizer"], t.arm, t.config["seed"], t.plan.num_updates): t
        for t in all_planned(plan_sweeps(request))
    }
    assert trials.keys() == rows.keys()
    prices = {
        t.trial_id: ASSUMED_START + counted_seconds(t.config, t.plan) for t in trials.values()
    }
    expected = Expected(prices, COMPILER if name == "cold" else 0.0)
    progress, last = Progress([*trials.values()], expected=expected), job.end.max()
    for share in (0.2, 0.5, 0.8):
        now = share * last
        for key, trial in trials.items():
            progress.states[trial.trial_id] = state(rows[key], now)
        left = progress.seconds_left
        assert left is not None
        print(name, share, left / (last - now))
        assert 0.75 < left / (last - now) < 1.25
