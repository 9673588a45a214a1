"""Runs what is missing of a sweep, then reports gaps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from sweeps.expand import Trial, points, unique
from sweeps.price import price
from sweeps.request import Request, parser, request
from sweeps.shared import require_seen_by_nodes
from sweeps.store import failed, finished, held, require_writable
from sweeps.tune import Tuned, check_reach, tune
from sweeps.tuning_report import estimate, remarks, write
from trainer.errors import Stopped
from trainer.parts import open_data
from trainer.resources import require_device
from trainer.stopping import stopping

DONE, FAILED = 0, 1
LOOK_AGAIN = 5.0
"""Seconds between looks at trials that another driver runs."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a trial failed or is still to do, 143 stopped. Raises BadInput."""
    asked = request(parser().parse_args(words).keys)
    tuned = _prepare(asked)
    if asked.dry_run:
        return DONE
    _check(asked, unique(trial for point in tuned for trial in point.planned))
    tuned, stopped = _run(asked, tuned)
    exit_code = _report(asked, tuned)
    return Stopped.exit_code if stopped else exit_code


def _prepare(asked: Request) -> list[Tuned]:
    """All that can be known to be wrong is found here, before any trial starts."""
    swept = points(asked.sweep, asked.results)
    check_reach(asked.sweep, swept)
    tuned = [tune(asked.sweep, point) for point in swept]
    planned = [trial for point in tuned for trial in point.planned]
    lines = [price(unique(planned), len(planned)), *estimate(asked.sweep, tuned)]
    print("\n".join([*lines, *(remarks(asked.sweep, tuned) if asked.dry_run else [])]), flush=True)
    return tuned


def _check(asked: Request, planned: Sequence[Trial]) -> None:
    require_writable(asked.results)
    todo = [trial for trial in planned if finished(trial) is None]
    distinct = {_needs(trial.config): trial.config for trial in todo}
    for config in distinct.values():
        if "RAY_ADDRESS" not in os.environ:  # else the cluster's resources count, in sweeps.run
            require_device(config["device"])
        open_data(config)


def _needs(config: Mapping[str, Any]) -> str:
    """What a trial needs of the machine and the data."""
    return json.dumps([config[key] for key in ("device", "data", "seq_len", "model")])


def _run(asked: Request, tuned: list[Tuned]) -> tuple[list[Tuned], bool]:
    """Rounds of all that can run: what tuning needs next, and the arms of settled points.

    Each trial runs here once at most; those that another driver runs are waited for, and run here
    if it dies. Returns the points as they are at the end, and whether a signal asked to stop.
    """
    attempted: set[str] = set()
    if not _missing(tuned, attempted):
        return tuned, False
    from sweeps.display import Display
    from sweeps.run import cluster, run

    # Ray takes the signals over when it starts, and so stopping takes them back after that.
    with cluster(), stopping("running trials save a checkpoint and stop") as asked_to_stop:
        require_seen_by_nodes(asked.results)
        while (missing := _missing(tuned, attempted)) and not asked_to_stop():
            if todo := [trial for trial in missing if not held(trial)]:
                with Display(todo, Console()) as display:
                    run(todo, asked.gpus_per_trial, display, asked_to_stop)
                attempted |= {trial.plan.trial_id for trial in todo if not held(trial)}
            else:
                time.sleep(LOOK_AGAIN)
            tuned = [point if point.settled else tune(asked.sweep, point.point) for point in tuned]
        return tuned, asked_to_stop()


def _missing(tuned: Sequence[Tuned], attempted: set[str]) -> list[Trial]:
    known = unique(trial for point in tuned for trial in point.known)
    return [t for t in known if t.plan.trial_id not in attempted and finished(t) is None]


def _report(asked: Request, tuned: Sequence[Tuned]) -> int:
    """The report is of the arms at the chosen values: what tuning tried beside is in tuned.csv."""
    from analysis.report import report

    sweep, out = asked.sweep, asked.results / "reports" / asked.label
    planned = unique(trial for point in tuned for trial in point.planned)
    lost = [trial for trial in planned if failed(trial)]
    for trial in lost:
        print(f"failed: {trial.arm} seed {trial.config['seed']}, see {trial.folder}/result.json")
    compared = {trial.plan.trial_id for point in tuned if point.settled for trial in point.arms}
    print(report(asked.results, out, compared, remarks(sweep, tuned)))
    if sweep.tune:
        print(write(sweep, tuned, out))
    print(f"rule for the verdict, written before the run: {sweep.verdict}")
    left = sum(finished(trial) is None for trial in planned) - len(lost)
    if left:
        print(f"stopped with {left} trials to go: the same command goes on with them")
    return FAILED if lost or left else DONE
