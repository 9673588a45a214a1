"""Gaps by their delay, by the rule of findings/delays/sweep.yaml. Public functions are calls."""

from collections.abc import Iterator, Mapping
from itertools import pairwise, product

import pandas as pd

from analysis.table.names import optimizer as name
from findings.code.cells import Markdown, TrialGroup, groups, mean, sign, table
from findings.code.published import TINY, of_sweep

ARMS: Mapping[int, str] = {
    1: "delay",
    **{delay: f"constant_delay({delay})" for delay in (2, 4, 8, 16)},
}
"""Delay in updates → its arm without a remedy."""


def _of_optimizers() -> dict[str, TrialGroup]:
    return {optimizer: group for (optimizer,), group in groups(of_sweep("delays", TINY)).items()}


def _steps(group: TrialGroup) -> Iterator[tuple[int, pd.Series, int]]:
    """Yields of each delay but the last what the next one costs more, and whether the gap grows
    faster than the delay (1), slower (−1) or neither is seen (0)."""
    for less, more in pairwise(ARMS):
        small, large = (group.gap(ARMS[delay]) for delay in (less, more))
        yield less, large - small, sign(large - small * (more / less))


def growth() -> Markdown:
    """One row per optimizer: what the next delay costs more, and whether the gap grows faster than
    the delay."""
    words = {1: ", faster", 0: "", -1: ", slower"}
    rows = [
        [name(optimizer), *(mean(more) + words[pace] for _, more, pace in _steps(group))]
        for optimizer, group in _of_optimizers().items()
    ]
    return table(["optimizer", *(f"{less} to {more}" for less, more in pairwise(ARMS))], rows)


def grown() -> str:
    """How many of all steps from a delay to the next grow, and grow faster or slower than it."""
    steps = [step for group in _of_optimizers().values() for step in _steps(group)]
    signs = [sign(more) for _, more, _ in steps]
    early = [pace for less, _, pace in steps if less < 4]
    late = [pace for less, _, pace in steps if less == 8]
    return (
        f"Of {len(signs)} steps {signs.count(1)} surely grow, {signs.count(0)} are open and "
        f"{signs.count(-1)} surely shrink. Of {len(early)} steps up to a delay of 4, "
        f"{early.count(1)} are surely faster than the delay and {early.count(-1)} slower; of "
        f"{len(late)} from 8 to 16, {late.count(1)} and {late.count(-1)}."
    )


def helped(remedy: str) -> Markdown:
    """One row per delay: the optimizers that a remedy helps, harms, and neither."""
    rows = []
    for delay, arm in ARMS.items():
        of_sign: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for optimizer, group in _of_optimizers().items():
            saved = group.losses[arm] - group.losses[f"{arm}_{remedy}"]
            of_sign[sign(saved)].append(name(optimizer))
        rows.append([str(delay), *(", ".join(names) for names in of_sign.values())])
    return table(["delay", "helps", "harms", "neither is seen"], rows)


def robust(fragile: str, others: str) -> Markdown:
    """One row per pair: by how much a delay costs a fragile optimizer more than another one.

    Both arguments are names with commas between them.
    """
    rows = [[pair, *map(mean, apart)] for pair, apart in _pairs(fragile, others)]
    return table(["gap of", *map(str, ARMS)], rows)


def more_fragile(fragile: str, others: str) -> str:
    """In how many of the cells of `robust` the fragile optimizer's gap is larger or smaller."""
    cells = [sign(cell) for _, apart in _pairs(fragile, others) for cell in apart]
    counts = [cells.count(sign) for sign in (1, 0, -1)]
    return "Of {} differences {} surely lie above 0, {} are open and {} lie below.".format(
        len(cells), *counts
    )


def _pairs(fragile: str, others: str) -> Iterator[tuple[str, list[pd.Series]]]:
    """Yields the name of each pair and the differences of its gaps by delay."""
    of = _of_optimizers()
    for one, other in product(fragile.split(","), others.split(",")):
        apart = [of[one].gap(arm) - of[other].gap(arm) for arm in ARMS.values()]
        yield f"{name(one)} minus {name(other)}", apart
