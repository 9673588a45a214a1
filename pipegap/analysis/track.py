"""The delay track (docs/track.md): scores of its entries, and the rules by which one stands."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from pipegap.analysis.statistics.pairs import Values, mean_interval
from pipegap.analysis.statistics.tax import Finals, token_tax
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


def read_entered(folder: Path, says: Mapping[str, Any], trials: str = "trials.csv") -> Entered:
    """Return the entry in a folder, of which entry.yaml `says` so much, with a table of trials."""
    cost = json.loads((folder / "cost.json").read_text("utf-8"))
    return Entered(folder.name, says, load(folder / trials), cost)


class Losses(NamedTuple):
    """The final losses of the compared trials with one optimizer, infinite where one diverged."""

    by_arm: pd.DataFrame
    """A row per seed that all arms have, a column per arm; all of the same length."""
    updates: int
    """Updates of each of these trials."""
    sync: Finals
    """Of synchronous trials of any length: by seed, the loss by the number of updates."""
    rate: float
    """The tuned learning rate."""


def losses(trials: pd.DataFrame) -> dict[str, Losses]:
    """Return the losses of the compared trials by their optimizer.

    Of several learning rates and lengths of sync those are compared which the other arms have.
    """
    done = trials[trials["status"].isin([Status.COMPLETED, Status.DIVERGED])]
    done = done.assign(loss=done["final_val_loss"].fillna(np.inf))
    by_optimizer = {}
    for optimizer, of in done.groupby("optimizer", sort=False):
        late = of[of["arm"] != "sync"]
        at_rate = of[of["optimizer.lr"].isin(late["optimizer.lr"])]
        compared = at_rate[at_rate["num_updates_asked"].isin(late["num_updates_asked"])]
        table = compared.pivot_table("loss", "seed", "arm").dropna()
        sync: dict[int, dict[int, float]] = {}
        columns = ["seed", "num_updates_asked", "loss"]
        for seed, length, loss in at_rate.loc[at_rate["arm"] == "sync", columns].to_numpy():
            sync.setdefault(int(seed), {})[int(length)] = float(loss)
        if len(table) and "sync" in table:
            updates, rate = (late[key].iloc[0] for key in ("num_updates_asked", "optimizer.lr"))
            by_optimizer[str(optimizer)] = Losses(table, int(updates), sync, float(rate))
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
    tax: float
    """The token tax: the arm's updates over those after which sync ends as low (`statistics.tax`).
    """
    tax_low: float
    tax_high: float
    tax_why: str
    """Why there is no tax; empty if there is one."""
    rate: float
    """The tuned learning rate."""


def best_sync(entries: Sequence[Entered]) -> "pd.Series[float]":
    """Return the synchronous losses of the entry whose mean is lowest, by seed; empty for none."""
    tables = [table for entry in entries for table in losses(entry.trials).values()]
    synchronous = [table.by_arm["sync"] for table in tables]
    return min(synchronous, key=lambda sync: float(sync.mean()), default=pd.Series())


def scores(entries: Sequence[Entered], best: "pd.Series[float]") -> pd.DataFrame:
    """Return a row of `Score` for each delayed arm of each entry, the lowest score first. Of the
    arms of a correction the plain delay is left out, as it is that of its optimizer's entry.

    `best`: the losses that scores are measured from, by seed (`best_sync` of all entries).
    """
    rows = [
        _score(entry.name, optimizer, str(arm), table, best)
        for entry in entries
        for optimizer, table in losses(entry.trials).items()
        for arm in judged_arms(entry, table)
    ]
    table = pd.DataFrame(rows, columns=list(Score._fields))
    return table.sort_values("score", kind="stable").reset_index(drop=True)


def judged_arms(entry: Entered, table: Losses) -> list[str]:
    """Return the delayed arms of a table that say something of the entry."""
    delayed_arms = [str(arm) for arm in table.by_arm.columns if arm != "sync"]
    is_correction = entry.says["optimizer"] is None
    return [arm for arm in delayed_arms if not is_correction or arm in corrected_arms(entry)]


def corrected_arms(entry: Entered) -> set[str]:
    """Return the arms of an entry that have a correction."""
    return {*entry.trials.loc[entry.trials["correction"] != "none", "arm"]}


def _score(entry: str, optimizer: str, arm: str, table: Losses, best: "pd.Series[float]") -> Score:
    finite = np.isfinite(table.by_arm[["sync", arm]]).all(axis=1)
    compared = table.by_arm[finite]
    score = (compared[arm] - best.reindex(compared.index)).dropna().to_numpy()
    gap = (compared[arm] - compared["sync"]).to_numpy()
    seeds = table.by_arm.index.astype(int).tolist()
    delayed = {
        seed: {table.updates: loss}
        for seed, loss in zip(seeds, table.by_arm[arm].tolist(), strict=True)
    }
    tax = token_tax(table.sync, delayed, table.updates)
    (score_low, score_high), (gap_low, gap_high) = mean_interval(score), mean_interval(gap)
    return Score(
        entry=entry,
        optimizer=optimizer,
        arm=arm,
        n=len(compared),
        diverged=int((~finite).sum()),
        loss=_mean(compared[arm].to_numpy()),
        score=_mean(score),
        score_low=score_low,
        score_high=score_high,
        sync=_mean(compared["sync"].to_numpy()),
        gap=_mean(gap),
        gap_low=gap_low,
        gap_high=gap_high,
        tax=tax.tax,
        tax_low=tax.tax_low,
        tax_high=tax.tax_high,
        tax_why=tax.tax_why,
        rate=table.rate,
    )


def _mean(values: Values) -> float:
    return float(np.mean(values)) if len(values) else np.nan
