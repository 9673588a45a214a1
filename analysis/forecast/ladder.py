"""The rungs of a ladder: runs of one optimizer and arm at several lengths, batches and sizes."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.gaps import regimes
from analysis.statistics.intervals import Values
from analysis.statistics.pairs import VARIANT, pairs
from analysis.table.points import by_point, group_of, in_words, varied
from analysis.table.tasks import LENGTH, updates_asked

OF_A_RUNG = (
    *("model", *LENGTH, "batch_size", "optimizer.lr", "optimizer.weight_decay"),
    *("eval_every", "eval_batch_size"),
)
"""Groups and keys in which the rungs of one ladder may differ: what a rung is, the rate and decay
that go with it, and how often it is evaluated."""
FEWEST_SEEDS = 2


@dataclass(frozen=True)
class Rung:
    """Runs of one length, batch and size; `gaps` and `losses` (sync's) by seed, [seeds]."""

    updates: int
    batch: int
    """Tokens per update."""
    parameters: int
    gaps: Values
    losses: Values
    trial_ids: tuple[str, ...] = ()
    """Of both arms."""
    regime: str = ""
    """Why it lies outside of the paper's; empty if it does not (`statistics.gaps.regimes`)."""

    @property
    def settings(self) -> tuple[int, int, int]:
        """In the order of `laws.REGRESSORS`."""
        return self.updates, self.batch, self.parameters


@dataclass(frozen=True)
class Ladder:
    """The rungs of one optimizer and arm, by settings."""

    optimizer: str
    arm: str
    rungs: tuple[Rung, ...]
    shared: str = ""
    """What its rungs share and other runs of the optimizer do not, in words."""
    dropped: tuple[str, ...] = ()
    """Rungs that do not count, and why."""

    @property
    def settings(self) -> Values:
        """[rungs, 3] in the order of `laws.REGRESSORS`."""
        return np.array([rung.settings for rung in self.rungs], dtype=float).reshape(-1, 3)

    @property
    def size(self) -> tuple[int, int]:
        """Rungs and pairs."""
        return len(self.rungs), sum(len(rung.gaps) for rung in self.rungs)

    @property
    def trial_ids(self) -> frozenset[str]:
        """The trials of all rungs."""
        return frozenset(name for rung in self.rungs for name in rung.trial_ids)

    def below(self, updates: int) -> "Ladder":
        """The rungs that are shorter."""
        rungs = tuple(rung for rung in self.rungs if rung.updates < updates)
        return Ladder(self.optimizer, self.arm, rungs, self.shared)


def ladders(trials: pd.DataFrame, optimizer: str) -> list[Ladder]:
    """One ladder for each arm of an optimizer that has runs: of its `every_ladder` the one with the
    most rungs, then the one with the most pairs."""
    by_arm: dict[str, list[Ladder]] = defaultdict(list)
    for ladder in every_ladder(trials, optimizer):
        by_arm[ladder.arm].append(ladder)
    return [max(of_arm, key=lambda ladder: ladder.size) for of_arm in by_arm.values()]


def every_ladder(trials: pd.DataFrame, optimizer: str) -> list[Ladder]:
    """All ladders of an optimizer, from `load`'s table of trials, by arm.

    Points that differ in OF_A_RUNG alone are one ladder, for each arm and each number of stages and
    of microbatches. Of several points on one rung the one of the lowest mean loss of sync counts.
    """
    own = trials[trials["optimizer"] == optimizer]
    if own.empty:
        return []
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a report says them
        paired = pairs(own)
    family = by_point([_shared_columns(varied(own).get(optimizer))], in_words)
    paired = paired[paired["point"].isin(list(family))].merge(_settings(own), on="point")
    paired["family"] = paired["point"].map(family)
    paired["regime"] = paired["point"].map(regimes(own))
    return [
        _ladder(optimizer, str(arm), str(words), group)
        for (arm, words, *_), group in paired.groupby(["arm", "family", *VARIANT])
    ]


def _shared_columns(of_points: pd.DataFrame | None) -> pd.DataFrame:
    table = pd.DataFrame() if of_points is None else of_points
    return table[[key for key in table if not {str(key), group_of(str(key))} & {*OF_A_RUNG}]]


def _settings(trials: pd.DataFrame) -> pd.DataFrame:
    """Updates, tokens per update and parameters of each point."""
    known = trials[trials["num_parameters"].notna()].drop_duplicates("point")
    return pd.DataFrame(
        {
            "point": known["point"],
            "updates": updates_asked(known),
            "batch": known["batch_size"] * known["seq_len"],
            "parameters": known["num_parameters"],
        }
    )


def _ladder(optimizer: str, arm: str, words: str, paired: pd.DataFrame) -> Ladder:
    rungs: list[Rung] = []
    dropped: list[str] = []
    for settings, group in paired.groupby(["updates", "batch", "parameters"]):
        known = group.dropna(subset="final_val_loss_sync").groupby("point")["final_val_loss_sync"]
        best = known.mean().idxmin() if len(known) else None
        rung = _rung(settings, group[group["point"] == best])
        if isinstance(rung, Rung):
            rungs.append(rung)
        else:
            dropped.append(rung)
    return Ladder(optimizer, arm, tuple(rungs), words, tuple(dropped))


def _rung(settings: Any, group: pd.DataFrame) -> Rung | str:
    """A rung, or why it is none: a mean of the runs that did not diverge flatters the arm."""
    fair = group[group["final_val_loss_sync"].notna()].sort_values("seed")
    known = fair[fair["gap"].notna()]
    name = name_of(settings)
    if len(known) < len(fair):
        return f"{name}: {len(fair) - len(known)} of {len(fair)} delayed runs diverged"
    if len(known) < FEWEST_SEEDS:
        return f"{name}: {len(known)} seeds, {FEWEST_SEEDS} are needed"
    ids = known["trial_id"].tolist() + known["trial_id_sync"].tolist()
    updates, batch, parameters = map(int, settings)
    return Rung(
        updates,
        batch,
        parameters,
        gaps=known["gap"].to_numpy(dtype=float),
        losses=known["final_val_loss_sync"].to_numpy(dtype=float),
        trial_ids=tuple(sorted(map(str, ids))),
        regime=str(known["regime"].iloc[0]),
    )


def name_of(settings: Sequence[float]) -> str:
    """`T=1,600, B=128, N=108,928`."""
    letters = zip("TBN", settings, strict=True)
    return ", ".join(f"{letter}={value:,.0f}" for letter, value in letters)
