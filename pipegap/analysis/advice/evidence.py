"""What a store shows of the delay: gaps after as many updates, and after the same time."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isfinite, isinf, isnan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipegap.analysis.statistics.gaps import OF_REGIME, deciding_updates
from pipegap.analysis.statistics.pairs import (
    ENOUGH_UPDATES,
    VARIANT,
    Interval,
    Values,
    folds_share,
    mean_interval,
    quantile,
    results,
    shared_confidence,
)
from pipegap.analysis.statistics.tax import Finals, StandIn, Tax, no_higher, no_lower
from pipegap.analysis.table import names
from pipegap.analysis.table.points import (
    FEEDBACK,
    PLAIN,
    Family,
    data_names,
    families,
    kinds,
    machines,
    mixed_machines,
    tokens_asked,
    updates_asked,
)
from pipegap.trainer.base.errors import FINAL, Status

# Gaps at the best setting of sync, for each training length.


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
    mixed: str = ""
    """How many seeds compare runs of several kinds of machine, in words; empty if none does."""

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
    # Points of the newest sweep come last, and among them the most work.
    by_work = points.assign(is_newest=is_newest).sort_values(["is_newest", "work"])
    largest = by_work["kind"].iloc[-1]
    of_task = points[points["kind"] == largest]
    most_pairs = of_task.groupby("tokens")["pairs"].transform("max")
    whole = of_task[of_task["pairs"] == most_pairs].sort_values("loss_sync", kind="stable")
    num_settings = whole.groupby("tokens").size()
    # Sorted by loss: the first point of each length is that of the lowest loss of sync.
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
    size = " (" + first_rows["num_parameters"].map(names.parameters) + " parameters), "
    words = first_rows["model"].astype(str) + size + data_names(first_rows).astype(str)
    # How many tasks have the same words: then the rest of the task's words is added.
    shared = words.groupby(words).transform(lambda of: len({kind[point] for point in of.index}))
    more = pd.Series(kind).reindex(words.index)
    return words.mask((shared > 1) & (more != ""), words + ", " + more)


def _arms(trials: pd.DataFrame) -> pd.Series:
    """For each arm that is the delay, alone or with Error Feedback, its coefficient; ascending."""
    table = trials[trials["family"].isin([PLAIN, FEEDBACK])].drop_duplicates("arm")
    table = table.set_index("arm")
    return table["coefficient"].mask(table["family"] == PLAIN, 0.0).sort_values()  # NaN → 0


def _points(trials: pd.DataFrame, rows: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """One row per point that has a pair: its task, its pairs, its loss of sync and its length."""
    of_points = trials.drop_duplicates("point").set_index("point")
    tokens = tokens_asked(of_points)
    sync = done[done["arm"] == "sync"].drop_duplicates(["point", "seed"])
    pairs = rows.groupby("point")["pairs"].max()
    loss_sync = sync.groupby("point")["final_val_loss"].mean()
    table = pd.DataFrame({"pairs": pairs, "loss_sync": loss_sync}).dropna(subset="pairs")
    work = (tokens * of_points["num_parameters"]).astype(float)
    return table.assign(tokens=tokens, work=work, kind=pd.Series(kinds(trials)))


def _at(
    point: str, done: pd.DataFrame, rows: pd.DataFrame, arms: pd.Series, family: dict[str, Family]
) -> Evidence:
    family_of_point = family[point]
    same_family = [p for p, of_p in family.items() if of_p.words == family_of_point.words]
    completed_here = done[(done["point"] == point) & (done["status"] == Status.COMPLETED)]
    at_point = rows[rows["point"] == point]
    gaps = tuple(
        _gap(at_point[at_point["arm"] == arm], float(coefficient))
        for arm, coefficient in arms.items()
        if arm in {*at_point["arm"]}
    )
    compared = ["sync", *(gap.arm for gap in gaps)]
    sync = completed_here[completed_here["arm"] == "sync"].drop_duplicates("seed")
    # Runs of other lengths too: pairs of one length may each be of one kind of machine.
    runs = done[done["point"].isin(same_family) & done["arm"].isin(compared)]
    return Evidence(
        setting=family_of_point.label,
        keys=family_of_point.keys,
        updates=int(done.loc[done["point"] == point, "length"].iloc[0]),
        loss_sync=float(sync["final_val_loss"].mean()),
        gaps=gaps,
        finals={name: _finals(done, same_family, name) for name in compared},
        trials=tuple(sorted(done.loc[done["point"].isin(same_family), "trial_id"])),
        mixed=mixed_machines(machines(runs), [runs["seed"]], "seeds"),
        deciding=deciding_updates(
            completed_here.reindex(columns=OF_REGIME).astype(float).max().to_dict()
        ),
    )


def _gap(of_arm: pd.DataFrame, coefficient: float) -> Gap:
    """The gap of one arm, at the number of stages that has the most pairs."""
    # 2BW delays by one update at every depth: any number of stages shows the same.
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


# The delayed run against a synchronous pipeline after the same time.
#
# Losses are final losses of runs of the lengths that take the same time. Where there are no such
# runs, others stand in (see `statistics.tax`): those that end no lower, or those that end no
# higher. A comparison that favours one side may only decide for the other one.

ENOUGH_SEEDS = 3
"""Runs of fewer seeds are compared only where no others are: the interval of a difference of two
seeds is four times as wide as that of three."""
NEARLY = 1e-6
"""Updates: the rounding error of a ratio of two simulated times."""
ChooseStandIn = Callable[[Collection[int], float], StandIn]
"""Lengths and a number of updates → the runs of these lengths that stand in for it."""


@dataclass(frozen=True)
class SameTime:
    """The delayed run and sync after numbers of updates that take the same time."""

    arm: str
    """The delayed arm: of several the best on all seeds, though each seed is compared at the one
    that is best on the others."""
    speed_up: float
    updates: float
    """Of the delayed run."""
    sync_updates: float
    lengths: tuple[int, ...]
    """Of the delayed runs that are compared; none if no runs can be."""
    sync_lengths: tuple[int, ...]
    excess: float
    """By how many updates the delayed runs that are compared are longer, in the mean, than the time
    of sync's runs allows: negative if they are shorter, and NaN without runs. An excess of less
    than one update of each side counts as 0, since lengths are whole numbers."""
    n: int
    """Seeds at which both sides have these runs, and neither diverged."""
    gap: float
    """Loss of the delayed run minus that of sync, mean over n seeds; NaN without any."""
    loss: float
    """Loss of the delayed run, mean over these seeds."""
    spread: float
    """Standard deviation that a 95 % interval of this width is made with: that of the n
    differences, wider where several arms or settings might have been compared."""
    interval: Interval
    diverged: int
    """Seeds that are left out because the delayed run diverged and sync's did not."""
    sync_diverged: int
    """Seeds that are left out because sync's run diverged and the delayed one did not."""
    arms: tuple[str, ...] = ()
    """The delayed arms that have these runs: a seed is compared at one of them."""

    @property
    def is_lower(self) -> bool:
        """Whether the delayed loss is shown to be lower than sync's."""
        return self.interval[1] < 0 and not self.diverged

    @property
    def is_higher(self) -> bool:
        """Whether it is shown to be higher."""
        return self.interval[0] > 0 and not self.sync_diverged

    @property
    def is_interpolated(self) -> bool:
        """Whether a loss between runs of two lengths is compared."""
        return len(self.lengths) > 1 or len(self.sync_lengths) > 1

    @property
    def needed(self) -> list[int]:
        """Whole numbers of updates of runs that compare sync and the delayed run."""
        return [floor(self.sync_updates + NEARLY), ceil(self.updates - NEARLY)]

    @property
    def runs(self) -> str:
        """The runs that are compared, in words."""
        lengths, sync_lengths = (
            " and ".join(f"{length:,}" for length in of_side)
            for of_side in (self.lengths, self.sync_lengths)
        )
        between = "between " if self.is_interpolated else ""
        side = "fewer" if self.excess < 0 else "more"
        allowed = f", {side} than the time allows" if self.excess else ""
        return f"{between}{lengths} against {sync_lengths} updates{allowed}"


class Distance(NamedTuple):
    """How far runs are from taking the same time; the smallest is the nearest."""

    ratio: float
    """Logarithm of the ratio of the two times; infinite if no runs stand in."""
    num_lengths: int


@dataclass(frozen=True)
class BothSides:
    """What stands in for the runs of both sides, on the delayed one by arm."""

    distance: Distance
    updates: float
    sync_updates: float
    sync: StandIn
    delayed: dict[str, StandIn]

    def num_seeds(self, evidence: Evidence) -> int:
        """The number of seeds that have these runs on both sides, whatever became of them."""
        return sum(
            not np.isnan(self.sync.loss(losses))
            and any(
                not np.isnan(stand_in.loss(evidence.finals[arm].get(seed, {})))
                for arm, stand_in in self.delayed.items()
            )
            for seed, losses in evidence.finals["sync"].items()
        )


def pessimistic(evidence: Evidence, arms: Sequence[str], speed_up: float) -> SameTime:
    """The comparison that favours sync, where it favours a side: it may decide for the delay."""
    return _compared(evidence, arms, speed_up, _nearest(evidence, arms, speed_up, *FOR_SYNC))


def optimistic(evidence: Evidence, arms: Sequence[str], speed_up: float) -> SameTime:
    """The comparison that favours the delay, where it favours a side: it may decide for sync."""
    return _compared(evidence, arms, speed_up, _nearest(evidence, arms, speed_up, *FOR_DELAY))


FOR_SYNC, FOR_DELAY = (no_lower, no_higher), (no_higher, no_lower)
"""What stands in for runs of the delay and of sync, in a comparison that favours this side."""


def nearest_length(by_length: Sequence[Evidence], least: float, most: float) -> Evidence:
    """The length of training at which runs come nearest to the same time, of `by_length`, which is
    not empty and begins with the longest.

    `least`, `most`: the speed-up at which a verdict for the delay and one for sync must hold. The
    runs that may decide for the delay count first, then those that may decide for sync; among equal
    ones the most seeds, then the longest. Only lengths and seeds choose: to take the first length
    that decides would be one more try at 5 % for each length.
    """

    def rank(evidence: Evidence) -> tuple[bool, int, float, float, int]:
        arms = [gap.arm for gap in evidence.gaps]
        for_sync = _nearest(evidence, arms, least, *FOR_SYNC)  # which may decide for the delay
        for_delay = _nearest(evidence, arms, most, *FOR_DELAY)
        num_seeds = for_sync.num_seeds(evidence)
        return (
            not evidence.decides,
            -min(num_seeds, ENOUGH_SEEDS),
            for_sync.distance.ratio,
            for_delay.distance.ratio,
            -num_seeds,
        )

    return min(by_length, key=rank)


def compared(evidence: Evidence, arm: str, speed_ups: Iterable[float]) -> list[int]:
    """The lengths of the arm's runs that are compared with sync's: as many updates as sync makes,
    and those that stand in for what each speed-up allows."""
    lengths = {evidence.updates}
    lengths_there = {length for losses in evidence.finals[arm].values() for length in losses}
    for updates in (evidence.updates * speed_up for speed_up in speed_ups):
        for choose in (no_lower, no_higher):
            lengths |= {*choose(lengths_there, updates).weights}
    return sorted(lengths)


def _nearest(
    evidence: Evidence,
    arms: Sequence[str],
    speed_up: float,
    of_delayed: ChooseStandIn,
    of_sync: ChooseStandIn,
) -> BothSides:
    """Delayed runs longer by the speed-up, or sync runs shorter by it, whichever the runs are
    nearer to; of several arms those whose runs are nearest.

    What is compared depends on the lengths of the runs alone and not on their losses: taking what
    shows more would decide too often. Runs of the very length come before an interpolation.
    """
    whole = float(evidence.updates)
    options = []
    # The delayed run longer than `updates`, or sync's shorter: both take the same time.
    for updates, sync_updates in ((whole * speed_up, whole), (whole, whole / speed_up)):
        sync = of_sync(_lengths(evidence, "sync"), sync_updates)
        stands = {arm: of_delayed(_lengths(evidence, arm), updates) for arm in arms}
        away = {arm: _distance(stand, sync, speed_up) for arm, stand in stands.items()}
        least = min(away.values())
        nearest_arms = {arm: stand for arm, stand in stands.items() if away[arm] == least}
        options.append(BothSides(least, updates, sync_updates, sync, nearest_arms))
    return min(options, key=lambda option: option.distance)


def _lengths(evidence: Evidence, arm: str) -> list[int]:
    """The lengths of an arm's runs at ENOUGH_SEEDS seeds of sync, or at two if sync has no more at
    `evidence.updates`: one seed has no interval."""
    sync, by_seed = evidence.finals["sync"], evidence.finals[arm]
    num_seeds = sum(evidence.updates in losses for losses in sync.values())
    runs = [length for seed in sync for length in by_seed.get(seed, ())]
    least = max(2, min(num_seeds, ENOUGH_SEEDS))
    return sorted({length for length in runs if runs.count(length) >= least})


def _excess(stand: StandIn, sync: StandIn, speed_up: float) -> float:
    """See `SameTime.excess`."""
    excess = stand.updates - sync.updates * speed_up
    return 0.0 if abs(excess) < 1 + speed_up else excess


def _distance(stand: StandIn, sync: StandIn, speed_up: float) -> Distance:
    excess = _excess(stand, sync, speed_up)
    if np.isnan(excess):
        return Distance(inf, 0)
    # Rounded: equally near runs must be equal for the rest of `Distance` to decide.
    ratio = round(abs(float(np.log(1 + excess / (sync.updates * speed_up)))), 9)
    return Distance(ratio, len(stand.weights) + len(sync.weights))


def _compared(
    evidence: Evidence, arms: Sequence[str], speed_up: float, runs: BothSides
) -> SameTime:
    """The comparison over seeds, each with the arm of the lowest mean loss on the other seeds.

    The interval allows for the choice among all `arms`, also among those without such runs: people
    train longer what they saw to be best.
    """
    delayed_arms = [*runs.delayed]
    sync_losses = evidence.finals["sync"]
    arms_of_seeds = {seed: _best_without(evidence, delayed_arms, {seed}) for seed in sync_losses}
    losses = np.array(
        [
            runs.delayed[arm].loss(evidence.finals[arm].get(seed, {}))
            for seed, arm in arms_of_seeds.items()
        ]
    )
    gaps = losses - np.array([runs.sync.loss(of_seed) for of_seed in sync_losses.values()])
    is_finite = np.isfinite(gaps)
    finite_gaps = gaps[is_finite]
    mean, spread, interval = _mean(finite_gaps, len(arms) > 1, evidence.num_settings)
    stand = runs.delayed[delayed_arms[0]]  # all of these arms are equally near
    return SameTime(
        arm=_best_without(evidence, delayed_arms, set()),
        speed_up=speed_up,
        updates=runs.updates,
        sync_updates=runs.sync_updates,
        lengths=tuple(sorted({x for of_arm in runs.delayed.values() for x in of_arm.weights})),
        sync_lengths=tuple(sorted(runs.sync.weights)),
        excess=_excess(stand, runs.sync, speed_up),
        n=len(finite_gaps),
        gap=mean,
        loss=float(losses[is_finite].mean()) if is_finite.any() else np.nan,
        spread=spread,
        interval=interval,
        diverged=int(np.isposinf(gaps).sum()),
        sync_diverged=int(np.isneginf(gaps).sum()),
        arms=(*delayed_arms,),
    )


def _mean(gaps: Values, is_held_out: bool, num_settings: int) -> tuple[float, float, Interval]:
    """Mean, standard deviation and interval: wider if each seed has what is best on the others, and
    of a confidence that lets the best of `num_settings` on the same seeds err in one of twenty."""
    n = len(gaps)
    if not n:
        return np.nan, np.nan, (np.nan, np.nan)
    confidence = shared_confidence(num_settings)
    wider = np.sqrt(folds_share(n)) if is_held_out else 1.0
    low, high = mean_interval(gaps, confidence)
    mean, half = float(gaps.mean()), wider * (high - low) / 2
    # `spread` is for `seeds_needed`, which makes intervals of 95 % of it.
    wider *= quantile(n, confidence) / quantile(n)
    spread = float(wider * gaps.std(ddof=1)) if n > 1 else np.nan
    return mean, spread, (mean - half, mean + half)


def _best_without(evidence: Evidence, arms: Sequence[str], seeds: Set[int]) -> str:
    """The arm of the lowest mean loss at `evidence.updates` on all seeds but these."""
    if len(arms) == 1:
        return arms[0]
    finals = [evidence.finals[arm] for arm in arms]
    seeds_of_arms = (
        {s for s, losses in by_seed.items() if evidence.updates in losses} for by_seed in finals
    )
    other_seeds = set.intersection(*seeds_of_arms) - seeds
    # Sums, not means: all arms have the same seeds. Without any the first arm counts.
    sums = [sum(by_seed[s][evidence.updates] for s in other_seeds) for by_seed in finals]
    return arms[int(np.argmin(sums))]
