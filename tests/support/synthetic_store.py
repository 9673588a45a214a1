"""Results folders whose numbers the test chooses: trials, whole sweeps, and answers to tasks."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
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


# Stores as the sweeps of the paper's figures leave them: few seeds, losses from a formula.

Settings = Mapping[str, Any]

OTHER = "trainer.corrections."
CORRECTED = {
    f"delay_ef({value})": (TWO_BUFFERED, FEEDBACK | {"coefficient": value}) for value in (0.25, 0.5)
}
TAYLOR = {
    f"delay_taylor({value})": (
        TWO_BUFFERED,
        {"_target_": f"{OTHER}taylor.Taylor", "coefficient": value, "decay": 0.0},
    )
    for value in (100.0, 1000.0)
}
BY_GRADIENT = {"_target_": f"{OTHER}error_feedback_gradient.Feedback", "coefficient": 1.0}
STARTED = TWO_BUFFERED | {"synchronous_start": 0.1}
PIPEDREAM = TWO_BUFFERED | {"_target_": "trainer.schedules.pipedream"}
CONSTANT = {
    f"constant_delay({delay})": (
        {**SYNC, "_target_": "trainer.schedules.constant_delay", "delay": delay},
        NONE,
    )
    for delay in (2, 4)
}
ALL_ARMS = {
    **ARMS,
    **CONSTANT,
    **CORRECTED,
    **TAYLOR,
    "delay_ef_gradient": (TWO_BUFFERED, BY_GRADIENT),
    "delay+start(0.1)": (STARTED, NONE),
    "delay_ef+start(0.1)": (STARTED, FEEDBACK),
    "delay+cooldown(0.1)": (TWO_BUFFERED | {"synchronous_cooldown": 0.1}, NONE),
    **{
        f"{name}{p}": (pipeline | {"num_stages": p, "num_microbatches": m}, NONE)
        for p in (2, 4)
        for name, pipeline, m in (
            ("sync", SYNC, 1),
            ("delay", TWO_BUFFERED, 8),
            ("pd", PIPEDREAM, 1),
        )
    },
}
PAIR, TRIPLE = ("sync", "delay"), ("sync", "delay", "delay_ef")


def grid(**values: Iterable[Any]) -> list[Settings]:
    """Every combination; `__` stands for the dot of a key."""
    names = [name.replace("__", ".") for name in values]
    return [dict(zip(names, combination, strict=True)) for combination in product(*values.values())]


SCHEDULES: list[Settings] = [
    {"lr_schedule": {"_target_": "trainer.lr.cosine", "warmup": 0.1, "final": 0.1}},
    {"lr_schedule": {"_target_": "trainer.lr.wsd", "warmup": 0.1}},
]
SWEEPS: Mapping[str, tuple[list[Settings], tuple[str, ...]]] = {
    "optimizers": ([{}], TRIPLE),
    "synchronous_start": ([{}], (*TRIPLE, "delay+start(0.1)")),
    "momentum": (grid(optimizer__momentum=[0.8, 0.9, 0.95]), PAIR),
    "horizon": (grid(num_updates=[400, 200, 100]), TRIPLE),
    "moe_horizon": (grid(num_updates=[400, 200, 100]), TRIPLE),
    "moe_learning_rate": (grid(num_updates=[400, 200], optimizer__lr=[0.002, 0.004]), PAIR),
    "stages": ([{}], ("sync2", "sync4", "delay2", "delay4", "pd2", "pd4")),
    "learning_rate": (grid(optimizer__lr=[0.002, 0.004, 0.008]), TRIPLE),
    "weight_decay": (grid(optimizer__weight_decay=[0.0, 0.1]), PAIR),
    "warmup": (grid(lr_schedule__warmup=[0, 0.05, 0.1]), PAIR),
    "clip": (grid(clip_norm=[0.1, 1.0, None]), PAIR),
    "lr_schedule": (SCHEDULES, PAIR),
    "variance_decay": (grid(optimizer__variance_decay=[0.9, 0.95, 0.99]), PAIR),
    "batch_size": (grid(batch_size=[8, 16], optimizer__lr=[0.002, 0.004, 0.008]), PAIR),
    "taylor": ([{}], (*PAIR, *TAYLOR)),
    "coefficient": ([{}], (*TRIPLE, *CORRECTED, *CONSTANT)),
    "staleness": ([{}], ("sync", "delay+start(0.1)", "delay_ef+start(0.1)")),
    "cooldown": ([{}], (*PAIR, "delay+cooldown(0.1)", "delay_ef")),
    "gradient_feedback": ([{}], (*TRIPLE, "delay_ef_gradient")),
    "spike": (grid(optimizer__variance_decay=[0.9, 0.99]), (*PAIR, "delay+start(0.1)")),
}
"""The points and arms of sweeps that have figures. Those of any other sweep are what its file in
conf/sweep/ asks for."""
ANSWERED = "optimizers"
"""The sweep whose trials answered downstream tasks."""


def write_sweep(
    store: Path,
    sweep: str,
    *,
    optimizers: Iterable[str] = ("adamw", "muon"),
    seeds: int = 2,
    arms: Iterable[str] | None = None,
    diverged: str = "",
    num_points: int | None = None,
) -> None:
    """Trials of a sweep, at its first `num_points`; of `arms` alone, and those of the arm
    `diverged` did. Raises BadInput for a sweep without a file."""
    for number, (place, every_arm, made) in enumerate(_points(sweep, optimizers, num_points)):
        shown = every_arm if arms is None else arms
        for (rank, arm), seed in product(enumerate(shown), range(seeds)):
            settings, outcome_keys = made(arm, seed)
            gap = 0.1 * (rank > 0) * (1 + number % 3) / (1 + (rank > 1))
            loss = None if arm == diverged else 2.0 + 0.05 * place + gap + 0.01 * seed
            outcome = result(settings, loss, **outcome_keys)
            folder = write(store, settings, outcome)
            _write_metrics(folder, outcome, settings)
            if sweep == ANSWERED:
                for task in ("piqa", "copa"):
                    write_answers(folder, -gap, task=task, seed=seed, num_questions=30)


Made = Callable[[str, int], tuple[Any, Any]]
"""Arm and seed → the config of a trial, and what its result says beside the loss."""


def _points(
    sweep: str, optimizers: Iterable[str], num_points: int | None
) -> Iterator[tuple[int, Sequence[str], Made]]:
    """The place of each point among those of its optimizer, its arms and its trials."""
    if sweep in SWEEPS:
        of_table, arms = SWEEPS[sweep]
        for optimizer, (place, point) in product(optimizers, enumerate(of_table[:num_points])):
            yield place, arms, partial(_settings, optimizer, point)
        return
    # Late: bench/report.py takes trials from here, and counts the memory of its process.
    from pipegap.sweeps.request.command_line import parse_request
    from pipegap.sweeps.request.expand import points

    [of_file] = parse_request([f"sweep={sweep}", "scale=micro"]).sweeps.values()
    for place, of_point in enumerate(points(of_file, Path("results"))[:num_points]):
        yield place, [*of_point.configs], partial(_composed, of_point.configs)


def _composed(configs: Mapping[str, Settings], arm: str, seed: int) -> tuple[Any, Any]:
    settings = {**configs[arm], "seed": seed, "num_updates": 100, "tokens_per_parameter": None}
    return settings, _outcome(settings)


def _settings(optimizer: str, point: Settings, arm: str, seed: int) -> tuple[Any, Any]:
    settings = config(optimizer=optimizer, seed=seed) | {"num_updates": 100}
    settings["optimizer"] |= {"weight_decay": 0.1, "variance_decay": 0.95}
    settings["lr_schedule"] = {"_target_": "trainer.lr.cosine", "warmup": 0.1}
    settings["pipeline"], settings["correction"] = map(dict, deepcopy(ALL_ARMS[arm]))
    for key, value in point.items():
        group, _, name = key.rpartition(".")
        if key != "num_parameters":
            (settings[group] if group else settings)[name] = value
    return settings, _outcome(settings, point.get("num_parameters", 450_000))


def _outcome(settings: Settings, num_parameters: int = 450_000) -> Settings:
    updates = settings["num_updates"]
    tokens = updates * settings["batch_size"] * settings["seq_len"]
    outcome = {"num_updates": updates, "num_parameters": num_parameters, "tokens": tokens}
    delay = settings["pipeline"].get("delay")
    return outcome | ({"delays": [delay]} if delay else {})


def _write_metrics(folder: Path, outcome: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    updates = outcome["num_updates"] if outcome["final_val_loss"] else 7
    end = outcome["final_val_loss"] or 3.0
    switch = round(settings["pipeline"].get("synchronous_start", 0) * outcome["num_updates"])
    lines = []
    for t in range(updates):
        train_loss = end + 2 / (1 + t) + (0.3 if switch <= t < switch + 12 and switch else 0.0)
        row: dict[str, Any] = {"update": t, "train_loss": train_loss}
        if t % 10 == 9 or t == updates - 1:
            row["val_loss"] = end + 1 / (1 + t)
        if switch and t % 2 == 0:
            late = t >= switch
            measures = {"update_cosine": 1.0 - 0.5 * late, "update_error": 0.4 * late / (1 + t)}
            routing = {"changed_share": 0.3 * late / (1 + t), "greatest_load": 1.5 + 0.1 * late}
            row["diagnostics"] = {
                "all": {**measures, "gradient_change": 1e-3 * late},
                "routing": routing,
            }
        lines.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))


# Answers of trials to a task, as lm-eval logs them, by numbers of the test's choice.

BYTES = 20
"""Of each choice."""


def write_answers(
    trial: Path,
    gain: float = 0.0,
    *,
    task: str = "piqa",
    num_questions: int = 200,
    seed: int = 0,
    noise: float = 0.01,
) -> None:
    """Two choices per question. Each question is as hard for every trial; right answers `gain` as
    many nats, give or take `noise`."""
    rng = np.random.default_rng([seed, crc32(trial.name.encode())])
    easy = np.random.default_rng(num_questions).normal(1.0, 1.0, num_questions)
    right = -BYTES + easy + gain + rng.normal(0, noise, num_questions)
    folder = trial / "evaluation" / task
    folder.mkdir(parents=True)
    samples = [_sample(task, place, float(log)) for place, log in enumerate(right)]
    path = folder / f"samples_{task}_2026-11-27T06-46-00.920715.jsonl"
    path.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))


def _sample(task: str, place: int, log: float) -> dict[str, object]:
    gold = place % 2
    choices = {f"gen_args_{i}": {"arg_0": "", "arg_1": " " + "ab"[i] * BYTES} for i in (0, 1)}
    return {
        "doc_id": place,
        "target": str(gold),
        "arguments": choices,
        "filtered_resps": [[str(one), "False"] for one in [log, -BYTES][:: -1 if gold else 1]],
        "filter": "none",
        "doc_hash": f"{task} {place}",
        "prompt_hash": "",
        "target_hash": str(gold),
        "acc": float(log > -BYTES),
    }
