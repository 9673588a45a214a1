"""The record of a sweep, for those who read a store: what was asked for, and which trials answer.

`<results>/sweeps/<label>.json` holds what the last command planned: `format` (2), `sweep`, `scale`,
`label`, `words` (of the command line, and the preferred ones that were added), `verdict` (the rule,
empty if the sweep has none), `arms`, `seeds`, `settled` (nothing is left to tune or to judge),
`remarks`, `compared` (ids of the trials in its report) and `trials`: id → `arm`, `seed`, `tokens`,
`flops` and `seconds`, the expected time with start and evaluation, null if no trial of its shape
has finished.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.table.records import FORMAT, RECORD, with_present_scale
from sweeps.plan.pricing import Prices
from sweeps.plan.sweep_plan import SweepPlan, all_planned
from sweeps.request.command_line import Request
from sweeps.request.expand import Trial
from sweeps.store.results import clean_old
from sweeps.store.store import SweepStore
from trainer.base.atomic import SUFFIX, write_json
from trainer.base.errors import BadInput
from trainer.folder.files import Damaged
from trainer.folder.wellformed import read

FOLDER = "sweeps"


def write(request: Request, sweeps: Sequence[SweepPlan], store: SweepStore) -> None:
    """Replace the record of each sweep; raise BadInput if the store cannot be written."""
    prices = Prices.measured(request.results, all_planned(sweeps))
    for sweep in sweeps:
        path = request.results / FOLDER / f"{sweep.label}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _keep_former(path, store)
            write_json(path, record(request, sweep, prices))
            clean_old(path.parent, f".*{SUFFIX}", newest=path)
            store.push(path)
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("results", request.results, allowed) from None


def _keep_former(path: Path, store: SweepStore) -> None:
    """Copy the record at `path` to its label of today, if a scale has the label's name since.

    `main-tiny` of a store from before version 0.2 would be lost to the `main-tiny` of today.
    """
    try:
        former = with_present_scale(read(path, RECORD))
    except (Damaged, FileNotFoundError):
        return
    own = path.with_name(f"{former['label']}.json")
    if own != path and not own.exists():
        write_json(own, {**former, "format": FORMAT})
        store.push(own)


def record(request: Request, sweep: SweepPlan, prices: Prices) -> dict[str, Any]:
    """Return what the record of a sweep holds."""
    return {
        "format": FORMAT,
        "sweep": sweep.label.removesuffix(f"-{request.scale}"),
        "scale": request.scale,
        "label": sweep.label,
        "words": [*request.words, *sweep.added],
        "verdict": sweep.sweep.verdict or "",
        "arms": [*sweep.sweep.arms],
        "seeds": sweep.sweep.seeds,
        "settled": sweep.settled,
        "remarks": sweep.remarks,
        "compared": sorted(sweep.compared),
        "trials": {trial.plan.trial_id: _trial(trial, prices) for trial in sweep.planned},
    }


def _trial(trial: Trial, prices: Prices) -> dict[str, Any]:
    return {
        "arm": trial.arm,
        "seed": trial.config["seed"],
        "tokens": trial.plan.tokens,
        "flops": trial.plan.flops,
        "seconds": prices.measured_seconds(trial),
    }
