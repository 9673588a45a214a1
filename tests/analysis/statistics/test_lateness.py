"""How near late updates are to the fresh ones, on measurements with known means."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipegap.analysis import load
from pipegap.analysis.statistics.diagnostics import compared, lateness
from tests.support.synthetic_store import config, result, write

Measured = list[tuple[float, float] | None]
"""Cosine and error of some updates; None: not measured there."""


def add(store: Path, measured: Measured, *, optimizer: str = "adamw", seed: int = 0) -> None:
    """A delayed trial with these measurements, and its synchronous partner."""
    for arm in ("sync", "delay"):
        settings = config(arm, optimizer=optimizer, seed=seed)
        folder = write(store, settings, result(settings, 1.0))
    rows = [
        {"update": t, "train_loss": 1.0}
        | ({} if measurement is None else {"diagnostics": {"all": of_model(*measurement)}})
        for t, measurement in enumerate(measured)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def of_model(cosine: float, error: float) -> dict[str, float]:
    return {"update_cosine": cosine, "update_error": error}


def test_means_are_over_the_measured_updates_that_are_late(tmp_path: Path) -> None:
    add(tmp_path, [(0.9999999, 0.0), None, (0.5, 0.8), None, (0.7, 0.4), None])
    (row,) = lateness(load(tmp_path)).to_dict("records")
    assert row["measured"] == 2
    assert row["cosine"] == pytest.approx(0.6)
    assert row["error"] == pytest.approx(0.6)
    assert (row["optimizer"], row["arm"], row["seed"]) == ("adamw", "delay", 0)


def test_trials_that_measured_no_late_update_have_no_row(tmp_path: Path) -> None:
    add(tmp_path, [None, None])
    add(tmp_path, [(1.0, 0.0), (1.0, 0.0)], seed=1)
    assert lateness(load(tmp_path)).empty
    assert compared(lateness(load(tmp_path))).empty


def test_optimizers_are_compared_by_seed(tmp_path: Path) -> None:
    cosines = {"adamw": [0.9, 0.8, 0.85, 0.7], "muon": [0.95, 0.9, 0.87]}
    for optimizer, of_seeds in cosines.items():
        for seed, cosine in enumerate(of_seeds):
            add(tmp_path, [(cosine, 0.1)], optimizer=optimizer, seed=seed)
    (row,) = compared(lateness(load(tmp_path))).to_dict("records")
    paired = np.subtract(cosines["adamw"][:3], cosines["muon"])
    low, high = stats.t.interval(0.95, 2, paired.mean(), stats.sem(paired))
    assert (row["optimizer"], row["other"], row["n"]) == ("adamw", "muon", 3)
    assert row["difference"] == pytest.approx(paired.mean())
    assert (row["low"], row["high"]) == (pytest.approx(low), pytest.approx(high))
