"""What the theory foretells of each gap, and the rank correlation of predictions and gaps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from analysis.statistics.intervals import CONFIDENCE, UNKNOWN, Interval
from analysis.theory.linear import hooks, linear
from analysis.theory.recursion import SAME, Hooks, Loop, late
from analysis.theory.stability import largest_stable
from trainer.config.names import yamls

MOST = 9
"""Pairs of which every order is tried."""
FEEDBACK = "trainer.corrections.error_feedback.ErrorFeedback"
Row = Mapping[Any, Any]


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation of n pairs, with its 95 % interval.

    The interval is that of Fisher's z with the variance of Bonett and Wright (2000); unknown for
    n < 4 and where |ρ| is 1. `p` is exact: the share of all orders of one side whose correlation is
    at least as far from 0.
    """

    rho: float
    low: float
    high: float
    p: float
    n: int


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> RankCorrelation:
    """The correlation of 2 to MOST pairs; ties have their mean rank. Raises ValueError for other
    numbers of pairs, and where all values of a side are equal, which ranks nothing."""
    first, second = (stats.rankdata(values) for values in (predicted, measured))
    n = len(first)
    if not 2 <= n <= MOST or len({*first}) == 1 or len({*second}) == 1:
        raise ValueError(f"no ranks of 2 to {MOST} pairs: {list(predicted)}, {list(measured)}")
    first, second = ((ranks - ranks.mean()) / ranks.std() for ranks in (first, second))
    rho = float(first @ second / n)
    orders = np.array(list(permutations(second))) @ first / n
    p = float(np.mean(np.abs(orders) >= abs(rho) - 1e-9))
    return RankCorrelation(rho, *_interval(rho, n), p, n)


def _interval(rho: float, n: int) -> Interval:
    if n < 4 or abs(rho) > 1 - 1e-9:
        return UNKNOWN
    half = stats.norm.ppf((1 + CONFIDENCE) / 2) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)


def predictions(trials: pd.DataFrame, gaps: pd.DataFrame, *, over: bool = False) -> pd.DataFrame:
    """The limits of each gap of a delay, plain or with Error Feedback of lag 1, beside the gap.

    One row per point and arm that has pairs: the columns of `gaps`, and `sync`, `delayed` and
    `corrected`, the largest stable k of the optimizer with the settings of the point's trials. A
    schedule of the optimizer's own counts as it stands after the last update of the run, or, if
    `over`, as it ends.
    """
    delayed = gaps[(gaps["pairs"] > 0) & gaps["delay"].notna() & (gaps["start"] == 0)]
    delayed = delayed[delayed["method"].isin(["none", "error_feedback"])]
    first = trials.drop_duplicates("point").set_index("point")
    limits = [_limits(row, first.loc[row["point"]], over) for row in delayed.to_dict("records")]
    columns = pd.DataFrame(limits, columns=["sync", "delayed", "corrected"], index=delayed.index)
    return pd.concat([delayed, columns], axis=1)


def settings(name: str, trial: Row) -> dict[str, Any]:
    """Those of an optimizer of conf/: what the trial has in its columns, else what its YAML says.

    Raises KeyError for an optimizer that conf/ does not have.
    """
    files = {path.stem: path for path in yamls("optimizer")}
    node: dict[str, Any] = yaml.safe_load(files[name].read_text())
    given = {key: trial.get(f"optimizer.{key}") for key in node}
    return {**node, **{key: value for key, value in given.items() if pd.notna(value)}}


def _limits(gap: Row, trial: Row, over: bool) -> tuple[float, float, float]:
    updates = math.inf if over else float(trial["num_updates"])
    optimizer = linear(settings(gap["optimizer"], trial), updates)
    delay = int(gap["delay"])
    plain = Hooks(late(delay))
    fed = {"_target_": FEEDBACK, "coefficient": gap["coefficient"], "lag": 1}
    corrected = plain if gap["method"] == "none" else hooks(fed, delay)
    sync, delayed, with_it = (
        largest_stable(Loop(optimizer, corrected_by))
        for corrected_by in (Hooks(SAME), plain, corrected)
    )
    return sync, delayed, with_it
