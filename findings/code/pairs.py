"""Tables of variants beside each other, paired by seed: every public function is a call."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.report.table_data import TUNED
from analysis.statistics.intervals import mean_interval
from analysis.statistics.tax import MAIN_ARMS
from analysis.statistics.text import tax_text
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import arms as names_of_arms
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import Markdown, groups, mean, mean_and_count, table
from findings.code.published import FEW, FINDINGS, TINY, of_sweep, read
from sweeps.request.command_line import parse_request
from sweeps.request.expand import points
from trainer.base.build import label

LENGTH = 1600
"""Updates of the trials of the sweep `remedies` whose losses are compared."""
ALONE = {
    "delay": "a delay of 1",
    "wpipe": "WPipe",
    "paci": "PACI",
    "constant_delay(3)": "a delay of 3",
}
"""The arms that no correction or phase has touched, one for each pipeline."""
Losses = Mapping[str, pd.DataFrame]
"""Optimizer → its final losses, one row per seed, one column per arm."""


def dtypes() -> Markdown:
    """bf16 beside fp32, and whether it may stand for it."""
    variants = _variants("dtype", FEW, "dtype", ("float32", "bfloat16"))
    return _beside(variants, ["float32", "bfloat16", "difference, paired"], _stands)


def _stands(others: pd.Series, gaps: pd.Series) -> str:
    """Whether these gaps may stand for the others, by the rule of the sweep `dtype`."""
    low, high = mean_interval((gaps - others).dropna().to_numpy())
    margin = 0.2 * abs(others.mean())
    if -margin < low and high < margin:
        return "yes"
    return "no" if low > margin or high < -margin else "not enough data"


def nesterov() -> Markdown:
    """Muon and NorMuon with the look-ahead and without it."""
    variants = _variants("nesterov", TINY, "optimizer.nesterov", (True, False))
    return _beside(variants, ["with Nesterov", "without", "without minus with, paired"])


def nadamw() -> Markdown:
    """AdamW beside NAdamW, which is AdamW with Nesterov's momentum, at one learning rate."""
    losses = _losses("shared_rate")
    variants = {"adamw": (losses["adamw"], losses["nadamw"])}
    return _beside(variants, ["AdamW", "NAdamW", "NAdamW minus AdamW, paired"])


def protocols() -> Markdown:
    """Each optimizer whose own learning rate and decay are not AdamW's, at these and at its own."""
    shared, own = _losses("tuned_shared"), _losses("tuned_own")
    variants = {of: (shared[of], own[of]) for of in shared if not shared[of].equals(own[of])}
    return _beside(variants, ["at AdamW's", "at its own", "own minus AdamW's, paired"])


def look_ahead() -> Markdown:
    """Sync with a look-ahead beside the delayed run whose Error Feedback looks as far ahead."""
    delayed = _losses("overshoot")
    ahead = pd.read_csv(FINDINGS / "overshoot" / "look_ahead_tiny.csv")
    rows = []
    for (optimizer, coefficient), trials in ahead.groupby(["optimizer", "coefficient"]):
        own = trials.set_index("seed")["final_val_loss"]
        as_far = int(trials["coefficient"].iloc[0]) + 1
        sync, late = (delayed[str(optimizer)][arm] for arm in ("sync", f"delay_ef({as_far})"))
        said = [name(optimizer), f"{coefficient}", f"{as_far}"]
        rows.append([*said, mean(own - sync), mean(late - sync), *mean_and_count(own - late)])
    heads = ["optimizer", "λ of sync", "λ of the delay", "sync with it minus sync"]
    return table([*heads, "delay with it minus sync", "the first minus the second", "n"], rows)


def _losses(sweep: str) -> Losses:
    """The losses of a sweep at `tiny`, at the one point of each optimizer that has delayed arms."""
    return {at[0]: group.losses for at, group in sorted(groups(of_sweep(sweep, TINY)).items())}


def _variants(
    sweep: str, scale: str, key: str, values: Sequence[object]
) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Optimizer → its losses at two values of a key."""
    rows = groups(of_sweep(sweep, scale), key)
    first, second = values
    return {
        optimizer: (rows[optimizer, first].losses, rows[optimizer, second].losses)
        for optimizer in sorted({optimizer for optimizer, _ in rows})
    }


def _beside(
    variants: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]],
    heads: Sequence[str],
    rule: Callable[[pd.Series, pd.Series], str] | None = None,
) -> Markdown:
    """Sync's loss and each arm's gap at both variants, and the second minus the first.

    `heads`: of the two variants and of their difference. `rule`: what it says of the gaps at both
    variants stands in the last column.
    """
    rows = []
    for optimizer, (first, second) in variants.items():
        means = [f"{losses['sync'].mean():.3f}" for losses in (first, second)]
        changed = mean_and_count(second["sync"] - first["sync"])
        rows.append([f"{name(optimizer)}: sync loss", *means, *changed, *[""] * bool(rule)])
        for arm in MAIN_ARMS:
            before, after = (losses[arm] - losses["sync"] for losses in (first, second))
            said = f"{name(optimizer)}: gap, {REPORTED_ARMS[arm]}"
            changed = mean_and_count(after - before)
            judged = [rule(before, after)] if rule else []
            rows.append([said, mean(before), mean(after), *changed, *judged])
    return table(["", *heads, "n", *(["may stand for it"] if rule else [])], rows)


def remedies() -> Markdown:
    """One row per optimizer and arm at LENGTH, by the pipeline and then by the gap.

    What a remedy saves is the gap of its pipeline alone minus its own, paired by seed. Memory is
    that of weights, gradients and states, as a plan counts them; time is that of an update, by
    medians over all trials.
    """
    trials, gaps = of_sweep("remedies", TINY)
    names, memory = names_of_arms(trials), _memory()
    speed = trials.groupby(["optimizer", "arm"])["tokens_per_second"].median()
    losses, at_length = _at_length(), trials.loc[trials["num_updates"] == LENGTH, "point"]
    shown = gaps[(gaps["pairs"] > 0) & gaps["point"].isin(at_length)]
    shown = shown.assign(pipeline=shown["arm"].map(_pipeline))
    rows = []
    for row in shown.sort_values(["optimizer", "pipeline", "gap"]).to_dict("records"):
        optimizer, alone, arm = row["optimizer"], row["pipeline"], row["arm"]
        costs = [
            tax_text(row),
            f"{memory[optimizer, arm] / memory[optimizer, 'sync']:.2f}",
            f"{speed[optimizer, 'sync'] / speed[optimizer, arm]:.2f}",
        ]
        saves = "" if arm == alone else mean(losses[optimizer][alone] - losses[optimizer][arm])
        shares = [cells.gap(row), saves, cells.removed(row)]
        rows.append([name(optimizer), names[arm], *shares, *costs])
    heads = ["optimizer", "arm", "gap", "less than without, paired", "gap removed"]
    return table([*heads, "token tax", "memory / sync's", "time / sync's"], rows)


def predicted() -> Markdown:
    """The differences of losses that the predictions of `remedies` are about, paired by seed."""
    three = "constant_delay(3)"
    pairs = {
        "delay of 3: EF minus EF matched": (f"{three}_ef", f"{three}_matched_ef"),
        "delay of 3: EF matched, lag τ, minus EF matched": (
            f"{three}_matched_ef(lag=delay)",
            f"{three}_matched_ef",
        ),
        "delay minus WPipe": ("delay", "wpipe"),
        "WPipe minus PACI": ("wpipe", "paci"),
    }
    rows = [
        [name(optimizer), *(mean(losses[arm] - losses[other]) for arm, other in pairs.values())]
        for optimizer, losses in _at_length().items()
    ]
    return table(["optimizer", *pairs], rows)


def rotated() -> Markdown:
    """The gaps of basis rotation beside AdamW's, by delay, paired by seed."""
    losses = _at_length()
    rows = []
    for arm, said in ALONE.items():
        plain, rotation = (
            losses[optimizer][arm] - losses[optimizer]["sync"]
            for optimizer in ("adamw", "basis_rotation")
        )
        rows.append([said, mean(plain), mean(rotation), *mean_and_count(plain - rotation)])
    return table(["", "AdamW", "basis rotation", "AdamW minus it, paired", "n"], rows)


def _at_length() -> Losses:
    """The losses of the sweep `remedies` at LENGTH."""
    rows = groups(of_sweep("remedies", TINY), "num_updates_asked")
    return {at[0]: group.losses for at, group in sorted(rows.items()) if at[1] == LENGTH}


def _memory() -> dict[tuple[str, str], int]:
    """Optimizer and arm → the bytes of a trial of the sweep `remedies`."""
    [sweep] = parse_request(["sweep=remedies", f"scale={TINY}"]).sweeps.values()
    return {
        (label(config["optimizer"]), arm): point.plan(config).memory_bytes
        for point in points(sweep, Path("results"))
        for arm, config in point.configs.items()
    }


def _pipeline(arm: str) -> str:
    """The arm that this one adds a remedy to."""
    return next(alone for alone in ALONE if arm.startswith(alone))


def tried_rates() -> Markdown:
    """The learning rates that the sweep `optimizers` tried, with sync's loss at seed 0."""
    tried = pd.read_csv(FINDINGS / "optimizers" / "tuned_few_updates.csv")
    lines = [
        [
            name(str(point).removeprefix("optimizer=")),
            _rates(group["optimizer.lr"], group["loss"]),
            f"{group.loc[group['chosen'], 'optimizer.lr'].iloc[0]:g}",
        ]
        for point, group in tried.groupby("point")
    ]
    return table(["optimizer", "tried (loss)", "chosen"], lines)


def rates_of_tiny() -> Markdown:
    """The learning rates that were tried on AdamW at each weight decay, with sync's loss."""
    trials = read("shared_rate/rates_tiny").sort_values("optimizer.lr")
    lines = [
        [f"{decay:g}", _rates(group["optimizer.lr"], group["final_val_loss"])]
        for decay, group in trials.groupby("optimizer.weight_decay")
    ]
    return table(["weight decay", "tried (loss)"], lines)


def _rates(rates: pd.Series, losses: pd.Series) -> str:
    pairs = zip(rates, losses, strict=True)
    return ", ".join(f"{rate:g} ({loss:.3f})" for rate, loss in pairs)


def moe_rates() -> Markdown:
    """Mean final losses of `moe_learning_rate`, one column per rate; the lowest of a row stands
    out."""
    rows = groups(of_sweep("moe_learning_rate", FEW), "num_updates_asked", "optimizer.lr")
    rates = sorted({rate for *_, rate in rows})
    lines = []
    for optimizer, updates in sorted({(optimizer, updates) for optimizer, updates, _ in rows}):
        at = [rows[optimizer, updates, rate].arms["delay"] for rate in rates]
        for arm, column in (("sync", "loss_sync"), ("delayed", "loss")):
            losses = [row[column] for row in at]
            said = f"{name(optimizer)}, {updates:,} updates: {arm}"
            shown = [f"**{x:.3f}**" if x == min(losses) else f"{x:.3f}" for x in losses]
            lines.append([said, *shown])
    return table(["learning rate", *(f"{rate:g}" for rate in rates)], lines)


def chosen() -> Markdown:
    """Each optimizer's own learning rate and decay, with sync's loss at the seed that chose."""
    tried = pd.read_csv(FINDINGS / "tuned_own" / "tuned_tiny.csv")
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
