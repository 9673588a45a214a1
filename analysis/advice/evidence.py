"""What a store says of the delay: at the best setting of sync, for each length of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.advice.same_loss import mean_curve
from analysis.intervals import Interval
from analysis.pairs import VARIANT, results
from analysis.tasks import families, kinds, tokens_asked, updates_asked

PLAIN, FEEDBACK = "delay", "delay_ef"
"""Families of arms: a coefficient of Error Feedback does not count."""
COEFFICIENT = "correction.coefficient"


@dataclass(frozen=True)
class Gap:
    """Of an arm with coefficient λ of Error Feedback; 0 is the plain delay."""

    coefficient: float
    arm: str
    n: int
    gap: float
    interval: Interval
    diverged: int
    pairs: int
    removed: float
    removed_interval: Interval

    @property
    def removes(self) -> bool:
        """Whether it is shown to remove a part of the plain delay's gap."""
        return self.removed_interval[0] > 0


@dataclass(frozen=True)
class Evidence:
    """One setting of the optimizer, trained for `updates` updates."""

    setting: str
    """In words, its length aside."""
    updates: int
    loss_sync: float
    gaps: tuple[Gap, ...]
    """By coefficient, ascending."""
    finals: dict[str, dict[int, dict[float, float]]]
    """By arm and seed, final losses by updates: also of longer and shorter runs of the setting."""
    curves: dict[str, dict[float, float]]
    """By arm, validation losses by updates done, mean over seeds."""


def evidence(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Evidence]:
    """For each length that the largest task of these trials has a gap at, longest first.

    The trials are of one optimizer, `gaps` is their table. The setting is the one with the lowest
    mean loss of sync among those with the most pairs. The largest task has the most work a trial:
    parameters times tokens.
    """
    trials = trials[trials["status"].isin(["completed", "diverged"])]
    arms = _arms(trials)
    rows = gaps[gaps["arm"].isin(arms.index) & (gaps["pairs"] > 0)]
    if rows.empty:
        return []
    points = _points(trials, rows)
    largest = points.sort_values("work")["kind"].iloc[-1]
    best = points[points["kind"] == largest].sort_values(
        ["n", "loss_sync"], ascending=[False, True]
    )
    chosen = best.drop_duplicates("tokens").sort_values("tokens", ascending=False)
    done = results(trials).assign(length=updates_asked)
    family = families(trials)
    return [_at(str(point), done, rows, arms, family) for point in chosen.index]


def _arms(trials: pd.DataFrame) -> pd.Series:
    """Coefficient by arm, of those that are the delay or the delay with Error Feedback."""
    table = trials[trials["family"].isin([PLAIN, FEEDBACK])].drop_duplicates("arm")
    table = table.set_index("arm")
    plain = table["family"] == PLAIN
    known = table[COEFFICIENT] if COEFFICIENT in table else plain.astype(float)
    return known.astype(float).mask(plain, 0.0).sort_values()


def _points(trials: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """A row a point that has a pair: what it is for, how much is known of it, and its length."""
    known = trials.drop_duplicates("point").set_index("point")
    tokens = tokens_asked(known)
    found = rows.groupby("point").agg(n=("n", "max"), loss_sync=("loss_sync", "min"))
    return found.assign(
        tokens=tokens,
        work=(tokens * known["num_parameters"]).astype(float),
        kind=pd.Series(kinds(trials)),
    )


def _at(
    point: str, done: pd.DataFrame, rows: pd.DataFrame, arms: pd.Series, family: dict[str, str]
) -> Evidence:
    twins = [other for other, words in family.items() if words == family[point]]
    here = done[(done["point"] == point) & (done["status"] == "completed")]
    gaps = tuple(_gap(point, arm, rows, coefficient) for arm, coefficient in _of(point, rows, arms))
    names = ["sync", *(gap.arm for gap in gaps)]
    by_arm = {name: here[here["arm"] == name].drop_duplicates("seed") for name in names}
    return Evidence(
        setting=family[point],
        updates=int(done.loc[done["point"] == point, "length"].iloc[0]),
        loss_sync=float(by_arm["sync"]["final_val_loss"].mean()),
        gaps=gaps,
        finals={name: _finals(done, twins, name) for name in names},
        curves={name: mean_curve(trials["folder"]) for name, trials in by_arm.items()},
    )


def _of(point: str, rows: pd.DataFrame, arms: pd.Series) -> Iterator[tuple[str, float]]:
    present = {*rows.loc[rows["point"] == point, "arm"]}
    yield from ((str(arm), float(value)) for arm, value in arms.items() if arm in present)


def _gap(point: str, arm: str, rows: pd.DataFrame, coefficient: float) -> Gap:
    """Of several numbers of stages, which change nothing with 2BW, the one with the most pairs."""
    at = rows[(rows["point"] == point) & (rows["arm"] == arm)]
    most = at.sort_values(["n", *VARIANT], ascending=[False, True, True])
    [row] = most.head(1).to_dict("records")
    return Gap(
        coefficient,
        arm,
        int(row["n"]),
        float(row["gap"]),
        (float(row["low"]), float(row["high"])),
        int(row["diverged"]),
        int(row["pairs"]),
        float(row["removed"]),
        (float(row["removed_low"]), float(row["removed_high"])),
    )


def _finals(done: pd.DataFrame, points: Sequence[str], arm: str) -> dict[int, dict[float, float]]:
    """Where a seed diverged there is no loss, nor between the lengths beside it."""
    trials = done[done["point"].isin(points) & (done["arm"] == arm)]
    trials = trials.drop_duplicates(["point", "seed"])
    by_seed: dict[int, dict[float, float]] = {}
    columns = (trials[name] for name in ("seed", "length", "final_val_loss"))
    for seed, length, loss in zip(*columns, strict=True):
        by_seed.setdefault(int(seed), {})[int(length)] = float(loss)
    return by_seed
