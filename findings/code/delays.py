"""Gaps by their delay, by the rule of findings/delays/sweep.yaml. Public functions are calls."""

from collections.abc import Mapping
from itertools import pairwise

import pandas as pd

from analysis.statistics.intervals import mean_interval
from analysis.table.names import optimizer as name
from findings.code.cells import Markdown, TrialGroup, groups, mean, table
from findings.code.published import TINY, of_sweep

ARMS: Mapping[int, str] = {
    1: "delay",
    **{delay: f"constant_delay({delay})" for delay in (2, 4, 8, 16)},
}
"""Delay in updates → its arm without a remedy."""


def _of_optimizers() -> dict[str, TrialGroup]:
    return {optimizer: group for (optimizer,), group in groups(of_sweep("delays", TINY)).items()}


def _gap(group: TrialGroup, delay: int) -> pd.Series:
    return group.losses[ARMS[delay]] - group.losses["sync"]


def _sign(differences: pd.Series) -> int:
    """1 or −1 if the interval of the mean lies above or below 0, else 0."""
    low, high = mean_interval(differences.dropna().to_numpy())
    return int(low > 0) - int(high < 0)


def growth() -> Markdown:
    """One row per optimizer: what the next delay costs more, and whether the gap grows faster than
    the delay."""
    words = {1: ", faster", 0: "", -1: ", slower"}
    rows = []
    for optimizer, group in _of_optimizers().items():
        gaps = {delay: _gap(group, delay) for delay in ARMS}
        cells = [
            mean(gaps[more] - gaps[less]) + words[_sign(gaps[more] - gaps[less] * (more / less))]
            for less, more in pairwise(ARMS)
        ]
        rows.append([name(optimizer), *cells])
    return table(["optimizer", *(f"{less} to {more}" for less, more in pairwise(ARMS))], rows)


def helped(remedy: str) -> Markdown:
    """One row per delay: the optimizers that a remedy helps, harms, and neither."""
    rows = []
    for delay, arm in ARMS.items():
        of_sign: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for optimizer, group in _of_optimizers().items():
            saved = group.losses[arm] - group.losses[f"{arm}_{remedy}"]
            of_sign[_sign(saved)].append(name(optimizer))
        rows.append([str(delay), *(", ".join(names) for names in of_sign.values())])
    return table(["delay", "helps", "harms", "neither is seen"], rows)


def robust(fragile: str, others: str) -> Markdown:
    """One row per pair: by how much a delay costs a fragile optimizer more than another one.

    Both arguments are names with commas between them.
    """
    of = _of_optimizers()
    rows = [
        [f"{name(one)} minus {name(other)}"]
        + [mean(_gap(of[one], delay) - _gap(of[other], delay)) for delay in ARMS]
        for one in fragile.split(",")
        for other in others.split(",")
    ]
    return table(["gap of", *map(str, ARMS)], rows)
