"""The token tax: the updates that a delayed run needs for the loss that sync reaches, over sync's.

A run has the same tokens in each update, so it is a ratio of tokens as well. The break-even of an
asynchronous pipeline is tax < speed-up. There are two estimates of it, and the better one counts:

`lengths`: delayed runs of several lengths, between which lies the length at which they end at
sync's final loss.

`slope`: sync's own runs of several lengths, between which lies the length at which sync ends at the
final loss of the delayed run. It assumes that the delayed runs fall as sync does.

Both interpolate in the logarithm of the length, and never extrapolate. The interval holds the tax
of every law between two forms (see `crossing`), and the noise of all losses.

Each run has its own learning-rate schedule, which ends with it: a loss in the middle of a longer
run cannot stand for the final loss of a shorter one. Final losses are a convex function of the
length: they fall, and ever more slowly. So a chord between two of them lies above the truth.

`reported_taxes.csv` has the taxes that others reported, or that follow from losses that they
reported, with their source and how each was converted. Where only a gap was reported, the tax is
exp(gap / slope) with a slope that is our estimate, and counts as ESTIMATED.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipegap.analysis.statistics.pairs import (
    CONFIDENCE,
    ENOUGH_UPDATES,
    SAME_ARM,
    VARIANT,
    Values,
    ratio_interval,
    results,
)
from pipegap.analysis.table.points import families, families_by_decay, in_order, updates_asked

ByLength = Mapping[int, float]
"""Final losses by the number of updates of the run."""


class StandIn(NamedTuple):
    """Runs that stand for one of another length: the weights, which sum to 1, by their length;
    empty if no runs can."""

    weights: Mapping[int, float]

    @property
    def updates(self) -> float:
        """The mean length; NaN without runs."""
        weights = self.weights
        return sum(share * length for length, share in weights.items()) if weights else np.nan

    def loss(self, finals: ByLength) -> float:
        """The weighted mean of the final losses of one seed; NaN if a run is missing, infinite if
        one diverged."""
        if not self.weights or not self.weights.keys() <= finals.keys():
            return np.nan
        return sum(share * finals[length] for length, share in self.weights.items())


def no_lower(lengths: Collection[int], updates: float) -> StandIn:
    """Runs that end no lower than one of so many updates.

    They are the run of that length to within one update, else the chord between its neighbours,
    which lies above a convex law, else the longest run that is shorter.
    """
    shorter, longer = _next_to(lengths, updates)
    if shorter is None or longer is None:
        return StandIn({shorter: 1.0} if shorter is not None else {})
    if shorter == longer:
        return StandIn({shorter: 1.0})
    share = (updates - shorter) / (longer - shorter)
    return StandIn({shorter: 1 - share, longer: share})


def no_higher(lengths: Collection[int], updates: float) -> StandIn:
    """Runs that end no higher than one of so many updates: the run of that length to within one
    update, else the shortest one that is longer."""
    _, longer = _next_to(lengths, updates)
    return StandIn({} if longer is None else {longer: 1.0})


def _next_to(lengths: Collection[int], updates: float) -> tuple[int | None, int | None]:
    """The nearest lengths below and above, both the same one if it is less than an update away."""
    nearest = min(lengths, key=lambda length: abs(length - updates), default=None)
    if nearest is not None and abs(nearest - updates) < 1:
        return nearest, nearest
    shorter = max((length for length in lengths if length < updates), default=None)
    return shorter, min((length for length in lengths if length > updates), default=None)


class Crossing(NamedTuple):
    """The length of the run that ends at a level, with the ends of its interval."""

    length: float
    low: float
    high: float


def bracket(finals: Sequence[ByLength], level: float) -> tuple[int, int] | float:
    """The neighbouring lengths between whose mean losses the level lies; infinite if no length ends
    as low, 0 if all end lower. Each seed of `finals` has the same lengths."""
    lengths = sorted(finals[0])
    means = [float(np.mean([losses[length] for losses in finals])) for length in lengths]
    for (shorter, above), (longer, below) in pairwise(zip(lengths, means, strict=True)):
        # The last condition: between two equal means every length would do.
        if above >= level >= below < above:
            return shorter, longer
    return np.inf if means[-1] > level else 0.0


def crossing(
    above: Values, below: Values, levels: Values, lengths: tuple[int, int], confidence: float
) -> Crossing:
    """The length at which losses fall to `levels`, from runs of the shorter and of the longer of
    two lengths that end `above` and `below` them; one value per seed.

    The share of the way is a ratio of two means over seeds, with Fieller's interval. The length is
    interpolated in the logarithm. The interval covers every law that is convex in the length and
    falls no faster than 1 / T: between and beyond the two lengths such a law lies between the two
    lines that are straight in T and in 1 / T. NaN if the losses are not shown to fall; one seed has
    no interval.
    """
    way, whole = above - levels, above - below
    share, (low, high) = float(way.mean() / whole.mean()), ratio_interval(way, whole, confidence)
    if len(way) > 1 and np.isnan(low):
        return Crossing(np.nan, np.nan, np.nan)
    straight = [_along(form, lengths, end) for form in COORDINATES for end in (low, high)]
    return Crossing(_along(COORDINATES[1], lengths, share), min(straight), max(straight))


class Coordinate(NamedTuple):
    """A coordinate in which a law may be a straight line: rising in the length, and its inverse."""

    of_length: Callable[[float], float]
    to_length: Callable[[float], float]


COORDINATES = (
    Coordinate(float, lambda x: max(x, 0.0)),
    Coordinate(np.log, np.exp),
    Coordinate(lambda length: -1 / length, lambda x: -1 / x if x < 0 else np.inf),
)
"""T, ln T and 1 / T: power laws T^-c with c of -1, 0 and 1, with any floor."""


def _along(coordinate: Coordinate, lengths: tuple[int, int], share: float) -> float:
    """The length at a share of the way between two lengths, in a coordinate."""
    if np.isnan(share):
        return np.nan
    # Beyond the two lengths too, for the ends of an interval: hence overflows and 1 / 0.
    shorter, longer = map(coordinate.of_length, lengths)
    with np.errstate(over="ignore"):
        return float(coordinate.to_length(shorter + share * (longer - shorter)))


LENGTHS, SLOPE = "lengths", "slope"
MAIN_ARMS = ("delay", "delay_ef")
"""The arms of the paper's question: their taxes are the headline."""
SECOND = 0.98
"""Confidence of the second estimate, where the losses gave no first one. Of the numbers that are
then given either estimate may err, and both together are to err in one of twenty."""
Finals = Mapping[int, ByLength]
"""By seed, the final losses of an arm's runs by their length; NaN where a run diverged."""
REPORTED, ESTIMATED = "reported", "estimated"
PAPER = "paper, 360M"
"""Who reported the losses of tables 1 and 2."""


class Tax(NamedTuple):
    """A mean ratio over `tax_n` seeds with its 95 % interval; NaN where it is not known.

    `tax_from`: LENGTHS or SLOPE. `tax_why`: why there is no number, empty if there is one.
    """

    tax: float = np.nan
    tax_low: float = np.nan
    tax_high: float = np.nan
    tax_n: int = 0
    tax_from: str = ""
    tax_why: str = ""


def taxes(trials: pd.DataFrame, pairs: pd.DataFrame) -> dict[tuple[Any, ...], Tax]:
    """The tax of each arm at each point, by the values of SAME_ARM.

    `trials`: `load`'s table; `pairs`: that of `pairs.pairs`. The runs of several lengths are at
    points that differ in their length alone (`points.families`); if all of these have one length,
    at points whose weight decay falls as the length grows (`points.families_by_decay`).
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # pairs has said so
        done = results(trials)
    words_of_point = {point: family.words for point, family in families(trials).items()}
    by_arm = _taxes(done, pairs, words_of_point, trials)
    by_decay = families_by_decay(trials)
    if not by_decay:
        return by_arm
    taxes_by_decay = _taxes(done, pairs, by_decay, trials)
    return {
        key: taxes_by_decay[key] if tax.tax_why == ONE_LENGTH and taxes_by_decay[key].tax_n else tax
        for key, tax in by_arm.items()
    }


def _taxes(
    done: pd.DataFrame, pairs: pd.DataFrame, family: Mapping[str, str], trials: pd.DataFrame
) -> dict[tuple[Any, ...], Tax]:
    """The taxes if the runs of several lengths are those of one family."""
    lengths = updates_asked(trials.drop_duplicates("point").set_index("point"))
    # By stages: of several sync trials of a seed `_by_family` takes the first, as `pairs` does.
    sync = done[done["arm"] == "sync"].sort_values(VARIANT, kind="stable")
    sync_finals = _by_family(sync, ["optimizer"], family, lengths)
    arm_finals = _by_family(pairs, ["optimizer", "arm", *VARIANT], family, lengths)
    by_arm = {}
    for key in pairs[SAME_ARM].drop_duplicates().itertuples(index=False, name=None):
        optimizer, point, arm, *variant = key
        of_sync = sync_finals.get((optimizer, family.get(point, point)), {})
        of_arm = arm_finals[optimizer, arm, *variant, family.get(point, point)]
        by_arm[key] = token_tax(of_sync, of_arm, int(lengths[point]))
    return by_arm


def _by_family(
    table: pd.DataFrame, keys: Sequence[str], family: Mapping[str, str], lengths: pd.Series
) -> dict[tuple[Any, ...], dict[int, dict[int, float]]]:
    """Final losses by seed and length, for the values of `keys` and a family of points; of several
    trials the first."""
    finals: dict[tuple[Any, ...], dict[int, dict[int, float]]] = {}
    columns = [*keys, "point", "seed", "final_val_loss"]
    for *key, point, seed, loss in table[columns].itertuples(index=False):
        # A point without a family, as one of `families_by_decay` without decay, stands for itself.
        by_seed = finals.setdefault((*key, family.get(point, point)), {})
        by_seed.setdefault(int(seed), {}).setdefault(int(lengths[point]), float(loss))
    return finals


def token_tax(sync: Finals, delayed: Finals, updates: int) -> Tax:
    """The tax for the loss that sync reaches after `updates`, of all seeds that both have.

    By lengths if two seeds or more allow it, else by the slope, else by whichever has one seed.
    None after fewer than ENOUGH_UPDATES.
    """
    if updates < ENOUGH_UPDATES:
        return Tax(tax_why=f"runs of fewer than {ENOUGH_UPDATES} updates")
    seeds = [seed for seed in sync if updates in sync[seed] and updates in delayed.get(seed, {})]
    seeds = [seed for seed in seeds if np.isfinite(sync[seed][updates])]
    if not seeds:
        return Tax(tax_why="no pair")
    diverged = sum(not np.isfinite(delayed[seed][updates]) for seed in seeds)
    if diverged:
        return Tax(tax_why=f"{diverged} of {len(seeds)} delayed runs diverged")
    finals_of_seeds = {seed: sync[seed] for seed in seeds}, {seed: delayed[seed] for seed in seeds}
    first = by_lengths(*finals_of_seeds, updates)
    # Where no delayed run has another length, the slope is the only estimate that there ever was.
    is_second = first.tax_why != ONE_LENGTH
    estimates = [first, by_slope(*finals_of_seeds, updates, SECOND if is_second else CONFIDENCE)]
    estimates_known = [tax for tax in estimates if tax.tax_n]
    if estimates_known:
        return next((tax for tax in estimates_known if tax.tax_n > 1), estimates_known[0])
    return Tax(tax_why="; ".join(dict.fromkeys(tax.tax_why for tax in estimates)))


def by_lengths(sync: Finals, delayed: Finals, updates: int) -> Tax:
    """From delayed runs of several lengths; each seed has both arms at `updates`."""
    return _read_off(delayed, sync, updates, CONFIDENCE, LENGTHS)


def by_slope(sync: Finals, delayed: Finals, updates: int, confidence: float = CONFIDENCE) -> Tax:
    """From sync's runs of several lengths, if delayed runs fall as they do; each seed has both arms
    at `updates`."""
    finals_known = {
        seed: {length: loss for length, loss in finals.items() if np.isfinite(loss)}
        for seed, finals in sync.items()
    }
    return _read_off(finals_known, delayed, updates, confidence, SLOPE)


def _read_off(
    runs: Finals, references: Finals, updates: int, confidence: float, source: str
) -> Tax:
    """The tax by the length at which `runs`, of several lengths, end at the mean loss of
    `references` at `updates`.

    For LENGTHS the runs are delayed and the references are sync's: the tax is this length over
    `updates`. For SLOPE the runs are sync's and the references delayed: it is `updates` over this
    length.
    """
    # The seeds with runs of several lengths, at the lengths that all of these have.
    seeds = [seed for seed, losses in runs.items() if len(losses) > 1]
    lengths = sorted(set.intersection(*({*runs[seed]} for seed in seeds))) if seeds else []
    if len(lengths) < 2:
        return Tax(tax_why=ONE_LENGTH)
    losses = [{length: runs[seed][length] for length in lengths} for seed in seeds]
    diverged = sum(np.isnan([*of_seed.values()]).any() for of_seed in losses)
    if diverged:
        return Tax(tax_why=f"{diverged} of {len(seeds)} longer or shorter delayed runs diverged")
    levels = np.array([references[seed][updates] for seed in seeds])
    ends = bracket(losses, float(levels.mean()))
    is_delayed = source == LENGTHS
    if not isinstance(ends, tuple):
        limit, higher = (lengths[-1], "higher") if ends else (lengths[0], "lower")
        side = "above" if bool(ends) == is_delayed else "below"
        ratio = limit / updates if is_delayed else updates / limit
        whose = "delayed runs" if is_delayed else "runs of sync"
        than = "sync" if is_delayed else "the delayed runs"
        return Tax(tax_why=f"{side} {ratio:.3g}: all {whose} end {higher} than {than}")
    above, below = (np.array([of_seed[length] for of_seed in losses]) for length in ends)
    at = crossing(above, below, levels, ends, confidence)
    with np.errstate(divide="ignore"):  # a length may end at 0, and its inverse is infinite
        taxes = np.array(at) / updates if is_delayed else updates / np.array(at)
    tax, *interval = map(float, taxes)
    low, high = min(interval), max(interval)  # the inverse exchanges the ends
    # Of losses that are too flat the interval has no two ends.
    if np.isnan(tax) or np.isinf([tax, high]).any() or low <= 0:
        return Tax(tax_why="longer runs are not shown to end lower")
    return Tax(tax, low, high, len(seeds), source)


ONE_LENGTH = "runs of one length only"


def best_taxes(gaps: pd.DataFrame) -> pd.DataFrame:
    """For each optimizer and arm, the row of a table of gaps with the lowest loss of sync among
    those that have a tax; sorted by optimizer and arm. Of 5 to 9 settings that are alike, 93 to
    97 % of the intervals at the best one cover its tax (simulated)."""
    rows_with_tax = gaps[gaps["tax_n"] > 0].sort_values("loss_sync", kind="stable")
    best = rows_with_tax.drop_duplicates(["optimizer", "arm"])
    return in_order(best, ["optimizer", "arm"], gaps).reset_index(drop=True)


@cache
def reported_taxes() -> pd.DataFrame:
    """One row per number: `who`, `optimizer`, `arm`, `loss_sync`, `loss`, `slope`, `tax`, `source`,
    `converted`, and `tax_from`, which is REPORTED or ESTIMATED. Losses in nats per token."""
    table = pd.read_csv(Path(__file__).with_name("reported_taxes.csv"))
    from_gap = ((table["loss"] - table["loss_sync"]) / table["slope"]).map(np.exp)
    source = table["tax"].notna().map({True: REPORTED, False: ESTIMATED})
    return table.assign(tax=table["tax"].fillna(from_gap), tax_from=source)


def paper_losses() -> Mapping[str, Mapping[str, float]]:
    """The paper's final losses, by optimizer and arm, sync among them."""
    rows = reported_taxes()[reported_taxes()["who"] == PAPER]
    return {
        str(optimizer): {
            "sync": table["loss_sync"].iloc[0],
            **dict(zip(table["arm"], table["loss"], strict=True)),
        }
        for optimizer, table in rows.groupby("optimizer", sort=False)
    }
