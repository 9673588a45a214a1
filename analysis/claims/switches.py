"""Claims about runs that are synchronous in part: at the start, or at the end."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from pipegap.analysis.claims.above import Above, Contrast
from pipegap.analysis.claims.claim import Claim
from pipegap.analysis.claims.measure import (
    DELAY,
    PAPER,
    Column,
    measured,
    more,
    row,
    with_key,
    words,
)
from pipegap.analysis.claims.rule import (
    SAME,
    ClaimRule,
    Codes,
    Comparison,
    Estimate,
    codes_of,
    estimate,
)
from pipegap.analysis.statistics.diagnostics import WINDOW, spikes
from pipegap.analysis.statistics.intervals import Values, mean_intervals

ARM = ["optimizer", "setting", "arm"]


@dataclass(frozen=True)
class Either(ClaimRule):
    """Reproduced where a change is shown, up or down; contradicted where it is surely within SAME
    of the first row. Rows: the quantity at one end, and at the other."""

    name: str

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether there is a change, or only a small one."""
        first, change = values[..., 0, :], _change(values)
        low, high = mean_intervals(change)
        within = [mean_intervals(SAME * first + sign * change, confidence)[0] for sign in (1, -1)]
        shown = (low > 0) | (high < 0)
        return codes_of(shown, np.all(np.greater(within, 0), axis=0) & ~shown)

    def why(self, values: Values) -> str:
        """That the change may be nothing, or not small."""
        return f"{self.name}: may be 0, or more than {SAME:.0%}"

    def numbers(self, values: Values) -> list[Estimate]:
        """The change."""
        return [estimate(self.name, _change(values))]


def _change(values: Values) -> Values:
    with np.errstate(invalid="ignore"):
        return values[..., 1, :] - values[..., 0, :]


def spike(trials: pd.DataFrame, heights: pd.DataFrame) -> list[Comparison]:
    """Is there one? `heights`: the table of `spikes` for these trials."""
    rule = Above((Contrast("the height", (1.0,)),))
    return [
        Comparison(words(*key), [row("height", group, "height")], rule, key[0] in PAPER)
        for key, group in heights.groupby(ARM)
    ]


def spike_by_decay(trials: pd.DataFrame, heights: pd.DataFrame) -> list[Comparison]:
    """Does its height depend on β2?"""
    key, rule = "optimizer.variance_decay", Either("change of the height")
    compared = []
    for optimizer, group in with_key(trials, heights, key).groupby("optimizer"):
        decays = sorted({*group[key].dropna()})
        if len(decays) > 1:
            rows = [
                row(f"height at β2={decay:g}", group[group[key] == decay], "height")
                for decay in (decays[0], decays[-1])
            ]
            compared.append(Comparison(str(optimizer), rows, rule, optimizer in PAPER))
    return compared


def _by_height(
    compare: Callable[[pd.DataFrame, pd.DataFrame], list[Comparison]], trials: pd.DataFrame
) -> list[Comparison]:
    """With the heights of these trials. The report repeats the warnings of `spikes`."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return compare(trials, spikes(trials))


def _start(trials: pd.DataFrame) -> list[Comparison]:
    gaps = measured(trials)
    alone = (gaps["arm"] == gaps["base_arm"]) & (gaps["schedule"] == DELAY)
    started = gaps[alone & (gaps["start"] > 0) & (gaps["cooldown"] == 0)]
    return _lower(gaps, started.assign(without="delay"))


def _cooldown(trials: pd.DataFrame) -> list[Comparison]:
    gaps = measured(trials)
    cooled = gaps[gaps["cooldown"] > 0]
    return _lower(gaps, cooled.assign(without=cooled["arm_without_cooldown"]))


def _lower(gaps: pd.DataFrame, changed: pd.DataFrame) -> list[Comparison]:
    """For each arm, that its gap is below that of the arm `without`, at the same point."""
    compared = []
    for (*key, base, point), rows in changed.groupby([*ARM, "without", "point"]):
        plain = gaps[(gaps["point"] == point) & (gaps["arm"] == base)]
        two = Column(str(key[-1]), rows), Column(str(base), plain)
        compared.append(more(words(*key), *two))
    return compared


CLAIMS = (
    Claim(
        "start",
        "A synchronous start of the run lowers the gap",
        "tables 1, 2 (its values are open in the public summaries)",
        ("synchronous_start",),
        "For each optimizer: the 95 % interval of the gap of the plain delay minus that with the "
        "start, paired by seed, lies above 0; contradicted where it lies below.",
        _start,
    ),
    Claim(
        "spike",
        "After a synchronous start the loss spikes where the delay is switched on",
        "figure 3",
        ("spike",),
        f"For each optimizer: the 95 % interval of the mean height lies above 0 (train loss minus "
        f"that of the same seed's sync arm, mean of the first {WINDOW} updates with the delay; "
        "both see the same batches); contradicted where it lies below.",
        partial(_by_height, spike),
    ),
    Claim(
        "spike_by_decay",
        "The height of that spike depends on β2",
        "figure 20 (135M)",
        ("spike",),
        "For each optimizer: the 95 % interval of the change of the height from the smallest to "
        "the largest β2, paired by seed, does not hold 0; contradicted where it does, and the "
        f"change is surely within {SAME:.0%} of the height at the smallest.",
        partial(_by_height, spike_by_decay),
    ),
    Claim(
        "cooldown",
        "A synchronous end of the run lowers the gap",
        "A.9 (135M; its result is open in the public summaries)",
        ("cooldown",),
        "For each optimizer and length: the 95 % interval of the gap of the same arm without it "
        "minus its own, paired by seed, lies above 0; contradicted where it lies below.",
        _cooldown,
    ),
)
