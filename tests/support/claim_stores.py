"""Stores in which a claim is true or false, and what its rule says of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis import load
from analysis.claims import CLAIMS, Outcome, Verdict, judged
from tests.support.answers import write_answers
from tests.support.synthetic_store import config, result, write

YES, NO, OPEN = Outcome.REPRODUCED, Outcome.CONTRADICTED, Outcome.UNDECIDED
BY_NAME = {claim.name: claim for claim in CLAIMS}
SYNC = (2.0, 2.1, 1.9, 2.05, 1.95, 2.02)
"""Final losses of the sync trials, one per seed."""
SPREAD = (0.0, 0.002, -0.002)
"""Of a gap over the seeds: its interval is ± 0.005."""
WIDE = (0.0, 0.4, -0.4)
SIX = (0.0, 0.002, -0.002, 0.001, -0.001, 0.0)
ROBUST = {"muon": 0.1, "normuon": 0.1, "soap": 0.1, "adan": 0.1}
"""Gaps of the optimizers that the paper calls robust."""
MOE = {"model": {"_target_": "trainer.models.qwen3_moe.Qwen3Moe", "num_experts": 64}}
LONG = {"num_updates": 10_000}
STARTED = {"synchronous_start": 20}
COOLED = {"synchronous_cooldown": 0.1}
CORRECTIONS = {
    "ef": "trainer.corrections.error_feedback.ErrorFeedback",
    "taylor": "trainer.corrections.taylor.Taylor",
    "ef_gradient": "trainer.corrections.error_feedback_gradient.GradientErrorFeedback",
}


class Group(NamedTuple):
    """The trials of an arm beside sync: `gap` None diverges; `pipeline`, `keys` change configs;
    `sync` is added to the losses of both; `answers`, if both answered a task: the nats that the
    arm's right answers gain on sync's."""

    gap: float | None
    optimizer: str = "adamw"
    correction: str = ""
    coefficient: float = 1.0
    pipeline: Mapping[str, Any] = {}
    keys: Mapping[str, Any] = {}
    spread: Sequence[float] = SPREAD
    spike: float = 0.0
    sync: float = 0.0
    answers: float | None = None


def store(folder: Path, groups: Iterable[Group], num_updates: int = 400) -> None:
    """Of each group the trials of its arm and of sync, one per seed."""
    for group in groups:
        for seed, (usual, noise) in enumerate(zip(SYNC, group.spread, strict=False)):
            sync = usual + group.sync
            base = config("sync", optimizer=group.optimizer, seed=seed)
            late = config("delay", optimizer=group.optimizer, seed=seed)
            for settings in (base, late):
                for key, value in group.keys.items():
                    (settings if key in settings else settings["optimizer"])[key] = value
                settings["num_updates"] = group.keys.get("num_updates", num_updates)
            late["pipeline"] |= group.pipeline
            if group.correction:
                late["correction"] = {
                    "_target_": CORRECTIONS[group.correction],
                    "coefficient": group.coefficient,
                }
            done = {"num_updates": base["num_updates"], "tokens": 2048 * base["num_updates"]}
            of_sync = write(folder, base, result(base, sync, **done))
            _write_losses(of_sync, late, 0.0)
            loss = None if group.gap is None else sync + group.gap + noise
            trial = write(folder, late, result(late, loss, **done))
            _write_losses(trial, late, group.spike + noise)
            if group.answers is not None:
                write_answers(of_sync, seed=seed, num_questions=1000, noise=0.03)
                gain = group.answers + 10 * noise
                write_answers(trial, gain, seed=seed, num_questions=1000, noise=0.03)


def _write_losses(trial: Path, late: Mapping[str, Any], spike: float) -> None:
    start = late["pipeline"].get("synchronous_start")
    if start:
        losses = [2.0 + spike * (update >= start) for update in range(60)]
        rows = [{"update": t, "train_loss": loss} for t, loss in enumerate(losses)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (trial / "metrics.jsonl").write_text(text)


def verdict(name: str, folder: Path) -> Verdict:
    """What the claim's rule says of the store."""
    trials = load(folder)
    return judged(BY_NAME[name], trials)


def of(gap_by_optimizer: Mapping[str, float], **changes: Any) -> list[Group]:
    return [Group(gap, optimizer, **changes) for optimizer, gap in gap_by_optimizer.items()]


def feedback(plain: float, left: float, **changes: Any) -> list[Group]:
    return [Group(plain, **changes), Group(left, correction="ef", **changes)]


def answered(gain: float, **changes: Any) -> list[Group]:
    return [Group(0.1, correction="ef", answers=gain, **changes)]


def coefficients(
    correction: str, gap_by_value: Mapping[float, float | None], **changes: Any
) -> list[Group]:
    arms = [Group(gap, "muon", correction, value, **changes) for value, gap in gap_by_value.items()]
    return [Group(0.4, "muon", **changes), *arms]


def swept(
    key: str, gap_by_value: Mapping[Any, float], others: Mapping[str, Any] = {}, **changes: Any
) -> list[Group]:
    return [
        Group(gap, keys={key: value, **others}, **changes) for value, gap in gap_by_value.items()
    ]


def rates(above_best_sync: Mapping[float, float], **changes: Any) -> list[Group]:
    """By learning rate, what the delayed loss lies above that of sync at 0.2, its best rate."""
    return [
        Group(above - sync, keys={"lr": rate}, sync=sync, **changes)
        for rate, above in above_best_sync.items()
        for sync in [abs(rate - 0.2)]
    ]


def depths(gap_by_depth: Mapping[int, float], **changes: Any) -> list[Group]:
    original = {"_target_": "trainer.schedules.pipedream"}
    return [
        Group(gap, pipeline={**original, "num_stages": p}, **changes)
        for p, gap in gap_by_depth.items()
    ]


def starts(spike_by_decay: Mapping[float, float], **changes: Any) -> list[Group]:
    return [
        Group(0.1, pipeline=STARTED, keys={"variance_decay": decay}, spike=spike, **changes)
        for decay, spike in spike_by_decay.items()
    ]
