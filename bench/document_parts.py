"""The parts of documents that are made of the trials published in docs/: tables and sentences.

Verdicts are those of `analysis.claims`: no sentence here says more than a rule that was written
before the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis import best, gaps, load
from analysis.advice.text import break_even
from analysis.claims import CLAIMS, Outcome, Verdict, audited, judged
from analysis.claims.claim import Part as ClaimPart
from analysis.statistics.intervals import mean_interval
from analysis.statistics.reported import reported_taxes
from analysis.statistics.tax import MAIN_ARMS, best_taxes
from analysis.statistics.text import gap_table, tax_text
from analysis.table.names import REPORTED_ARMS, minus
from analysis.table.names import optimizer as name

DOCS = Path(__file__).parents[1] / "docs"
Part = Callable[[], str]
Row = Mapping[Any, Any]

MOST_PARTS, MOST_NUMBERS = 2, 3
"""Of a verdict, and of a part: what has more is named without its numbers, which a table has."""


class Published(NamedTuple):
    """The files of a sweep's trials, and which of their arms it compares; empty: all."""

    files: Sequence[str]
    arms: Sequence[str] = ()


SWEEPS: Mapping[str, Published] = {
    "main": Published(["trials"]),
    "optimizers": Published(["optimizers_trials"]),
    "synchronous_start": Published(["optimizers_trials", "synchronous_start_trials"]),
    "gradient_feedback": Published(
        ["trials", "corrections_trials"], ("sync", "delay", "delay_ef", "delay_ef_gradient")
    ),
    "taylor": Published(
        ["trials", "corrections_trials"],
        ("sync", "delay", *(f"delay_taylor({10**power})" for power in range(6))),
    ),
    "momentum": Published(["momentum_trials"]),
    "coefficient": Published(["coefficient_trials", "momentum_trials"]),
    "batch_size": Published(["batch_size_trials", "trials"], ("sync", "delay")),
}
LONG: Mapping[str, Published] = {"shared_rate": Published(["long_trials"])}
SCALES = {"tiny": SWEEPS, "long": LONG}
"""The sweeps of each scale that have published trials."""
LENGTHS = Published(["trials", "advice_trials", "momentum_trials"], ("sync", *MAIN_ARMS))
"""Trials of several lengths."""


class View(NamedTuple):
    """Trials that are compared, and their gaps."""

    trials: pd.DataFrame
    gaps: pd.DataFrame


def view(*published: Published) -> View:
    """The trials of all of these together."""
    return _view(tuple((tuple(one.files), tuple(one.arms)) for one in published))


@cache
def _view(published: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]) -> View:
    tables = []
    for files, arms in published:
        table = pd.concat([load(DOCS / f"{name}.csv") for name in files])
        tables.append(table[table["arm"].isin(arms)] if arms else table)
    trials = pd.concat(tables).drop_duplicates("trial_id").reset_index(drop=True)
    return View(trials, gaps(trials))


def of_sweep(sweep: str, scale: str = "tiny") -> View:
    """The trials of one sweep; of `coefficient` only the points at which it has some."""
    found = view(SCALES[scale][sweep])
    if sweep != "coefficient":
        return found
    points = found.gaps.loc[found.gaps["coefficient"].notna() & (found.gaps["pairs"] > 0), "point"]
    trials = found.trials[found.trials["point"].isin(points)]
    return View(trials, gaps(trials))


# Cells


def gap(row: Row | None) -> str:
    """`+0.153 [+0.102, +0.204]`; of one pair `+0.153`."""
    if row is None or not row["n"]:
        return ""
    if pd.isna(row["low"]):
        return minus(f"{row['gap']:+.3f}")
    return minus(f"{row['gap']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]")


def removed(row: Row | None) -> str:
    """`52 % [30, 70]`."""
    if row is None or pd.isna(row["removed"]):
        return ""
    low, high = (f"{100 * row[end]:.0f}" for end in ("removed_low", "removed_high"))
    return minus(f"{100 * row['removed']:.0f} % [{low}, {high}]")


def loss(row: Row | None) -> str:
    """Sync's."""
    return "" if row is None else f"{row['loss_sync']:.3f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return re.sub(r"\|  (?=\|)", "| ", text)


def rows_of(found: pd.DataFrame) -> dict[str, dict[str, Row]]:
    """Optimizer → arm → row of its gap; one point per optimizer."""
    by_optimizer: dict[str, dict[str, Row]] = {}
    for row in found[found["pairs"] > 0].to_dict("records"):
        by_optimizer.setdefault(row["optimizer"], {})[row["arm"]] = row
    return by_optimizer


# Tables


def main_table() -> str:
    """As `python -m analysis` prints it."""
    return gap_table(of_sweep("main").gaps).strip()


def taxes() -> str:
    """Ours, each at the point of the lowest loss of sync that has one."""
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


def synchronous_start() -> str:
    """By the gap with it."""
    start = "delay+start(0.1)"
    rows = rows_of(of_sweep("synchronous_start").gaps)
    ordered = sorted(rows.items(), key=lambda item: item[1][start]["gap"])
    heads = ["optimizer", "gap of the delay", "with a synchronous start", "with Error Feedback"]
    return table(
        [*heads, "start minus delay", "start minus Error Feedback", "n"],
        [
            [
                *(name(optimizer), *(gap(arms[arm]) for arm in ("delay", start, "delay_ef"))),
                *(_difference(optimizer, start, other) for other in ("delay", "delay_ef")),
                str(arms[start]["n"]),
            ]
            for optimizer, arms in ordered
        ],
    )


def _difference(optimizer: str, one: str, other: str) -> str:
    """The mean difference of two arms' final losses, paired by seed."""
    found = of_sweep("synchronous_start").trials
    own = found[found["optimizer"] == optimizer]
    losses = own.pivot_table(index="seed", columns="arm", values="final_val_loss")
    values = (losses[one] - losses[other]).dropna().to_numpy()
    low, high = mean_interval(values)
    return gap({"n": len(values), "gap": values.mean(), "low": low, "high": high})


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


def coefficients(sweep: str, method: str) -> str:
    """Gap and share against the coefficient of a correction."""
    found = of_sweep(sweep).gaps
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


def momentum() -> str:
    """One column per momentum."""
    trials, found = of_sweep("momentum")
    return _along(trials, found, "optimizer.momentum", "momentum", keys=())


def batch_size() -> str:
    """One column per batch size, at the learning rate that is best on sync there."""
    trials, found = of_sweep("batch_size")
    sizes = found["point"].map(trials.drop_duplicates("point").set_index("point")["batch_size"])
    chosen = found.assign(size=sizes).sort_values("loss_sync", kind="stable")
    chosen = chosen.drop_duplicates(["optimizer", "size"])
    return _along(trials, chosen, "batch_size", "batch size", keys=("optimizer.lr",))


def _along(
    trials: pd.DataFrame, found: pd.DataFrame, key: str, title: str, keys: Sequence[str]
) -> str:
    """Rows of each optimizer: other `keys` of its points, sync's loss, and the gap of the delay."""
    points = trials.drop_duplicates("point").set_index("point")[[key, *keys]]
    rows = found[(found["arm"] == "delay") & (found["pairs"] > 0)].join(points, on="point")
    values = sorted(rows[key].unique())
    lines = []
    for optimizer, group in rows.groupby("optimizer"):
        by_value = {row[key]: row for row in group.to_dict("records")}
        at = [by_value[value] for value in values]
        n = str(group["n"].iloc[0])
        for other in keys:
            said = other.rpartition(".")[2]
            lines.append([f"{name(optimizer)}: {said}", *(f"{row[other]:g}" for row in at), n])
        lines.append([f"{name(optimizer)}: sync loss", *map(loss, at), n])
        lines.append([f"{name(optimizer)}: gap of the delay", *map(gap, at), n])
    return table([title, *(f"{value:g}" for value in values), "n"], lines)


def best_points() -> str:
    """Each arm at its own best point of the grid."""
    found = best(of_sweep("batch_size").trials)
    return table(
        ["optimizer", "best delay minus best sync", "n", "sync's point", "the delay's point"],
        [
            [name(row["optimizer"]), gap(row), str(row["n"]), row["setting_sync"], row["setting"]]
            for row in found.to_dict("records")
        ],
    )


def regimes() -> str:
    """The gap of the delay in few large updates, in many small ones, and in the paper's run."""
    few, many = _regime(of_sweep("main")), _regime(of_sweep("shared_rate", "long"))
    reported = reported_taxes()
    theirs = reported[reported["who"].str.startswith("paper") & (reported["arm"] == "delay")]
    gaps_of_paper = (theirs["loss"] - theirs["loss_sync"]).set_axis(theirs["optimizer"])
    paper = {str(optimizer): f"{value:+.3f}" for optimizer, value in gaps_of_paper.items()}
    columns = (few, many, ("the paper, 360M", paper))
    rows = [
        [name(optimizer), *(cells.get(optimizer, "") for _, cells in columns)]
        for optimizer in many[1]
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
    tried = pd.read_csv(DOCS / "optimizers_tuned.csv")
    lines = [
        [
            name(str(point).removeprefix("optimizer=")),
            ", ".join(f"{row.value:g} ({row.loss:.3f})" for row in group.itertuples()),
            f"{group.loc[group['chosen'], 'value'].iloc[0]:g}",
        ]
        for point, group in tried.groupby("point")
    ]
    return table(["optimizer", "tried (loss)", "chosen"], lines)


# Sentences


@cache
def _judged(sweep: str, scale: str) -> Sequence[Verdict]:
    """The verdicts of the claims about a sweep, on its trials alone."""
    trials = of_sweep(sweep, scale).trials
    return [judged(claim, trials) for claim in CLAIMS if sweep in claim.sweeps]


@cache
def verdict_table(scale: str = "tiny") -> str:
    """Each sweep by itself: what its claims come to, and how often their rules err."""
    rows = [
        [f"`{sweep}`", verdict.claim.statement, _outcome(verdict), _sure(audited(verdict))]
        for sweep in SCALES[scale]
        for verdict in _judged(sweep, scale)
    ]
    return table(["sweep", "claim", "verdict", "how sure"], rows)


def _outcome(verdict: Verdict) -> str:
    parts = f" ({verdict.summary})" if len(verdict.parts) > 1 else ""
    return f"**{verdict.outcome}**{parts}"


def _sure(verdict: Verdict) -> str:
    return verdict.doubt or verdict.parts[0].why


def contradicted(scale: str = "tiny") -> str:
    """One line: the claims that are, and of which sweep."""
    all_of_them = [(sweep, one) for sweep in SCALES[scale] for one in _judged(sweep, scale)]
    against = [
        f"*{verdict.claim.statement}* (`{sweep}`)"
        for sweep, verdict in all_of_them
        if verdict.outcome == Outcome.CONTRADICTED
    ]
    decided = sum(verdict.outcome != Outcome.UNDECIDED for _, verdict in all_of_them)
    nothing = f"nothing, with {decided} of {len(all_of_them)} verdicts decided"
    return f"Against the paper at this scale: {'; '.join(against) or nothing}."


def verdicts(sweep: str, *names: str, scale: str = "tiny") -> str:
    """One point of a list per claim about the sweep, or of these alone: its outcome, its words, and
    its parts by their outcome."""
    found = [one for one in _judged(sweep, scale) if not names or one.claim.name in names]
    return "\n".join(map(_verdict, found))


def _verdict(verdict: Verdict) -> str:
    words = _words if len(verdict.parts) > MOST_PARTS else _with_numbers
    others = [f"{_words(part)} ({part.outcome})" for part in verdict.others]
    beside = f" Not in the paper: {'; '.join(others)}." if others else ""
    return (
        f"- **{str(verdict.outcome).capitalize()}**: *{verdict.claim.statement}*. "
        f"{' '.join(_by_outcome(verdict.parts, words))}{beside}"
    )


def _by_outcome(parts: Sequence[ClaimPart], words: Callable[[ClaimPart], str]) -> Iterator[str]:
    for outcome in Outcome:
        if said := [words(part) for part in parts if part.outcome == outcome]:
            yield f"{str(outcome).capitalize()}: {'; '.join(said)}."


def _words(part: ClaimPart) -> str:
    return _named(part.what)


def _with_numbers(part: ClaimPart) -> str:
    numbers = [minus(str(number)) for number in part.numbers]
    shown = numbers if len(numbers) <= MOST_NUMBERS else []
    return _named(f"{part.what} ({'; '.join(filter(None, [*shown, part.why]))})")


def _named(text: str) -> str:
    """With every optimizer as its authors write it."""
    return re.sub(r"\b[a-z]+\b", lambda word: name(word[0]), text)


def counts(file: str, folder: str = "") -> str:
    """How many trials a file lists, and how long they are."""
    trials = load(DOCS / f"{file}.csv")
    lengths = [str(length) for length in sorted({*trials["num_updates"]})]
    updates = " or ".join(filter(None, [", ".join(lengths[:-1]), lengths[-1]]))
    path = f"{folder}{file}.csv"
    return f"{len(trials)} trials of {updates} updates: [{path}]({path})."


def same_time() -> str:
    """The delayed run of Muon that takes as long as sync on 4 stages with 8 microbatches."""
    from analysis import advise

    trials = view(LENGTHS).trials
    found = advise(trials, optimizer="muon", stages=4, microbatches=8, updates=400)
    at = found.same_time["ZB-H1"]
    low, high = at.interval
    assert found.gap is not None
    tax = tax_text(found.gap.tax._asdict())
    return (
        f"Final losses say otherwise: delayed runs of {at.updates:.0f} updates, which take as long "
        f"as the {at.sync_updates:.0f} of sync against ZB-H1, ended {at.gap:+.4f} [{low:+.4f}, "
        f"{high:+.4f}] from sync (n={at.n}), and the token tax is {tax}, below the speed-up of "
        f"{found.speed_ups['ZB-H1']:.3f}. Against ZB-V the speed-up is "
        f"{found.speed_ups['ZB-V']:.3f}: {break_even(found.gap.tax, found.speed_ups['ZB-V'])}."
    ).replace("-0", "−0")


PARTS: Mapping[str, Part] = {
    "main": main_table,
    "main-verdicts": partial(verdicts, "main", "adamw_over_muon"),
    "verdicts": verdict_table,
    "contradicted": contradicted,
    "taxes": taxes,
    "taxes-of-others": taxes_of_others,
    "conversions": conversions,
    "optimizers": partial(optimizers, "optimizers"),
    "rates": tried_rates,
    "optimizers-verdicts": partial(verdicts, "optimizers"),
    "synchronous-start": synchronous_start,
    "synchronous-start-verdicts": partial(verdicts, "synchronous_start"),
    "gradient-feedback": gradient_feedback,
    "gradient-feedback-verdicts": partial(verdicts, "gradient_feedback"),
    "taylor": partial(coefficients, "taylor", "taylor"),
    "taylor-verdicts": partial(verdicts, "taylor"),
    "momentum": momentum,
    "momentum-verdicts": partial(verdicts, "momentum"),
    "coefficient": partial(coefficients, "coefficient", "error_feedback"),
    "coefficient-verdicts": partial(verdicts, "coefficient"),
    "batch-size": batch_size,
    "best-points": best_points,
    "batch-size-verdicts": partial(verdicts, "batch_size"),
    "long-trials": partial(counts, "long_trials"),
    "long-rates": rate_of_long,
    "long": partial(optimizers, "shared_rate", "long"),
    "long-verdicts": partial(verdict_table, "long"),
    "long-contradicted": partial(contradicted, "long"),
    "long-parts": partial(verdicts, "shared_rate", scale="long"),
    "regimes": regimes,
    "main-trials": partial(counts, "trials", "docs/"),
    "optimizers-trials": partial(counts, "optimizers_trials"),
    "synchronous-start-trials": partial(counts, "synchronous_start_trials"),
    "corrections-trials": partial(counts, "corrections_trials"),
    "momentum-trials": partial(counts, "momentum_trials"),
    "coefficient-trials": partial(counts, "coefficient_trials"),
    "batch-size-trials": partial(counts, "batch_size_trials"),
    "advice-trials": partial(counts, "advice_trials"),
    "same-time": same_time,
}
