"""Writes results folders whose numbers the test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipegap.trainer.store.records import FORMAT

SYNC = {"_target_": "pipegap.trainer.schedules.sync", "num_stages": 1, "num_microbatches": 1}
TWO_BUFFERED = {
    "_target_": "pipegap.trainer.schedules.pipedream_2bw",
    "num_stages": 1,
    "num_microbatches": 1,
    "synchronous_start": 0,
    "synchronous_cooldown": 0,
}
NONE = {"_target_": "pipegap.trainer.corrections.none.NoCorrection"}
FEEDBACK = {
    "_target_": "pipegap.trainer.corrections.error_feedback.ErrorFeedback",
    "coefficient": 1.0,
}
Node = Mapping[str, Any]
ARMS: Mapping[str, tuple[Node, Node]] = {
    "sync": (SYNC, NONE),
    "delay": (TWO_BUFFERED, NONE),
    "delay_ef": (TWO_BUFFERED, FEEDBACK),
}

LOSSES: dict[str, list[float | None]] = {
    "sync": [1.70, 1.69, 1.71],
    "delay": [2.2, 2.21, 2.19],
    "delay_ef": [1.9, 1.91, 1.92],
}


def config(arm: str = "sync", *, optimizer: str = "adamw", seed: int = 0) -> dict[str, Any]:
    """What a resolved config looks like, in short."""
    pipeline, correction = ARMS[arm]
    return {
        "model": {
            "_target_": "pipegap.trainer.models.llama.Llama",
            "vocab_size": 257,
            "hidden_size": 96,
        },
        "data": {"_target_": "pipegap.trainer.data.shards.Prepared", "path": "data/wiki"},
        "optimizer": {"_target_": f"trainer.optimizers.{optimizer}", "lr": 0.004, "momentum": 0.5},
        "pipeline": dict(pipeline),
        "correction": dict(correction),
        "lr_schedule": {"_target_": "pipegap.trainer.lr.cosine"},
        "runner": "emulated",
        "seed": seed,
        "batch_size": 16,
        "seq_len": 128,
        "clip_norm": 1.0,
        "num_updates": 400,
        "tokens_per_parameter": None,
        "checkpoint_every": 100,
        "save_final": False,
        "results": "results",
        "out": None,
    }


def result(settings: dict[str, Any], loss: float | None, **changes: Any) -> dict[str, Any]:
    """A result with that final loss; without one the trial diverged."""
    delay = 0 if settings["pipeline"]["_target_"].endswith(".sync") else 1
    return {
        "status": "diverged" if loss is None else "completed",
        "final_val_loss": loss,
        "diverged_at": 7 if loss is None else None,
        "num_updates": 7 if loss is None else settings["num_updates"] or 400,
        "num_parameters": 450_000,
        "tokens": 819_200,
        "epochs": 0.2,
        "wall_seconds": 40.0,
        "tokens_per_second": 20_000.0,
        "peak_memory_bytes": 10**9,
        "delays": [delay] * settings["pipeline"]["num_stages"],
        "seed": settings["seed"],
        "versions": {"torch": "2.13.0"},
        "git": "abc",
        "data_hash": "d" * 64,
        "trainer_version": 1,
        **changes,
    }


def write(
    store: Path, settings: dict[str, Any], outcome: dict[str, Any] | None, *, curve: bool = False
) -> Path:
    """One trial's folder; without an outcome it is unfinished."""
    trials = store / "trials"
    number = len(list(trials.iterdir())) if trials.exists() else 0
    return write_in(trials / f"{number:04d}", settings, outcome, curve=curve)


def write_in(
    folder: Path, settings: dict[str, Any], outcome: dict[str, Any] | None, *, curve: bool = False
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings))
    if outcome is not None:
        named = {"trial_id": folder.name, **outcome}
        (folder / "result.json").write_text(json.dumps(named))
        if curve:
            (folder / "metrics.jsonl").write_text(_metrics(outcome))
    return folder


def _metrics(outcome: dict[str, Any]) -> str:
    end = outcome["final_val_loss"] or 3.0
    rows: list[dict[str, Any]] = [
        {"update": t, "train_loss": 2.0} for t in range(outcome["num_updates"])
    ]
    for row in rows[99::100] + rows[-1:]:
        row["val_loss"] = end + 2.0 * (1 - (row["update"] + 1) / outcome["num_updates"])
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_arms(
    store: Path, losses: dict[str, list[float | None]], *, optimizer: str = "adamw"
) -> None:
    """A trial for every arm and seed; None diverges."""
    for arm, of_seeds in losses.items():
        put(store, arm, of_seeds, optimizer=optimizer)


def put(
    store: Path,
    arm: str,
    losses: Sequence[float | None],
    *,
    optimizer: str = "adamw",
    correction: dict[str, Any] | None = None,
    **keys: Any,
) -> None:
    """One trial per seed; `keys` are the optimizer's, or the trial's where it has them."""
    for seed, loss in enumerate(losses):
        settings = config(arm, optimizer=optimizer, seed=seed)
        for key, value in keys.items():
            (settings if key in settings else settings["optimizer"])[key] = value
        settings["correction"] |= correction or {}
        write(store, settings, result(settings, loss), curve=True)


def late(
    store: Path,
    delay: int,
    losses: Sequence[float | None],
    *,
    optimizer: str = "adamw",
    correction: Mapping[str, Any] = {},
) -> None:
    """One trial per seed, of which all gradients are so many updates late; one update: by 2BW."""
    constant = {"_target_": "pipegap.trainer.schedules.constant_delay", "delay": delay}
    for seed, loss in enumerate(losses):
        settings = config("delay", optimizer=optimizer, seed=seed)
        settings["pipeline"] |= constant if delay > 1 else {}
        settings["correction"] |= correction
        write(store, settings, result(settings, loss, delays=[delay]))


def record(store: Path, sweep: str, scale: str, ids: list[str], **changes: Any) -> None:
    asked = {"arm": "delay", "seed": 0, "tokens": 1000, "flops": 1e6, "seconds": 1800.0}
    content = {
        **{"format": FORMAT, "sweep": sweep, "scale": scale, "label": f"{sweep}-{scale}"},
        **{"words": [f"sweep={sweep}", f"scale={scale}"], "verdict": "the rule of its file"},
        **{"arms": ["sync", "delay"], "seeds": [0, 1], "settled": True, "remarks": ["chosen"]},
        **{"compared": ids, "trials": dict.fromkeys(ids, asked), **changes},
    }
    (store / "sweeps").mkdir(exist_ok=True)
    (store / "sweeps" / f"{sweep}-{scale}.json").write_text(json.dumps(content))


def ids(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "trials").iterdir())


# Trials to be paired, and what is found of an arm.


def one(table: pd.DataFrame, arm: str, optimizer: str = "adamw") -> Any:
    rows = table[(table["arm"] == arm) & (table["optimizer"] == optimizer)]
    assert len(rows) == 1
    return rows.iloc[0]


def add(store: Path, arm: str, loss: float | None, seed: int = 0, **changes: Any) -> None:
    """A trial whose pipeline or data path (`path`) or result is changed."""
    settings = config(arm, seed=seed)
    settings["data"]["path"] = changes.pop("path", "data/wiki")
    for key in ("num_stages", "num_microbatches", "_target_"):
        if key in changes:
            settings["pipeline"][key] = changes.pop(key)
    write(store, settings, result(settings, loss, **changes))
