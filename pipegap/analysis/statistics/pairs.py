"""Which trials are compared, and the 95 % intervals of what is computed from them."""

import math
import warnings
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, stats

from pipegap.analysis.table.points import (
    ARM_GROUPS,
    BESIDE,
    MACHINE,
    TORCH,
    group_of,
    in_order,
    num_on_machine,
)
from pipegap.analysis.table.rows import SOURCE
from pipegap.trainer.base.errors import FINAL, BadInput, Status

# 95 % intervals: of a mean, of a ratio of two means, and of the difference of two bests.
#
# And how many pairs are enough: the gap that n of them detect, and those that a precision needs.
# Both assume Student's t-interval of paired gaps that are normally distributed with standard
# deviation `sd`.

Values = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
POWER = 0.8
"""The probability with which what is called detectable is detected."""
UNKNOWN: Interval = (np.nan, np.nan)
SHARE_CONFIDENCES = ((0.997, CONFIDENCE), (0.99, 0.99))
"""Of a share: with which confidence the whole is not 0, and the confidence of the share's interval.
So the interval covers 95 % of the shares that are told, where the true whole is two standard errors
or more, and 90 % where it is nothing: tests/analysis/statistics/test_best.py. The width is no
reason to leave a share untold: of the narrow intervals of weak wholes 70 to 90 % cover."""
UNTOLD = "too weak for a share"
"""What stands in the place of a share of a whole that may be 0."""


def mean_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """Student's t-interval of the mean of n values, shape (n,); unknown for n < 2."""
    low, high = mean_intervals(values, confidence)
    return float(low), float(high)


def mean_with_ends(values: Values) -> tuple[float, float, float]:
    """The mean of n values, shape (n,), and both ends of its interval; NaN as far as unknown."""
    return (float(values.mean()) if len(values) else np.nan, *mean_interval(values))


def ends_text(low: float, high: float, form: str) -> str:
    """` [+0.2120, +0.2640]` by the format; empty for an unknown interval."""
    return "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"


def mean_intervals(values: Values, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
    """Lower and upper ends for values of shape (..., n): see `Moments.interval`."""
    return moments(values).interval(confidence)


class Moments(NamedTuple):
    """Mean and standard deviation (n − 1) of n values, both of shape (...)."""

    mean: Values
    std: Values
    n: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
        """Lower and upper ends of Student's t-interval of the mean. Where all n values are the same
        infinity, both ends are that; where some are infinite or missing, or n < 2, they are NaN."""
        half = quantile(self.n, confidence) * self.std / np.sqrt(self.n)
        return self.mean - half, self.mean + half  # ∞ ± 0 where the mean is infinite


def moments(values: Values) -> Moments:
    """The moments of values of shape (..., n). The same infinity n times has a standard deviation
    of 0; for n < 2 both moments are NaN."""
    n = values.shape[-1]
    if n < 2:
        unknown = np.full(values.shape[:-1], np.nan)
        return Moments(unknown, unknown, n)
    with np.errstate(invalid="ignore"):  # ∞ − ∞ is NaN, which is mended below
        mean = values.mean(axis=-1)
        std = values.std(axis=-1, ddof=1, mean=mean[..., None])
    infinite = np.isinf(mean)
    if infinite.any():
        std = np.where(infinite & (values == values[..., :1]).all(axis=-1), 0.0, std)
    return Moments(mean, std, n)


def ratio_interval(
    numerator: Values, denominator: Values, confidence: float = CONFIDENCE
) -> Interval:
    """Fieller's interval of mean(numerator) / mean(denominator), paired samples of equal length.

    It holds the ratios r at which the t-test of mean(numerator − r · denominator) = 0 does not
    reject (Fieller 1954). Unknown for n < 2, and where the denominator's mean may be 0: such ratios
    are then no interval.
    """
    n = len(numerator)
    if n < 2:
        return UNKNOWN
    (var_n, cov), (_, var_d) = np.cov(numerator, denominator) * quantile(n, confidence) ** 2 / n
    mean_n, mean_d = np.mean(numerator), np.mean(denominator)
    # (mean_n − r mean_d)² ≤ var_n − 2 r cov + r² var_d, a quadratic inequality in r.
    a, b, c = mean_d**2 - var_d, mean_n * mean_d - cov, mean_n**2 - var_n
    if a <= 0:  # the interval of the denominator's mean holds 0
        return UNKNOWN
    root = np.sqrt(max(b**2 - a * c, 0.0))
    return float((b - root) / a), float((b + root) / a)


def share_interval(part: Values, whole: Values) -> Interval:
    """The interval of mean(part) / mean(whole), for a whole that is seen to be there by the same
    pairs: Fieller's of 95 % where it is plain, wider where it is not, and unknown where it is weak.

    Of wholes that are large enough to be seen, those that chance made look larger are seen more
    often, and with them shares that are wrong: 95 % would cover 91 to 94 % of these. No interval
    with ends covers a share of what may be nothing (Gleser, Hwang 1987).
    """
    for of_whole, of_share in SHARE_CONFIDENCES:
        if excludes_zero(mean_interval(whole, of_whole)):
            return ratio_interval(part, whole, of_share)
    return UNKNOWN


def share_text(share: float, low: float, high: float) -> str:
    """`80% [35%, 140%]`, or UNTOLD."""
    return UNTOLD if np.isnan(low) else f"{share:.0%}{ends_text(low, high, '.0%')}"


def held_out_gaps(sync: Values, arm: Values) -> Values:
    """For losses of shape (..., points, seeds), the gap at each seed of the settings that are best
    on the others, shape (..., seeds); infinite if the arm diverged there, if it diverged on the
    others at every setting, or if there are no others."""
    base = at_best_on_others(sync, sync)
    is_finite = np.isfinite(base)
    # 0 in the place of an infinite base: ∞ − ∞ would warn before `where` leaves it out.
    return np.where(is_finite, at_best_on_others(arm, arm) - np.where(is_finite, base, 0.0), np.inf)


def interval_of_best(
    same_seeds: Values, held_out: Values, confidence: float = CONFIDENCE
) -> tuple[Values, Values]:
    """Ends of the interval of the difference of two bests, from gaps of shape (..., n) at settings
    chosen on all seeds, and for each seed on the others.

    It encloses Student's t-intervals of both, the latter with the variance of `folds_share`.
    """
    of_same = mean_intervals(same_seeds, confidence)
    low, high = mean_intervals(held_out, confidence)
    middle, half = (low + high) / 2, np.sqrt(folds_share(held_out.shape[-1])) * (high - low) / 2
    return np.minimum(of_same[0], middle - half), np.maximum(of_same[1], middle + half)


def folds_share(n: int) -> float:
    """By how much the variance of a mean over n seeds exceeds s²/n, if each seed has the setting
    that is best on the others: (1/n + 1/(n - 1)) / (1/n) (Nadeau, Bengio 2003)."""
    return 1 + n / max(1, n - 1)


def at_best_on_others(losses: Values, values: Values) -> Values:
    """For each seed, the value at the point of the lowest mean loss on the other seeds.

    Both have the shape (..., points, seeds), the result (..., seeds); it is infinite where there is
    no such point.
    """
    diverged = np.isinf(losses)
    # All sums but one seed's, by a subtraction, in which infinities must not take part.
    finite = np.where(diverged, 0.0, losses)
    sums_of_others = finite.sum(axis=-1, keepdims=True) - finite
    other_diverged = diverged.sum(axis=-1, keepdims=True) > diverged
    sums_of_others = np.where(other_diverged | (losses.shape[-1] < 2), np.inf, sums_of_others)
    best_index = sums_of_others.argmin(axis=-2)[..., None, :]  # [..., 1, seeds]
    best_values = np.take_along_axis(values, best_index, axis=-2)[..., 0, :]
    return np.where(np.isinf(sums_of_others.min(axis=-2)), np.inf, best_values)


def excludes_zero(interval: Interval) -> bool:
    """False for an unknown interval."""
    low, high = interval
    return low > 0 or high < 0


def shared_confidence(num_chances: int) -> float:
    """The confidence of each of so many intervals, of which none errs in 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / num_chances


@cache
def quantile(n: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of the interval of a mean of n values, in standard errors; NaN for n < 2."""
    return float(stats.t.ppf((1 + confidence) / 2, n - 1))


def detectable_gap(sd: float, n: int) -> float:
    """The smallest true mean gap whose 95 % interval over `n` pairs excludes 0 with a probability
    of 80 % (noncentral t); infinite for n < 2."""
    return math.inf if n < 2 else detectable_shift(n - 1) * sd / math.sqrt(n)


@cache
def detectable_shift(freedom: float) -> float:
    """The smallest true mean that is detected with a probability of 80 %, in standard errors that
    are known with these degrees of freedom."""
    critical = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))

    def excess(shift: float) -> float:
        """Power minus POWER, at a true mean of `shift` standard errors.

        Intervals below 0 are not counted: they have a chance of 1e-6 where the power is 80 %.
        """
        return float(stats.nct.sf(critical, freedom, shift)) - POWER

    return optimize.brentq(excess, 0, 4 * critical)


def seeds_needed(sd: float, half_width: float) -> int:
    """The smallest number of pairs, of standard deviation `sd`, whose 95 % interval is at most
    `half_width` (> 0) to each side of the mean."""
    n = max(2, math.ceil((stats.norm.ppf((1 + CONFIDENCE) / 2) * sd / half_width) ** 2))
    while quantile(n) * sd / math.sqrt(n) > half_width:  # t is wider than the normal of the guess
        n += 1
    return n


# Which trials are compared: each trial of an arm with its synchronous partner, and what the arm
# costs beside it in memory and speed (the paper's appendix F).

ENOUGH_UPDATES = 100
"""Shorter trials show that the code runs, not what a delay costs."""
VARIANT = ["num_stages", "num_microbatches"]
SAME_ARM = ["optimizer", "point", "arm", *VARIANT]
"""Columns that tell the rows of the table of gaps apart."""
SAME_TRIAL = [*SAME_ARM, "seed"]
SLACK = "pipeline.slack"
"""The key of an arm that changes no number."""
CODE = ["trainer_version", "git"]
MADE_BY = [*CODE, *MACHINE]
COMPARED = ("sync", "delay", "delay_ef")
"""The arms whose costs are shown by default."""
WHERE = ["runner", "device_name"]
SAME_COST = ["optimizer", "point", "seed", *VARIANT, *WHERE, TORCH]
MEASURED = {"peak_memory_bytes": "memory", "tokens_per_second": "speed"}
OF_PAIR = [*SAME_TRIAL, "base_arm", "delay", "trial_id", "status", "final_val_loss", *MADE_BY]


def results(trials: pd.DataFrame) -> pd.DataFrame:
    """Trials that have a result (completed or diverged), each once, with `num_stages` and
    `num_microbatches`.

    Of several trials with one arm, point, seed, number of stages and of microbatches one counts: of
    the highest trainer_version those on the device and torch that ran most trials of this point and
    seed, so that pairs are of one kind where they can be, and of these the latest. Warns if they
    were made by different trainers. Raises BadInput if they differ in what their arm is made of.
    """
    renamed = trials.rename(columns={f"pipeline.{name}": name for name in VARIANT})
    done = renamed[renamed["status"].isin(FINAL)]
    if done.empty:  # of a store without trials the table does not even have all columns
        return done.reindex(columns=list(dict.fromkeys([*done, *VARIANT])))
    # Of few columns: the table has many, and every move of a row moves them all.
    table = done.reindex(columns=[*SAME_TRIAL, *MADE_BY, "finished_at", "trial_id"])
    order = ["trainer_version", "num_on_machine", "finished_at", "trial_id"]
    table = table.assign(num_on_machine=num_on_machine(table))
    newest_last = table.sort_values(order, kind="stable")
    repeated = newest_last[newest_last.duplicated(SAME_TRIAL, keep=False)]
    _refuse_other_values(done.loc[repeated.index])
    makers = repeated[CODE].astype(str).groupby([repeated[name] for name in SAME_TRIAL])
    num_mixed = int((makers.nunique() > 1).any(axis=1).sum()) if len(repeated) else 0
    if num_mixed:
        _warn(f"{num_mixed} trials were run by several versions of the code: the newest count")
    newest = newest_last.drop_duplicates(SAME_TRIAL, keep="last")
    newest = in_order(newest, SAME_TRIAL, done)
    return done.loc[newest.index]


def _refuse_other_values(repeated: pd.DataFrame) -> None:
    """Raises BadInput for trials that count as one, though pipeline or correction differ: sync's
    may, as they make no number.

    A value is missing in older trials, but the source of code of one's own in others alone.
    """
    delayed = repeated[repeated["arm"] != "sync"]
    keys = [key for key in map(str, delayed) if group_of(key) in ARM_GROUPS and key != SLACK]
    values = delayed[["schedule", "method", *(key for key in keys if "." in key)]]
    values = values.fillna({key: "" for key in keys if key.endswith(SOURCE)})
    counts = values.groupby([delayed[name] for name in SAME_TRIAL], dropna=False).nunique()
    for key in counts.columns[(counts > 1).any()]:
        trial = dict(zip(SAME_TRIAL, counts.index[counts[key] > 1][0], strict=True))
        values_found = ", ".join(map(str, sorted(values[key].dropna().unique())))
        allowed = f"trials of arm {trial['arm']}, seed {trial['seed']}, differ in it: move one away"
        raise BadInput(key, values_found, allowed)


def pairs(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per trial of an arm other than sync: its own columns and its partner's (`…_sync`).

    The partner is the sync trial of the same point and seed. If there are several, the one with as
    many stages and microbatches is taken, else the one with the fewest stages, then microbatches:
    without a delay, they change only the order of a sum. Without a partner its columns are missing.
    `gap` is NaN unless both completed. Warns of pairs of different trainers, devices or torch;
    raises BadInput (a ValueError) if trials of one setting and data.path saw different data.
    """
    _refuse_mixed_data(trials)
    done = results(trials).reindex(columns=OF_PAIR)  # an older CSV has no column of versions
    sync, arms = done[done["arm"] == "sync"], done[done["arm"] != "sync"]
    paired = arms.merge(
        sync.drop(columns=["arm", "base_arm", "delay"]),
        on=["optimizer", "point", "seed"],
        how="left",
        suffixes=("", "_sync"),
    )
    # The merge pairs a trial with every sync of its seed: False sorts before True.
    foreign = [paired[name] != paired[f"{name}_sync"] for name in VARIANT]
    paired["foreign"] = foreign[0] | foreign[1]
    order = ["foreign", *(f"{name}_sync" for name in VARIANT)]
    best = paired.sort_values(order, kind="stable").drop_duplicates(SAME_TRIAL)
    _warn_of_mixed(best[best["status_sync"].notna()])
    best["gap"] = best["final_val_loss"] - best["final_val_loss_sync"]
    return in_order(best.drop(columns="foreign"), SAME_TRIAL, done).reset_index(drop=True)


def overhead(trials: pd.DataFrame, arms: Collection[str] = COMPARED) -> pd.DataFrame:
    """One row per optimizer, runner, device and arm, with medians over its n completed trials.

    `arms`: those that have a row; sync must be among them.

    `memory` is in bytes, `speed` in tokens per second. Their ratios are to the sync trial of the
    same point, seed, stages, microbatches, runner, device and version of torch. The speed of a
    trial counts only if no other trial ran at its time on a device of the same name; `speed n` is
    the number of trials whose speed counts. The other trials are those of the store if a report has
    noted it (BESIDE), else those of the table.
    """
    done = results(trials)
    is_beside = trials[BESIDE] if BESIDE in trials else side_by_side(trials)
    beside_of_done = done["trial_id"].map(is_beside.set_axis(trials["trial_id"]))
    speed = done["tokens_per_second"].mask(beside_of_done.astype(bool))
    done = done.assign(tokens_per_second=speed)
    costs = done[(done["status"] == Status.COMPLETED) & done["arm"].isin([*arms])]
    costs = costs.reindex(columns=[*SAME_COST, "arm", *MEASURED]).rename(columns=MEASURED)
    costs = costs.astype(dict.fromkeys(MEASURED.values(), "float64"))
    sync = costs[costs["arm"] == "sync"].drop(columns="arm")
    paired = costs.merge(sync, on=SAME_COST, how="left", suffixes=("", "_sync"))
    for name in MEASURED.values():
        paired[f"{name} ratio"] = paired[name] / paired[f"{name}_sync"]
    groups = paired.groupby(keys := ["optimizer", *WHERE, "arm"], dropna=False)
    table = groups[
        [f"{name}{end}" for name in MEASURED.values() for end in ("", " ratio")]
    ].median()
    table["n"] = groups.size()
    table["speed n"] = groups["speed"].count()
    return in_order(table.reset_index(), keys, done).reset_index(drop=True)


def side_by_side(trials: pd.DataFrame) -> pd.Series:
    """Whether another trial ran at the time of each, on a device of the same name.

    A trial is taken to have run for its wall seconds until it finished; of one that was interrupted
    this is not the very time. Where a time is not known, nothing is known of its neighbours: True.
    """
    ends = (trials["finished_at"] - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    starts = ends - trials["wall_seconds"]
    is_beside = pd.Series(True, index=trials.index)
    has_start = starts.notna()
    for _, rows in trials[has_start].groupby("device_name", dropna=False):
        first, last = starts[rows.index].to_numpy(), ends[rows.index].to_numpy()
        order = np.argsort(first, kind="stable")
        # By start: a trial overlaps an earlier one if any of these ends after it starts.
        latest_end = np.maximum.accumulate(last[order])
        overlaps_earlier = np.concatenate([[-np.inf], latest_end[:-1]]) > first[order]
        overlaps_later = np.concatenate([first[order][1:], [np.inf]]) < last[order]
        is_beside.loc[rows.index[order]] = overlaps_earlier | overlaps_later
    return is_beside


def _refuse_mixed_data(trials: pd.DataFrame) -> None:
    hashes_of_data = trials.groupby(["settings_key", "data.path"])["data_hash"].unique()
    for path, hashes in hashes_of_data.droplevel("settings_key").items():
        short_hashes = sorted(value[:8] for value in hashes if pd.notna(value))
        if len(short_hashes) > 1:
            allowed = (
                f"trials of one setting on data.path={path} saw different data and cannot be "
                "compared: move those on the old data out of the results folder"
            )
            raise BadInput("data_hash", ", ".join(short_hashes), allowed)


def _warn_of_mixed(paired: pd.DataFrame) -> None:
    for key in MADE_BY:
        values, partner = (
            paired[name].astype("string").fillna("unknown") for name in (key, f"{key}_sync")
        )
        mixed = values != partner
        if mixed.any():
            example = f"{values[mixed].iloc[0]} and {partner[mixed].iloc[0]}"
            _warn(f"{mixed.sum()} of {len(paired)} pairs mix {key} ({example}, for example)")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
