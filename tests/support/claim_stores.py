"""Simulated parts of a claim, with means of the test's choice, and how often a rule may err."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipegap.analysis import load
from pipegap.analysis.claims import CLAIMS, Outcome, Verdict, judged
from pipegap.analysis.claims.corrections import Diverges, Either, Equal, NoHelp
from pipegap.analysis.claims.measure import (
    Above,
    AtBest,
    Contrast,
    near_best,
    near_best_of_arm,
    removes,
)
from pipegap.analysis.claims.optimizers import BestBelow
from pipegap.analysis.claims.rule import ClaimRule, Comparison, Row
from pipegap.analysis.statistics.diagnostics import Noise
from tests.support.synthetic_store import config, result, write, write_answers

Values = NDArray[np.float64]
STORES = 4_000
"""How many are simulated of each kind."""
MOST = 0.05
"""Share of the stores in which a rule may err."""
SLACK = 3 * np.sqrt(MOST * (1 - MOST) / STORES)
"""Three standard deviations of a share of 5 % among so many stores: 1 point."""

GAP = Above((Contrast("gap", (1.0,)),))
LARGER = Above((Contrast("difference", (-1.0, 1.0)),))
Part = tuple[ClaimRule, Sequence[float]]
"""The rule of a part of a claim, with means of its rows at which it is true."""
ORDER: list[Part] = [(LARGER, [0.1, 0.3])] * 8
"""The claim of the most parts."""
FLAT = [2.0] * 6
NOISE = Noise(questions=1e-5, rest=1e-5, num_questions=500)
PARTS: dict[str, list[Part]] = {
    "delay_costs": [(GAP, [0.1])] * 7,
    "adamw_over_muon": [(LARGER, [0.1, 0.3])],
    "adamw_over_muon_own": [(LARGER, [0.1, 0.3])],
    "robust_three": [(LARGER, [0.1, 0.3])] * 2,
    "order": ORDER,
    "lion_between": [(LARGER, [0.1, 0.2])] * 6,
    "ef_helps": [(removes(0.0), [0.4, 0.1])] * 7,
    "ef_most": [(removes(0.5, 0.9), [0.4, 0.1])] * 7,
    "momentum": [(LARGER, [0.1, 0.4])] * 2,
    "depth": [(LARGER, [0.1, 0.4])] * 2,
    "best_over_grid": [(BestBelow(0.01, "best", 6), FLAT * 2)],
    "large_batches": [
        (
            AtBest(LARGER.contrasts, points=(3, 6), names=("8", "64")),
            [2.0] * 3 + [0.1] * 3 + FLAT + [0.4] * 6,
        )
    ],
    "horizon": [(removes(0.8), [0.1, 0.005])] * 2,
    "moe_horizon": [(removes(0.8), [0.1, 0.005])] * 2,
    "moe_rate": [(near_best_of_arm("abcd", 1), [0.5, 0.4, 0.42, 0.6])] * 6,
    "families_muon": [(LARGER, [0.1, 0.3])] * 3,
    "families_ef": [(removes(0.0), [0.4, 0.1])] * 6,
    "coefficient": [(near_best([0.5, 0.75, 1.0, 1.25, 1.5]), [0.4, 0.2, 0.15, 0.1, 0.1, 0.12])] * 2,
    "taylor": [(NoHelp((1e2, 1e3, 1e4)), [0.4, 0.4, 0.4, 0.6])] * 2,
    "gradient_feedback": [(Diverges(), [1.0, 1.0])],
    "start": [(LARGER, [0.1, 0.3])] * 7,
    "spike": [(GAP, [0.3])] * 8,
    "spike_by_decay": [(Either("change"), [0.3, 0.5])],
    "cooldown": [(LARGER, [0.1, 0.3])] * 8,
    "downstream": [(Equal(0.03, (NOISE, NOISE)), [0.3, 0.002])] * 4,
    "downstream_bits": [(Equal(0.03, (NOISE, Noise(0.0, 1e-5, 500))), [3.0, 0.002])] * 4,
}
"""Parts of claims, by a name; a claim of rules that are here already needs none."""
AUDITED = {type(rule) for parts in PARTS.values() for rule, _ in parts}


def stored(rule: ClaimRule, means: Sequence[float], n: int, seed: int) -> Comparison:
    """A store in hand: rows with n seeds and noise that is partly common to them."""
    rng = np.random.default_rng([n, seed])
    noise = rng.normal(0, 0.01, n) + rng.normal(0, 0.01, (len(means), n))
    if isinstance(rule, Diverges):
        noise[:] = 0.0
    rows = [
        Row(str(index), pd.Series(mean + one))
        for index, (mean, one) in enumerate(zip(means, noise, strict=True))
    ]
    return Comparison("part", rows, rule)


def stored_parts(parts: Sequence[Part], n: int) -> list[Comparison]:
    """The same store whenever it is asked for."""
    return [stored(rule, means, n, seed) for seed, (rule, means) in enumerate(parts)]


# Stores in which a claim is true or false, and what its rule says of them.

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
