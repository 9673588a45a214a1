"""What Error Feedback's look-ahead does where nothing is late: sync with λ (u_t − u_{t−1}) added.

    python -m findings.overshoot.look_ahead [results=results] [out=…/look_ahead_tiny.csv]

At `tiny`, Error Feedback with a coefficient above 1 ended below sync. A delay of one update is
worth a look-ahead of one: if that is all, sync with λ ends where the delayed run with λ + 1 ends,
which the sweep `overshoot` has at the same seeds. Then what that gains beyond sync has nothing to
do with a delay, and sync can have it too. Predicted before the run: so it is, for λ = 1 and 3 and
for AdamW, Muon and SOAP, to within 0.003 by the 95 % interval of the paired difference. Two trials
run at a time; a second call goes on.
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from typing_extensions import override

from pipegap.sweeps.request.files import scale_file
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.config.compose import compose
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.trial import run_trial

OPTIMIZERS, COEFFICIENTS, SEEDS = ("adamw", "muon", "soap"), (1, 3), range(8, 16)
AT_ONCE = 2
Point = tuple[str, int, int]


class LookAhead(ErrorFeedback):
    """Error Feedback's correction of every weight at every update, late or not."""

    @override
    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        super().apply(weights, update, [1] * len(delays))


def config_of(point: Point, results: str) -> dict[str, Any]:
    """The config of a trial of sync with this look-ahead."""
    optimizer, coefficient, seed = point
    words = [
        *(f"optimizer={optimizer}", "pipeline=sync", "correction=error_feedback"),
        *(f"correction.coefficient={coefficient}", f"seed={seed}", f"results={results}"),
    ]
    config = compose([*scale_file("tiny"), *words])
    name = f"{LookAhead.__module__}.{LookAhead.__qualname__}"
    return config | {"correction": {**config["correction"], "_target_": name}}


def final_loss(point: Point, results: str) -> dict[str, Any]:
    """Trains it, unless its result is there; a row of the table."""
    torch.set_num_threads(1)
    row = run_trial(config_of(point, results))
    columns = ("optimizer", "coefficient", "seed")
    kept = ("status", "final_val_loss", "trial_id", "git", "device_name")
    return {**dict(zip(columns, point, strict=True)), **{key: row[key] for key in kept}}


def main() -> None:
    """Writes the table of all."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    out = Path(given.get("out", CODE_ROOT / "findings" / "overshoot" / "look_ahead_tiny.csv"))
    points = [*product(OPTIMIZERS, COEFFICIENTS, SEEDS)]
    results = [given.get("results", "results")] * len(points)
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn"), os.nice, (10,)) as pool:
        rows = list(pool.map(final_loss, points, results))
    pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    main()
