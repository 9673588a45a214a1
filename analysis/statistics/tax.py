"""The token tax: the updates that a delayed run needs for the loss that sync reaches, over sync's.

A run has the same tokens in each update, so it is a ratio of tokens as well. The break-even of an
asynchronous pipeline is tax < speed-up. There are two estimates of it, and the better one counts:

`lengths`: delayed runs of several lengths. For each seed the length at which they end at sync's
final loss is interpolated (see lengths.py), and the logarithms of the ratios have a mean with
Student's interval. It is measured, and a little too large where it is interpolated.

`slope`: the gap, over the slope s of sync's own final losses against the logarithm of the length:
ln tax = gap / s, with Fieller's interval of this ratio of two means over the same seeds, so that it
carries the errors of both. It assumes that the delayed runs fall as sync does, and that sync's law
is straight from here to as far as the tax reaches.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.intervals import Interval, mean_interval, ratio_interval
from analysis.statistics.lengths import ByLength, length_to, slope_at
from analysis.statistics.pairs import SAME_ARM, VARIANT, results
from analysis.table.tasks import families, families_by_decay, updates_asked

LENGTHS, SLOPE = "lengths", "slope"
MAIN_ARMS = ("delay", "delay_ef")
"""The arms of the paper's question: their taxes are the headline."""
Finals = Mapping[int, ByLength]
"""By seed, the final losses of an arm's runs by their length; NaN where a run diverged."""


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
    points that differ in their length alone (`tasks.families`); where all such have one length, at
    those whose weight decay falls as the length grows (`tasks.families_by_decay`).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pairs has warned of the same trials
        done = results(trials)
    alike = {point: family.words for point, family in families(trials).items()}
    by_arm = _taxes(done, pairs, alike, trials)
    by_decay = families_by_decay(trials)
    if not by_decay:
        return by_arm
    others = _taxes(done, pairs, by_decay, trials)
    return {
        key: others[key] if tax.tax_why == ONE_LENGTH and others[key].tax_n else tax
        for key, tax in by_arm.items()
    }


def _taxes(
    done: pd.DataFrame, pairs: pd.DataFrame, family: Mapping[str, str], trials: pd.DataFrame
) -> dict[tuple[Any, ...], Tax]:
    """The taxes if the runs of several lengths are those of one family."""
    lengths = updates_asked(trials.drop_duplicates("point").set_index("point"))
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
        by_seed = finals.setdefault((*key, family.get(point, point)), {})
        by_seed.setdefault(int(seed), {}).setdefault(int(lengths[point]), float(loss))
    return finals


def token_tax(sync: Finals, delayed: Finals, updates: int) -> Tax:
    """The tax for the loss that sync reaches after `updates`, of all seeds that both have.

    By lengths if two seeds or more allow it, else by the slope, else by whichever has one seed.
    """
    seeds = [seed for seed in sync if updates in sync[seed] and updates in delayed.get(seed, {})]
    seeds = [seed for seed in seeds if np.isfinite(sync[seed][updates])]
    if not seeds:
        return Tax(tax_why="no pair")
    diverged = sum(not np.isfinite(delayed[seed][updates]) for seed in seeds)
    if diverged:
        return Tax(tax_why=f"{diverged} of {len(seeds)} delayed runs diverged")
    own = {seed: sync[seed] for seed in seeds}, {seed: delayed[seed] for seed in seeds}
    estimates = [by_lengths(*own, updates), by_slope(*own, updates)]
    known = [tax for tax in estimates if tax.tax_n]
    if known:
        return next((tax for tax in known if tax.tax_n > 1), known[0])
    return Tax(tax_why="; ".join(dict.fromkeys(tax.tax_why for tax in estimates)))


def by_lengths(sync: Finals, delayed: Finals, updates: int) -> Tax:
    """From delayed runs of several lengths; each seed has both arms at `updates`.

    Sync's loss must lie between final losses of the delayed runs at each seed that has several. A
    mean without the seeds at which it does not would flatter one side.
    """
    several = [seed for seed, finals in delayed.items() if len(finals) > 1]
    if not several:
        return Tax(tax_why=ONE_LENGTH)
    needed = np.array([length_to(delayed[seed], sync[seed][updates]) for seed in several])
    if np.isposinf(needed).all():
        longest = min(max(delayed[seed]) for seed in several)
        return Tax(tax_why=f"above {longest / updates:.3g}: no delayed run ends as low as sync")
    if (needed == 0).all():
        shortest = max(min(delayed[seed]) for seed in several)
        return Tax(
            tax_why=f"below {shortest / updates:.3g}: every delayed run ends lower than sync"
        )
    outside = int((~np.isfinite(needed) | (needed == 0)).sum())
    if outside:
        why = f"at {outside} of {len(several)} seeds sync's loss is not between delayed runs"
        return Tax(tax_why=why)
    logarithms = np.log(needed / updates)
    return _tax(float(logarithms.mean()), mean_interval(logarithms), len(several), LENGTHS)


def by_slope(sync: Finals, delayed: Finals, updates: int) -> Tax:
    """From the gap and the slope of sync's own law; each seed has both arms at `updates`."""
    slopes = {seed: slope_at(finals, updates) for seed, finals in sync.items()}
    seeds = [seed for seed, slope in slopes.items() if np.isfinite(slope)]
    if not seeds:
        return Tax(tax_why=ONE_LENGTH)
    slope = np.array([slopes[seed] for seed in seeds])
    gap = np.array([delayed[seed][updates] - sync[seed][updates] for seed in seeds])
    interval = ratio_interval(gap, slope)
    if slope.mean() <= 0 or (len(seeds) > 1 and np.isnan(interval[0])):
        return Tax(tax_why=FLAT)
    tax = _tax(float(gap.mean() / slope.mean()), interval, len(seeds), SLOPE)
    # A slope that is a rounding error of equal losses gives a ratio beyond any number.
    return Tax(tax_why=FLAT) if np.isinf([tax.tax, tax.tax_high]).any() else tax


ONE_LENGTH = "runs of one length only"
FLAT = "longer runs of sync are not shown to end lower"


def _tax(logarithm: float, interval: Interval, n: int, source: str) -> Tax:
    with np.errstate(over="ignore"):  # two seeds may leave it without an upper end
        tax, low, high = np.exp([logarithm, *interval])
    return Tax(float(tax), float(low), float(high), n, source)


def best_taxes(gaps: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of gaps that have a tax, for each optimizer and arm the one of the lowest
    loss of sync, by optimizer and arm."""
    known = gaps[gaps["tax_n"] > 0].sort_values("loss_sync", kind="stable")
    best = known.drop_duplicates(["optimizer", "arm"])
    return best.sort_values(["optimizer", "arm"], ignore_index=True)
