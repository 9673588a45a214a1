"""The delay track (docs/track.md): scores of its entries, and the rules by which one stands."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from pipegap.analysis.statistics.pairs import Values, mean_interval
from pipegap.analysis.table.load import load
from pipegap.trainer.base.errors import Status

ERROR = 0.01
"""How often `verify` refuses an entry that is right, by its hidden seeds alone."""
BAND = 3.0
"""On a processor of another kind a trial may end so many standard deviations over seeds from where
it ended before."""


# Whether an entry stands: its trials run again, and at seeds that its authors did not know.


def noise_band(losses: Sequence[float]) -> float:
    """Return by how much a loss may differ on another kind of processor: BAND standard deviations
    of the final `losses` of its arm, over seeds.

    Rounding makes two trajectories part, but data, order and first weights are the same: such a
    trial differs by less than one of another seed does. If it differed by as much, a normal
    difference of two seeds would exceed the band in 3.4 % of cases; measured of Muon, AdamW and
    SOAP were 1e-7, 9e-4 and 2.6e-3, beside standard deviations of 0.005 to 0.009. Infinite for
    fewer than two losses.
    """
    return BAND * float(np.std(losses, ddof=1)) if len(losses) > 1 else np.inf


class Comparison(NamedTuple):
    """A mean of the table beside that of the hidden seeds."""

    what: str
    table: float
    hidden: float
    limit: float
    """By how much they may differ."""

    @property
    def agrees(self) -> bool:
        """Whether they do not differ by more."""
        return not abs(self.hidden - self.table) > self.limit

    @property
    def text(self) -> str:
        """Both, for people."""
        return (
            f"{self.what} {self.hidden:.4f} at hidden seeds, {self.table:.4f} in the table "
            f"(may differ by {self.limit:.4f})"
        )


def comparisons(
    table: Mapping[str, Mapping[str, Values]], hidden: Mapping[str, Mapping[str, Values]]
) -> list[Comparison]:
    """Return each arm's loss, and the gap of each arm but sync, beside those of the hidden seeds.

    Both are point → arm → final losses by seed, shape (seeds,), the seeds of all arms in one order,
    infinite where a trial diverged. Each mean may differ by Student's interval of the difference of
    two means with a pooled variance, at a level that is shared by all comparisons (Bonferroni): of
    entries that are right at most ERROR are refused.
    """
    samples = [
        (f"{point} {what}".strip(), values, _gaps_and_losses(hidden[point])[what])
        for point, arms in table.items()
        for what, values in _gaps_and_losses(arms).items()
    ]
    return [_compared(what, a, b, ERROR / len(samples)) for what, a, b in samples]


def _gaps_and_losses(arms: Mapping[str, Values]) -> dict[str, Values]:
    gaps = {f"gap of {arm}": arms[arm] - arms["sync"] for arm in arms if arm != "sync"}
    return {**{f"loss of {arm}": losses for arm, losses in arms.items()}, **gaps}


def _compared(what: str, table: Values, hidden: Values, error: float) -> Comparison:
    a, b = table[np.isfinite(table)], hidden[np.isfinite(hidden)]
    freedom = len(a) + len(b) - 2
    if len(a) < 2 or len(b) < 2:
        return Comparison(what, float(np.mean(table)), float(np.mean(hidden)), np.inf)
    squares = (len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)
    spread = np.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    limit = float(stats.t.isf(error / 2, freedom) * spread)
    return Comparison(what, float(a.mean()), float(b.mean()), limit)


def diverges_more(table: Values, hidden: Values) -> bool:
    """Whether other shares of trials diverge, by Fisher's exact test at ERROR."""
    counts = [[int(np.isinf(v).sum()), int(np.isfinite(v).sum())] for v in (table, hidden)]
    return bool(stats.fisher_exact(counts).pvalue < ERROR)


# Scores: what the table of the track says of each entry.


class Entered(NamedTuple):
    """An entry's trials and what is said of it."""

    name: str
    says: Mapping[str, Any]
    """What entry.yaml says."""
    trials: pd.DataFrame
    cost: Mapping[str, Any]
    """What cost.json says: see `sweeps.commands.enter`."""


def read_entered(folder: Path, says: Mapping[str, Any]) -> Entered:
    """Return the entry in a folder, of which entry.yaml `says` so much."""
    cost = json.loads((folder / "cost.json").read_text("utf-8"))
    return Entered(folder.name, says, load(folder / "trials.csv"), cost)


def losses(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each optimizer the final losses of the compared trials: a row per seed that all
    arms have, a column per arm; infinite where a trial diverged.

    Of several learning rates of sync that counts which other arms have.
    """
    done = trials[trials["status"].isin([Status.COMPLETED, Status.DIVERGED])]
    done = done.assign(loss=done["final_val_loss"].fillna(np.inf))
    by_optimizer = {}
    for optimizer, of in done.groupby("optimizer", sort=False):
        rates = of.loc[of["arm"] != "sync", "optimizer.lr"]
        at_rate = of[of["optimizer.lr"].isin(rates)]
        by_optimizer[str(optimizer)] = at_rate.pivot_table("loss", "seed", "arm").dropna()
    return by_optimizer


class Score(NamedTuple):
    """One row of the table: an arm of an entry, with one optimizer. Losses in nats per token; the
    intervals are of 95 %, over seeds, and NaN as far as they are unknown."""

    entry: str
    optimizer: str
    arm: str
    n: int
    diverged: int
    loss: float
    score: float
    """The loss minus that of the best synchronous entry at the same seed."""
    score_low: float
    score_high: float
    sync: float
    gap: float
    gap_low: float
    gap_high: float
    rate: float
    """The tuned learning rate."""


def scores(entries: Sequence[Entered]) -> pd.DataFrame:
    """Return a row of `Score` for each arm but sync of each entry, the lowest score first."""
    tables = [
        (entry, optimizer, table)
        for entry in entries
        for optimizer, table in losses(entry.trials).items()
        if "sync" in table and len(table)
    ]
    if not tables:
        return pd.DataFrame(columns=list(Score._fields))
    best = min((table["sync"] for _, _, table in tables), key=lambda sync: float(sync.mean()))
    rows = []
    for entry, optimizer, table in tables:
        rates = entry.trials[
            (entry.trials["optimizer"] == optimizer) & (entry.trials["arm"] != "sync")
        ]["optimizer.lr"]
        for arm in table.columns.drop("sync"):
            of_arm = table[np.isfinite(table[["sync", arm]]).all(axis=1)]
            score = (of_arm[arm] - best.reindex(of_arm.index)).dropna().to_numpy()
            gap = (of_arm[arm] - of_arm["sync"]).to_numpy()
            ends = mean_interval(score), mean_interval(gap)
            row = Score(
                *(entry.name, optimizer, str(arm), len(of_arm), len(table) - len(of_arm)),
                *(_mean(of_arm[arm].to_numpy()), _mean(score), *ends[0]),
                *(_mean(of_arm["sync"].to_numpy()), _mean(gap), *ends[1]),
                float(rates.iloc[0]),
            )
            rows.append(row)
    return pd.DataFrame(rows).sort_values("score", kind="stable").reset_index(drop=True)


def _mean(values: Values) -> float:
    return float(np.mean(values)) if len(values) else np.nan
