"""Simulated parts of a claim, with means of the test's choice, and how often a rule may err."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.claims.above import Above, Contrast
from analysis.claims.comparison import Comparison, Row
from analysis.claims.corrections import Diverges
from analysis.claims.rule import ClaimRule

Values = NDArray[np.float64]
STORES = 4_000
"""How many are simulated of each kind."""
MOST = 0.05
"""Share of the stores in which a rule may err."""
SLACK = 3 * np.sqrt(MOST * (1 - MOST) / STORES)
"""Three standard deviations of a share of 5 % among so many stores: 1 point."""

GAP = Above((Contrast("gap", (1.0,), 0),))
LARGER = Above((Contrast("difference", (-1.0, 1.0), 1),))
Part = tuple[ClaimRule, Sequence[float]]
"""The rule of a part of a claim, with means of its rows at which it is true."""
ORDER: list[Part] = [(LARGER, [0.1, 0.3])] * 8
"""The claim of the most parts."""


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
