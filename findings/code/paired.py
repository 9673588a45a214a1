"""Tables of two variants of a sweep beside each other, paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.report.table_data import TUNED
from analysis.statistics.intervals import mean_interval
from analysis.statistics.tax import MAIN_ARMS
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import mean, table
from bench.documents.published import DOCS, View, of_sweep

DTYPES = ("float32", "bfloat16")
PROTOCOLS = ("tuned_shared", "tuned_own")


class Rule(NamedTuple):
    """A last column: its title, and what it says of the gaps at the first variant and the other."""

    title: str
    says: Callable[[pd.Series, pd.Series], str]


def dtypes() -> str:
    """bf16 beside fp32, and whether it may stand for it."""
    losses = _variants("dtype", "tiny", "dtype", DTYPES)
    return _beside(losses, [*DTYPES, "difference, paired"], Rule("may stand for it", _stands))


def _stands(others: pd.Series, gaps: pd.Series) -> str:
    """Whether these gaps may stand for the others, by the rule of the sweep `dtype`."""
    low, high = mean_interval((gaps - others).dropna().to_numpy())
    margin = 0.2 * abs(others.mean())
    if -margin < low and high < margin:
        return "yes"
    return "no" if low > margin or high < -margin else "not enough data"


def nesterov(scale: str) -> str:
    """With the look-ahead and without."""
    losses = _variants("nesterov", scale, "optimizer.nesterov", (True, False))
    return _beside(losses, ["with Nesterov", "without", "without minus with, paired"])


def nadamw(scale: str) -> str:
    """AdamW beside NAdamW, which is the same with Nesterov's momentum, at one learning rate."""
    losses = _losses(of_sweep("shared_rate", scale).trials)[["adamw", "nadamw"]]
    both = pd.concat({"adamw": losses}, axis=1)
    return _beside(both, ["AdamW", "NAdamW", "NAdamW minus AdamW, paired"])


def protocols(scale: str) -> str:
    """Each optimizer whose own learning rate and decay are not AdamW's, at these and at its own."""
    shared, own = (_losses(_compared(of_sweep(sweep, scale)).trials) for sweep in PROTOCOLS)
    losses = pd.concat(dict(zip(PROTOCOLS, (shared, own), strict=True)), axis=1)
    same = [of for of in {*shared.columns.get_level_values(0)} if shared[of].equals(own[of])]
    losses = losses.swaplevel(0, 1, axis=1).drop(columns=same, level=0)
    return _beside(losses, ["at AdamW's", "at its own", "own minus AdamW's, paired"])


def look_ahead(scale: str) -> str:
    """Sync with a look-ahead beside the delayed run whose Error Feedback looks as far ahead."""
    delayed = _losses(of_sweep("overshoot", scale).trials)
    ahead = pd.read_csv(DOCS / f"look_ahead_{scale}.csv")
    rows = []
    for (optimizer, coefficient), of in ahead.groupby(["optimizer", "coefficient"]):
        own = of.set_index("seed")["final_val_loss"]
        sync = delayed[optimizer]["sync"]
        as_far = int(of["coefficient"].iloc[0]) + 1
        late = delayed[optimizer][f"delay_ef({as_far})"]
        said = [name(optimizer), f"{coefficient}", f"{as_far}"]
        rows.append([*said, mean(own - sync), mean(late - sync), *_difference(own - late)])
    heads = ["optimizer", "λ of sync", "λ of the delay", "sync with it minus sync"]
    return table([*heads, "delay with it minus sync", "the first minus the second", "n"], rows)


def chosen() -> str:
    """Each optimizer's own learning rate and decay, with sync's loss at the seed that chose."""
    tried = pd.read_csv(DOCS / "tuned_own_long_tuned.csv")
    best = {row["point"]: row for row in tried[tried["chosen"]].to_dict("records")}
    rate, decay = TUNED
    adamw = best["optimizer=adamw"]
    at_adamws = tried[(tried[rate] == adamw[rate]) & (tried[decay] == adamw[decay])]
    losses = dict(zip(at_adamws["point"], at_adamws["loss"], strict=True))
    rows = [
        [
            name(point.removeprefix("optimizer=")),
            *(f"{row[rate]:g}", f"{row[decay]:g}", f"{row['loss']:.3f}", f"{losses[point]:.3f}"),
            str((tried["point"] == point).sum()),
        ]
        for point, row in best.items()
    ]
    return table(["optimizer", "lr", "decay", "sync loss", "at AdamW's values", "tried"], rows)


def _compared(view: View) -> View:
    """The points that have delayed arms: others were tried and not chosen."""
    found = view.gaps[view.gaps["pairs"] > 0]
    return View(view.trials[view.trials["point"].isin(found["point"])], found)


def _losses(trials: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """One row per seed, one column per optimizer, keys and arm."""
    columns = ["optimizer", *keys, "arm"]
    return trials.pivot_table(index="seed", columns=columns, values="final_val_loss")


def _variants(sweep: str, scale: str, key: str, values: Iterable[object]) -> pd.DataFrame:
    """The losses of a sweep at two values of a key."""
    return _losses(of_sweep(sweep, scale).trials, key).reindex(columns=[*values], level=1)


def _beside(losses: pd.DataFrame, heads: Sequence[str], rule: Rule | None = None) -> str:
    """Sync's loss and each arm's gap at both variants, and the second minus the first.

    `losses`: one row per seed; columns by optimizer, variant (two, the first one first) and arm.
    `heads`: of the columns of the two variants and of their difference.
    """
    rows = []
    for optimizer in sorted({*losses.columns.get_level_values(0)}):
        of = losses[optimizer]
        one, other = (of[variant] for variant in of.columns.get_level_values(0).unique())
        means = [f"{variant['sync'].mean():.3f}" for variant in (one, other)]
        changed = _difference(other["sync"] - one["sync"])
        rows.append([f"{name(optimizer)}: sync loss", *means, *changed, *[""] * bool(rule)])
        for arm in MAIN_ARMS:
            gaps = [variant[arm] - variant["sync"] for variant in (one, other)]
            said = f"{name(optimizer)}: gap, {REPORTED_ARMS[arm]}"
            judged = [rule.says(*gaps)] if rule else []
            rows.append([said, *map(mean, gaps), *_difference(gaps[1] - gaps[0]), *judged])
    return table(["", *heads, "n", *([rule.title] if rule else [])], rows)


def _difference(of_pairs: pd.Series) -> Iterator[str]:
    yield mean(of_pairs)
    yield str(of_pairs.count())
