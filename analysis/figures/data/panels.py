"""How the tables of figures name their panels, and the columns that several of them share."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.statistics.pairs import VARIANT

PANEL = ["panel", "subtitle"]
"""The title of a panel, and in lines what of it is shown; together they tell panels apart."""
MEAN = ["n", "mean", "low", "high", "diverged", "pairs"]
"""A mean with its 95 % interval; of all `pairs`, `diverged` are not among its n."""
SERIES = ["series", "arm", *VARIANT]
"""The label of a line or bar, and the arm, stages and microbatches that it stands for."""
OF_SEED = ["seed", "trial_id", "status"]
"""What tells one point of a figure from another."""


def lines(parts: Iterable[str]) -> str:
    """The parts that are not empty, in lines."""
    return "\n".join(part for part in parts if part)


def with_variant(found: pd.DataFrame, names: pd.Series) -> list[str]:
    """`names`, with stages and microbatches where a point has a name with several of them."""
    variants = found.groupby(["point", names.rename("name")])[VARIANT].nunique().max(axis=1)
    rows = found.assign(name=names)[["point", "name", *VARIANT]].itertuples(index=False)
    return [
        name if variants[point, name] == 1 else f"{name} (p = {p}, m = {m})"
        for point, name, p, m in rows
    ]
