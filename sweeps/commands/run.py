"""Runs what is missing of a sweep, then reports gaps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeps import record, tuning_report
from sweeps.expand import Trial, unique
from sweeps.precision import precision
from sweeps.price import price
from sweeps.request import Request, asked_words, request
from sweeps.shared import require_seen_by_nodes
from sweeps.standing import Standing, all_planned, look
from sweeps.store import failed, finished, held, require_writable
from trainer.errors import Stopped
from trainer.parts import open_data
from trainer.resources import require_device
from trainer.stopping import stopping

DONE, FAILED = 0, 1
LOOK_AGAIN = 5.0
"""Seconds between looks at trials that another driver runs."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a trial failed or is still to do, 143 stopped. Raises BadInput."""
    asked = request(asked_words(words))
    sweeps = look(asked)
    _print_plan(asked, sweeps)
    if asked.dry_run:
        return DONE
    require_ready(asked.results, all_planned(sweeps))
    record.write(asked, sweeps)
    sweeps, stopped = _run(asked, sweeps)
    exit_code = max(_report(asked, sweep) for sweep in sweeps)
    return Stopped.exit_code if stopped else exit_code


def _print_plan(asked: Request, sweeps: Sequence[Standing]) -> None:
    num_asked = sum(len(sweep.planned) for sweep in sweeps)
    lines = [*price(asked, all_planned(sweeps), num_asked)]
    for sweep in sweeps:
        lines += [f"sweep     {sweep.label}"] if len(sweeps) > 1 else []
        lines += [precision(asked.results, sweep), *sweep.estimate]
        lines += sweep.remarks if asked.dry_run else []
    print("\n".join(lines), flush=True)


def require_ready(results: Path, planned: Sequence[Trial]) -> None:
    """Raises BadInput if the store, this machine or the data is not what the trials need."""
    require_writable(results)
    todo = [trial for trial in planned if finished(trial) is None]
    distinct = {_needs(trial.config): trial.config for trial in todo}
    for config in distinct.values():
        if "RAY_ADDRESS" not in os.environ:  # else the cluster's resources count, in sweeps.run
            require_device(config["device"])
        open_data(config)


def _needs(config: Mapping[str, Any]) -> str:
    """What a trial needs of the machine and the data."""
    return json.dumps([config[key] for key in ("device", "data", "seq_len", "model")])


def _run(asked: Request, sweeps: list[Standing]) -> tuple[list[Standing], bool]:
    """Rounds of all that can run: what choosing and judging points needs next, and their arms.

    Each trial runs here once at most; those that another driver runs are waited for, and run here
    if it dies. Returns the sweeps as they are at the end, and whether a signal asked to stop.
    """
    attempted: set[str] = set()
    if not _missing(sweeps, attempted):
        return sweeps, False
    from sweeps.display import Display
    from sweeps.run import cluster, run

    # Ray takes the signals over when it starts, and so stopping takes them back after that.
    with cluster(), stopping("running trials save a checkpoint and stop") as asked_to_stop:
        require_seen_by_nodes(asked.results)
        while (missing := _missing(sweeps, attempted)) and not asked_to_stop():
            if todo := [trial for trial in missing if not held(trial)]:
                planned = all_planned(sweeps)
                with Display(
                    asked.label, planned, todo, asked.results, asked_to_stop, Console()
                ) as display:
                    run(todo, asked.gpus_per_trial, display, asked_to_stop, asked.tracking)
                attempted |= {trial.plan.trial_id for trial in todo if not held(trial)}
            else:
                time.sleep(LOOK_AGAIN)
            before, sweeps = sweeps, [sweep.again() for sweep in sweeps]
            record.write(
                asked, [new for old, new in zip(before, sweeps, strict=True) if new != old]
            )
        return sweeps, asked_to_stop()


def _missing(sweeps: Sequence[Standing], attempted: set[str]) -> list[Trial]:
    known = unique(trial for sweep in sweeps for trial in sweep.known)
    return [t for t in known if t.plan.trial_id not in attempted and finished(t) is None]


def _report(asked: Request, standing: Standing) -> int:
    """The report is of the arms at the chosen values: what tuning tried beside is in tuned.csv."""
    from analysis.report import report

    if len(asked.sweeps) > 1:
        print(f"\nsweep {standing.label}")
    sweep, out = standing.sweep, asked.results / "reports" / standing.label
    planned = unique(standing.planned)
    lost = [trial for trial in planned if failed(trial)]
    for trial in lost:
        print(f"failed: {trial.arm} seed {trial.config['seed']}, see {trial.folder}/result.json")
    print(report(asked.results, out, standing.label))
    if sweep.tune:
        print(tuning_report.write(sweep, [point.tuned for point in standing.points], out))
    print(f"rule for the verdict, written before the run: {sweep.verdict}")
    left = sum(finished(trial) is None for trial in planned) - len(lost)
    if left:
        print(f"stopped with {left} trials to go: the same command goes on with them")
    return FAILED if lost or left else DONE
