"""The record of a sweep, for those who read a store: what was asked for, and which trials answer.

`<results>/sweeps/<label>.json` holds what the last command planned: `sweep`, `scale`, `label`,
`words` (of the command line), `verdict` (the rule), `arms`, `seeds`, `settled` (nothing is left to
tune or to judge), `remarks`, `compared` (ids of the trials in its report) and `trials`: id → `arm`,
`seed`, `tokens`, `flops` and `seconds`, the expected time, null if no trial of its shape has
finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeps.plan.pricing import measured
from sweeps.plan.sweep_plan import SweepPlan, all_planned
from sweeps.request.command_line import Request
from sweeps.request.expand import Trial
from sweeps.store.leftovers import clean_old
from sweeps.store.throughput import Throughput
from trainer.base.atomic import SUFFIX, write_json
from trainer.base.errors import BadInput

FOLDER = "sweeps"


def write(asked: Request, sweeps: Sequence[SweepPlan]) -> None:
    """Replaces the record of each sweep; raises BadInput if the store cannot be written."""
    speeds = measured(asked.results, all_planned(sweeps))
    for sweep in sweeps:
        path = asked.results / FOLDER / f"{sweep.label}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, _record(asked, sweep, speeds))
            clean_old(path.parent, f".*{SUFFIX}", newest=path)
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("results", asked.results, allowed) from None


def _record(asked: Request, sweep: SweepPlan, speeds: Throughput) -> dict[str, Any]:
    return {
        "sweep": sweep.label.removesuffix(f"-{asked.scale}"),
        "scale": asked.scale,
        "label": sweep.label,
        "words": asked.words,
        "verdict": sweep.sweep.verdict,
        "arms": [*sweep.sweep.arms],
        "seeds": sweep.sweep.seeds,
        "settled": sweep.settled,
        "remarks": sweep.remarks,
        "compared": sorted(sweep.compared),
        "trials": {trial.plan.trial_id: _trial(trial, speeds) for trial in sweep.planned},
    }


def _trial(trial: Trial, speeds: Throughput) -> dict[str, Any]:
    speed = speeds.of(trial.config)
    return {
        "arm": trial.arm,
        "seed": trial.config["seed"],
        "tokens": trial.plan.tokens,
        "flops": trial.plan.flops,
        "seconds": trial.plan.tokens / speed if speed else None,
    }
