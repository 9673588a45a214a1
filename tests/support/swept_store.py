"""Stores as the sweeps of the paper's figures leave them: few seeds, losses from a formula."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from tests.support.answers import write_answers
from tests.support.synthetic_store import (
    ARMS,
    FEEDBACK,
    NONE,
    SYNC,
    TWO_BUFFERED,
    config,
    result,
    write,
)

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


SCHEDULES = [
    {"lr_schedule": {"_target_": f"trainer.lr.{name}", "warmup": 0.1}} for name in ("cosine", "wsd")
]
SCHEDULES[0]["lr_schedule"]["final"] = 0.1
SIZES = [{"model.hidden_size": width, "num_parameters": width**2 * 50} for width in (48, 96)]
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
    "model_size": ([a | b for a in SIZES for b in grid(optimizer__lr=[0.002, 0.004])], PAIR),
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
