"""What a store shows of the delay: gaps at the best setting of sync, for each training length."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isinf, isnan
from typing import Any

import pandas as pd

from pipegap.analysis.statistics.gaps import OF_REGIME, deciding_updates
from pipegap.analysis.statistics.intervals import Interval
from pipegap.analysis.statistics.pairs import ENOUGH_UPDATES, VARIANT, results
from pipegap.analysis.statistics.tax import Finals, Tax
from pipegap.analysis.table import names
from pipegap.analysis.table.points import data_names
from pipegap.analysis.table.tasks import (
    FEEDBACK,
    PLAIN,
    Family,
    families,
    kinds,
    tokens_asked,
    updates_asked,
)
from pipegap.trainer.base.status import FINAL, Status


@dataclass(frozen=True)
class Gap:
    """The gap of Error Feedback with a coefficient λ; the plain delay has 0."""

    coefficient: float
    arm: str
    n: int
    gap: float
    interval: Interval
    diverged: int
    pairs: int
    removes: bool
    """Whether it is shown to remove a part of the plain delay's gap."""
    removed: float
    """Which part, with its interval; NaN where the plain gap is too weak to say."""
    removed_interval: Interval
    tax: Tax

    @property
    def words(self) -> str:
        """The arm in words; λ where it is not the usual 1."""
        of = "" if self.coefficient == 1 else f" (λ = {self.coefficient:g})"
        return f"delay + Error Feedback{of}" if self.coefficient else "delay"


@dataclass(frozen=True)
class Evidence:
    """One setting of the optimizer, trained for `updates` updates."""

    setting: str
    """The keys that tell it from other settings, in words, without its length."""
    keys: Mapping[str, Any]
    """The same as keys of the config; None is null."""
    updates: int
    loss_sync: float
    gaps: tuple[Gap, ...]
    """By coefficient, ascending."""
    finals: dict[str, Finals]
    """For each arm and seed, final losses by updates, also of longer and shorter runs; infinite
    where a run diverged."""
    trials: tuple[str, ...] = ()
    """Ids of all these runs."""
    task: str = ""
    """Model, size and data in words."""
    others: tuple[str, ...] = ()
    """The other tasks of these trials, in words."""
    deciding: float = ENOUGH_UPDATES
    """The fewest updates of runs that decide something (`gaps.deciding_updates`)."""
    num_settings: int = 1
    """Of how many settings with as many pairs this one has the lowest loss of sync."""

    @property
    def decides(self) -> bool:
        """Whether runs of so many updates decide something."""
        return self.updates >= self.deciding

    def diverged(self, arm: str, length: int) -> tuple[int, int]:
        """How many runs of an arm diverged at seeds at which sync did not, and of how many.

        Sync's partner is the run of this length, or, where there is none, that of `updates`.
        """
        sync = {
            seed: by_length.get(length, by_length.get(self.updates, inf))
            for seed, by_length in self.finals["sync"].items()
        }
        losses = [
            by_length[length]
            for seed, by_length in self.finals[arm].items()
            if length in by_length and isfinite(sync.get(seed, inf))
        ]
        return sum(map(isinf, losses)), len(losses)


def evidence(
    trials: pd.DataFrame, gaps: pd.DataFrame, newest: Collection[str] = ()
) -> list[Evidence]:
    """One evidence per length at which the largest task of these trials has a gap, longest first:
    the largest one of the trials `newest`, if there is a gap among them.

    The trials are of one optimizer, `gaps` is their table. The setting is the one with the lowest
    mean loss of sync among those with the most pairs whose sync run completed, whether or not the
    delayed one did. The largest task has the most work per trial: parameters times tokens.
    """
    trials = trials[trials["status"].isin(FINAL)]
    arms = _arms(trials)
    rows = gaps[gaps["arm"].isin(arms.index) & (gaps["pairs"] > 0)]
    if rows.empty:
        return []
    done = results(trials).assign(length=updates_asked)
    points = _points(trials, rows, done)
    is_newest = points.index.isin(trials.loc[trials["trial_id"].isin(newest), "point"])
    by_work = points.assign(is_newest=is_newest).sort_values(["is_newest", "work"])
    largest = by_work["kind"].iloc[-1]
    of_task = points[points["kind"] == largest]
    most_pairs = of_task.groupby("tokens")["pairs"].transform("max")
    whole = of_task[of_task["pairs"] == most_pairs].sort_values("loss_sync", kind="stable")
    num_settings = whole.groupby("tokens").size()
    best = whole.drop_duplicates("tokens").sort_values("tokens", ascending=False)
    family = families(trials)
    task = _tasks(trials[trials["point"].isin(points.index)]).reindex(points.index)
    other_kinds = {*task[points["kind"] != largest]}
    return [
        replace(
            _at(str(point), done, rows, arms, family),
            task=str(task[point]),
            others=tuple(sorted(other_kinds - {task[point]})),
            num_settings=int(num_settings[tokens]),
        )
        for point, tokens in best["tokens"].items()
    ]


def _tasks(trials: pd.DataFrame) -> pd.Series:
    """For each point model, size and data in words, and what else tells it from other tasks."""
    first_rows, kind = trials.drop_duplicates("point").set_index("point"), kinds(trials)
    size = first_rows["num_parameters"].map(names.parameters)
    words = (
        first_rows["model"].astype(str)
        + " ("
        + size
        + " parameters), "
        + data_names(first_rows).astype(str)
    )
    shared = words.groupby(words).transform(lambda of: len({kind[point] for point in of.index}))
    more = pd.Series(kind).reindex(words.index)
    return words.mask((shared > 1) & (more != ""), words + ", " + more)


def _arms(trials: pd.DataFrame) -> pd.Series:
    """For each arm that is the delay, alone or with Error Feedback, its coefficient; ascending."""
    table = trials[trials["family"].isin([PLAIN, FEEDBACK])].drop_duplicates("arm")
    table = table.set_index("arm")
    return table["coefficient"].mask(table["family"] == PLAIN, 0.0).sort_values()


def _points(trials: pd.DataFrame, rows: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """One row per point that has a pair: its task, its pairs, its loss of sync and its length."""
    of_points = trials.drop_duplicates("point").set_index("point")
    tokens = tokens_asked(of_points)
    sync = done[done["arm"] == "sync"].drop_duplicates(["point", "seed"])
    return (
        pd.DataFrame(
            {
                "pairs": rows.groupby("point")["pairs"].max(),
                "loss_sync": sync.groupby("point")["final_val_loss"].mean(),
            }
        )
        .dropna(subset="pairs")
        .assign(
            tokens=tokens,
            work=(tokens * of_points["num_parameters"]).astype(float),
            kind=pd.Series(kinds(trials)),
        )
    )


def _at(
    point: str, done: pd.DataFrame, rows: pd.DataFrame, arms: pd.Series, family: dict[str, Family]
) -> Evidence:
    family_of_point = family[point]
    same_family = [
        other_point
        for other_point, of_other in family.items()
        if of_other.words == family_of_point.words
    ]
    completed_here = done[(done["point"] == point) & (done["status"] == Status.COMPLETED)]
    at_point = rows[rows["point"] == point]
    gaps = tuple(
        _gap(at_point[at_point["arm"] == arm], float(coefficient))
        for arm, coefficient in arms.items()
        if arm in {*at_point["arm"]}
    )
    compared = ["sync", *(gap.arm for gap in gaps)]
    sync = completed_here[completed_here["arm"] == "sync"].drop_duplicates("seed")
    return Evidence(
        setting=family_of_point.label,
        keys=family_of_point.keys,
        updates=int(done.loc[done["point"] == point, "length"].iloc[0]),
        loss_sync=float(sync["final_val_loss"].mean()),
        gaps=gaps,
        finals={name: _finals(done, same_family, name) for name in compared},
        trials=tuple(sorted(done.loc[done["point"].isin(same_family), "trial_id"])),
        deciding=deciding_updates(
            completed_here.reindex(columns=OF_REGIME).astype(float).max().to_dict()
        ),
    )


def _gap(of_arm: pd.DataFrame, coefficient: float) -> Gap:
    """With the number of stages that has the most pairs: it changes nothing with 2BW."""
    most = of_arm.sort_values(["n", *VARIANT], ascending=[False, True, True])
    [row] = most.head(1).to_dict("records")
    return Gap(
        coefficient,
        str(row["arm"]),
        int(row["n"]),
        float(row["gap"]),
        (float(row["low"]), float(row["high"])),
        int(row["diverged"]),
        int(row["pairs"]),
        float(row["removed_low"]) > 0,
        float(row["removed"]),
        (float(row["removed_low"]), float(row["removed_high"])),
        Tax(**{name: row[name] for name in Tax._fields}),
    )


def _finals(done: pd.DataFrame, points: Sequence[str], arm: str) -> Finals:
    """Final losses by seed and length; infinite where the trial diverged."""
    trials = done[done["point"].isin(points) & (done["arm"] == arm)]
    trials = trials.drop_duplicates(["point", "seed"])
    by_seed: dict[int, dict[int, float]] = {}
    columns = (trials[name] for name in ("seed", "length", "final_val_loss"))
    for seed, length, loss in zip(*columns, strict=True):
        by_seed.setdefault(int(seed), {})[int(length)] = inf if isnan(loss) else float(loss)
    return by_seed
