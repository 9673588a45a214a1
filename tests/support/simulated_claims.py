"""Simulated parts of a claim, with means of the test's choice, and how often a rule may err."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipegap.analysis.claims.corrections import Diverges, Either, NoHelp
from pipegap.analysis.claims.downstream import Equal
from pipegap.analysis.claims.measure import (
    Above,
    AtBest,
    Contrast,
    near_best,
    near_best_of_arm,
    removes,
)
from pipegap.analysis.claims.rule import ClaimRule, Comparison, Row
from pipegap.analysis.claims.swept import BestBelow
from pipegap.analysis.statistics.downstream import Noise

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
