"""The record of a sweep: what was asked of it and which trials answer, for whoever reads a store.

`<results>/sweeps/<label>.json` holds what the last command planned: `sweep`, `scale`, `label`,
`words` (of the command line), `verdict` (the rule), `arms`, `seeds`, `settled` (nothing is left to
tune or to judge), `remarks`, `compared` (ids of the trials that its report is of) and `trials`: by
id `arm`, `seed`, `tokens`, `flops`, and `seconds` that it is expected to take, null where no trial
of its shape has finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeps.expand import Trial
from sweeps.price import measured
from sweeps.request import Request
from sweeps.standing import Standing, all_planned
from sweeps.throughput import Throughput
from trainer.atomic import write_json
from trainer.errors import BadInput

FOLDER = "sweeps"


def write(asked: Request, sweeps: Sequence[Standing]) -> None:
    """Replaces the record of each; raises BadInput for a store that cannot be written."""
    speeds = measured(asked.results, all_planned(sweeps))
    for sweep in sweeps:
        path = asked.results / FOLDER / f"{sweep.label}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, _record(asked, sweep, speeds))
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("results", asked.results, allowed) from None


def _record(asked: Request, sweep: Standing, speeds: Throughput) -> dict[str, Any]:
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
