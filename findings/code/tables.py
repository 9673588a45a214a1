"""The tables of README.md, docs/findings.md and docs/advise.md."""

from __future__ import annotations

import pandas as pd

from analysis import load
from analysis.forecast.register import Check, checks, score
from analysis.forecast.register import text as forecasts_text
from analysis.statistics.reported import reported_taxes
from analysis.statistics.tax import MAIN_ARMS, best_taxes
from analysis.statistics.text import gap_table, tax_text
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, loss, mean, removed, rows_of, table
from bench.documents.published import (
    DOCS,
    LENGTHS,
    LONG,
    SWEEPS,
    Published,
    View,
    of_sweep,
    view,
)


def main_table(of: Published) -> str:
    """As `python -m analysis` prints it."""
    return gap_table(view(of).gaps).strip()


def taxes() -> str:
    """Ours at `tiny`, each at the point of the lowest loss of sync that has one."""
    rows = best_taxes(view(LENGTHS).gaps).to_dict("records")
    cells = [
        [name(r["optimizer"]), REPORTED_ARMS[r["arm"]], tax_text(r), str(r["tax_n"])] for r in rows
    ]
    return table(["optimizer", "arm", "token tax [95 %] (from)", "n"], cells)


def taxes_of_others() -> str:
    """Theirs, with what they are of."""
    rows = reported_taxes().to_dict("records")
    cells = [
        [
            *(name(row["optimizer"]), REPORTED_ARMS[row["arm"]], f"{row['tax']:.2f}"),
            *(row["tax_from"], row["who"]),
        ]
        for row in rows
    ]
    return table(["optimizer", "arm", "token tax", "from", "of"], cells)


def conversions() -> str:
    """Where the numbers of others are from, and how each was converted."""
    sources = reported_taxes().drop_duplicates(["source", "converted"])
    return "\n".join(
        f"- {row['who'].partition(',')[0].capitalize()} ({row['source']}): {row['converted']}."
        for row in sources.to_dict("records")
    )


def optimizers(sweep: str, scale: str = "tiny") -> str:
    """By the gap of the delay; an optimizer whose delay has no pair is left out."""
    trials, found = of_sweep(sweep, scale)
    rates = trials.drop_duplicates("optimizer").set_index("optimizer")["optimizer.lr"]
    rows = [item for item in rows_of(found).items() if "delay" in item[1]]
    rows.sort(key=lambda item: item[1]["delay"]["gap"])
    heads = ["optimizer", "lr", "sync loss", "gap of the delay", "gap with Error Feedback"]
    return table(
        [*heads, "gap removed", "n"],
        [
            [
                *(name(optimizer), f"{rates[optimizer]:g}", loss(arms["delay"])),
                *(gap(arms["delay"]), gap(arms.get("delay_ef")), removed(arms.get("delay_ef"))),
                " and ".join(
                    dict.fromkeys(str(arms[arm]["n"]) for arm in MAIN_ARMS if arm in arms)
                ),
            ]
            for optimizer, arms in rows
        ],
    )


def synchronous_start(scale: str = "tiny") -> str:
    """By the gap with it."""
    start = "delay+start(0.1)"
    trials, found = of_sweep("synchronous_start", scale)
    rows = rows_of(found)
    ordered = sorted(rows.items(), key=lambda item: item[1][start]["gap"])
    heads = ["optimizer", "gap of the delay", "with a synchronous start", "with Error Feedback"]
    return table(
        [*heads, "start minus delay", "start minus Error Feedback", "n"],
        [
            [
                *(name(optimizer), *(gap(arms[arm]) for arm in ("delay", start, "delay_ef"))),
                *(_difference(trials, optimizer, start, other) for other in ("delay", "delay_ef")),
                str(arms[start]["n"]),
            ]
            for optimizer, arms in ordered
        ],
    )


def _difference(trials: pd.DataFrame, optimizer: str, one: str, other: str) -> str:
    """The mean difference of two arms' final losses, paired by seed."""
    own = trials[trials["optimizer"] == optimizer]
    losses = own.pivot_table(index="seed", columns="arm", values="final_val_loss")
    return mean(losses[one] - losses[other])


def gradient_feedback() -> str:
    """One row per optimizer."""
    rows = []
    for optimizer, arms in rows_of(of_sweep("gradient_feedback").gaps).items():
        late = arms["delay_ef_gradient"]
        rows.append(
            [
                *(name(optimizer), gap(arms["delay"]), gap(arms["delay_ef"]), gap(late)),
                *(removed(late), f"{late['diverged']} of {late['pairs']}", str(late["n"])),
            ]
        )
    heads = ["optimizer", "gap of the delay", "feedback on updates", "feedback on gradients"]
    return table([*heads, "removed by that", "diverged", "n"], rows)


def coefficients(sweep: str, method: str, scale: str = "tiny") -> str:
    """Gap and share against the coefficient of a correction."""
    found = of_sweep(sweep, scale).gaps
    found = found[found["method"].isin(["none", method]) & (found["pairs"] > 0)]
    values = sorted(found["coefficient"].dropna().unique())
    rows = []
    for optimizer, group in found.groupby("optimizer"):
        by_value = {row["coefficient"]: row for row in group.to_dict("records")}
        plain = group[group["method"] == "none"].to_dict("records")[0]
        at = [by_value.get(value) for value in values]
        rows.append([f"{name(optimizer)}: gap", gap(plain), *map(gap, at), str(plain["n"])])
        rows.append([f"{name(optimizer)}: removed", "", *map(removed, at), str(plain["n"])])
    return table(["λ", "0, plain delay", *(f"{value:,g}" for value in values), "n"], rows)


def forecasts() -> str:
    """The registered ones beside what was measured since."""
    return forecasts_text(_checks())


def forecast_score() -> str:
    """How many of them held."""
    return score(_checks())


def _checks() -> list[Check]:
    published = (Published(["forecast_trials"]), SWEEPS["second_rung"], LONG["ladder"])
    return checks(DOCS / "forecasts", view(*published).trials)


def regimes(*optimizers: str) -> str:
    """The gap of the delay in few large updates, in many small ones, and in the paper's run: of
    these optimizers, or of all."""
    few, many = _regime(of_sweep("main")), _regime(of_sweep("shared_rate", "long"))
    reported = reported_taxes()
    theirs = reported[reported["who"].str.startswith("paper") & (reported["arm"] == "delay")]
    gaps_of_paper = (theirs["loss"] - theirs["loss_sync"]).set_axis(theirs["optimizer"])
    paper = {str(optimizer): f"{value:+.3f}" for optimizer, value in gaps_of_paper.items()}
    columns = (few, many, ("the paper, 360M", paper))
    rows = [
        [name(optimizer), *(cells.get(optimizer, "") for _, cells in columns)]
        for optimizer in optimizers or many[1]
    ]
    return table(["gap of the delay", *(head for head, _ in columns)], rows)


def _regime(of: View) -> tuple[str, dict[str, str]]:
    """What an update is, and the gap of the delay of each optimizer."""
    first = of.trials.iloc[0]
    size = f"{first['batch_size']:g} × {first['seq_len']:g}"
    head = f"{first['num_updates']:,} updates of {size} bytes, lr {first['optimizer.lr']:g}"
    rows = rows_of(of.gaps).items()
    return head, {key: f"{gap(arms['delay'])} (n={arms['delay']['n']})" for key, arms in rows}


def rate_of_long() -> str:
    """The learning rates that were tried on AdamW at each weight decay, with sync's loss."""
    trials = load(DOCS / "long_rate_trials.csv").sort_values("optimizer.lr")
    lines = []
    for decay, group in trials.groupby("optimizer.weight_decay"):
        pairs = zip(group["optimizer.lr"], group["final_val_loss"], strict=True)
        tried = ", ".join(f"{rate:g} ({loss:.3f})" for rate, loss in pairs)
        lines.append([f"{decay:g}", tried])
    return table(["weight decay", "tried (loss)"], lines)


def tried_rates() -> str:
    """The learning rates that the tuning tried, with sync's loss at seed 0."""
    tried = pd.read_csv(DOCS / "optimizers_tuned.csv").rename(columns={"optimizer.lr": "value"})
    lines = [
        [
            name(str(point).removeprefix("optimizer=")),
            ", ".join(f"{row.value:g} ({row.loss:.3f})" for row in group.itertuples()),
            f"{group.loc[group['chosen'], 'value'].iloc[0]:g}",
        ]
        for point, group in tried.groupby("point")
    ]
    return table(["optimizer", "tried (loss)", "chosen"], lines)


def overshoot(scale: str) -> str:
    """The gap at each coefficient of Error Feedback, and the gap at 1 minus it, paired by seed."""
    one, others = "delay_ef", ("delay_ef(2)", "delay_ef(4)")
    trials = of_sweep("overshoot", scale).trials
    losses = trials.pivot_table(index="seed", columns=["optimizer", "arm"], values="final_val_loss")
    rows = []
    for optimizer in sorted({*losses.columns.get_level_values("optimizer")}):
        of = losses[optimizer]
        gaps = [of[arm] - of["sync"] for arm in ("delay", one, *others)]
        saved = [of[one] - of[arm] for arm in others]
        rows.append([name(optimizer), *map(mean, gaps), *map(mean, saved), str(len(of))])
    heads = ["optimizer", "gap of the delay", "λ = 1", "λ = 2", "λ = 4"]
    return table([*heads, "1 minus 2", "1 minus 4", "n"], rows)
