"""What the pages say of claims and of trials: every public function is a call.

Verdicts are those of `analysis.claims`: no sentence here says more than a rule that was written
before the run.
"""

from collections.abc import Sequence
from functools import cache
from math import floor

import pandas as pd

from analysis import advise
from analysis.advice.advice import Advice, break_even, sentence
from analysis.advice.rows import advices
from analysis.advice.verdict import GO, Rival
from analysis.claims import CLAIMS, Claim, Outcome, Verdict, audited, judged
from analysis.claims.claim import ClaimPart
from analysis.claims.switches import spike, spike_by_decay
from analysis.report.answer import MICROBATCHES, STAGES
from analysis.statistics.intervals import CONFIDENCE
from analysis.statistics.text import tax_text
from analysis.table.answers import ACCURACY, BITS, title
from analysis.table.names import REPORTED_ARMS, minus, prose
from analysis.table.names import optimizer as name
from findings.code.cells import Markdown, table
from findings.code.published import FEW, TINY, of_sweep, read, scores, spikes, sweeps, view

MOST_PARTS, MOST_NUMBERS = 2, 3
"""Of a verdict, and of a part: what has more is named without its numbers, which a table has."""
BY_HEIGHT = {"spike": spike, "spike_by_decay": spike_by_decay}
"""The claims that compare heights, which are published beside the trials."""
PLACES = {("main", TINY): "replication"}
"""The study that has the trials of a sweep at a scale, if it is not the sweep's own."""


def _compared(claim: Claim) -> Claim:
    """The claim, on the published heights if it compares some."""
    compare = BY_HEIGHT.get(claim.name)
    if compare is None:
        return claim
    return claim._replace(compare=lambda trials: compare(trials, spikes(trials)))


@cache
def _verdicts(sweep: str, scale: str) -> Sequence[Verdict]:
    """The verdicts of the claims about a sweep, on its trials alone."""
    trials = of_sweep(sweep, scale).trials
    return [judged(_compared(claim), trials) for claim in CLAIMS if sweep in claim.sweeps]


def _all_verdicts(scale: str) -> list[tuple[str, Verdict]]:
    """The verdicts at a scale with their sweeps."""
    return [(sweep, verdict) for sweep in sweeps(scale) for verdict in _verdicts(sweep, scale)]


def verdict_table(scale: str) -> Markdown:
    """Each sweep by itself: the verdict on each claim about it, and how often its rule errs."""
    rows = []
    for sweep, verdict in _all_verdicts(scale):
        parts = f" ({verdict.summary})" if len(verdict.parts) > 1 else ""
        sure = audited(verdict).doubt or verdict.parts[0].why
        rows.append([f"`{sweep}`", verdict.claim.statement, f"**{verdict.outcome}**{parts}", sure])
    return table(["sweep", "claim", "verdict", "how sure"], rows)


def contradicted(scale: str) -> str:
    """One line: the claims that are contradicted at a scale, and by which sweep."""
    all_of_them = _all_verdicts(scale)
    against = [
        f"*{verdict.claim.statement}* (`{sweep}`)"
        for sweep, verdict in all_of_them
        if verdict.outcome == Outcome.CONTRADICTED
    ]
    decided = sum(verdict.outcome != Outcome.UNDECIDED for _, verdict in all_of_them)
    nothing = f"nothing, with {decided} of {len(all_of_them)} verdicts decided"
    return f"Against the paper at this scale: {'; '.join(against) or nothing}."


def claims() -> Markdown:
    """One row per claim: where the paper says it, what was measured, and the verdicts."""
    rows = []
    for claim in CLAIMS:
        at = {
            scale: [(s, v) for s, v in _all_verdicts(scale) if v.claim.name == claim.name]
            for scale in (TINY, FEW)
        }
        known = [verdict for scale in at for _, verdict in at[scale]]
        measured = _measured(max(known, key=_num_seeds)) if known else ""
        said = [f"{claim.statement} ({claim.place.partition(' (')[0]})", measured]
        rows.append([*said, *(_linked(scale, at[scale]) for scale in at)])
    heads = ["the paper", "measured, with most seeds", "many small updates", "few large"]
    return table(heads, rows)


def _num_seeds(verdict: Verdict) -> int:
    return max((number.n for part in verdict.parts for number in part.numbers), default=0)


def _measured(verdict: Verdict) -> str:
    """The number that decides each part; of many parts, how many came out how."""
    if len(verdict.parts) > MOST_PARTS:
        return verdict.summary
    numbers = [(part.what, part.numbers[-1]) for part in verdict.parts if part.numbers]
    return "; ".join(prose(f"{what}: {number}") for what, number in numbers)


def _linked(scale: str, verdicts: Sequence[tuple[str, Verdict]]) -> str:
    """`**reproduced** by [main](…)`, for each outcome."""
    said = []
    for outcome in Outcome:
        of_outcome = [sweep for sweep, verdict in verdicts if verdict.outcome == outcome]
        places = [PLACES.get((sweep, scale), sweep) for sweep in of_outcome]
        links = ", ".join(f"[{place}](findings/{place}/README.md)" for place in places)
        said += [f"**{outcome}** {links}"] if places else []
    return "; ".join(said)


def verdicts(sweep: str, scale: str, only: str = "") -> str:
    """One point of a list per claim about the sweep, or for `only` these: its outcome, its words,
    and its parts by their outcome."""
    chosen = (
        only.split(",") if only else [verdict.claim.name for verdict in _verdicts(sweep, scale)]
    )
    shown = [verdict for verdict in _verdicts(sweep, scale) if verdict.claim.name in chosen]
    return "\n".join(map(_verdict, shown))


def _verdict(verdict: Verdict) -> str:
    is_long = len(verdict.parts) > MOST_PARTS
    said = [f"- **{str(verdict.outcome).capitalize()}**: *{verdict.claim.statement}*."]
    for outcome in Outcome:
        parts = [part for part in verdict.parts if part.outcome == outcome]
        texts = [prose(part.what) if is_long else _with_numbers(part) for part in parts]
        said += [f"{str(outcome).capitalize()}: {'; '.join(texts)}."] if parts else []
    others = [f"{prose(part.what)} ({part.outcome})" for part in verdict.others]
    said += [f"Not in the paper: {'; '.join(others)}."] if others else []
    return " ".join(said)


def _with_numbers(part: ClaimPart) -> str:
    numbers = [*map(str, part.numbers)]
    shown = numbers if len(numbers) <= MOST_NUMBERS else []
    more = "; ".join(filter(None, [*shown, part.why]))
    return prose(f"{part.what} ({more})" if more else part.what)


def trials(table: str) -> str:
    """How many trials a table lists, and how long they are."""
    rows = read(table)
    lengths = [str(length) for length in sorted({*rows["num_updates_asked"]})]
    updates = " or ".join(filter(None, [", ".join(lengths[:-1]), lengths[-1]]))
    return f"{len(rows)} trials of {updates} updates: {_link(table)}."


def _link(table: str) -> str:
    return f"[{table.rpartition('/')[2]}.csv](findings/{table}.csv)"


def made_twice(table: str, other: str) -> str:
    """How far trials that two tables have, which were run apart, ended from each other."""
    both = read(table).merge(read(other), on="trial_id")
    apart = (both["final_val_loss_x"] - both["final_val_loss_y"]).abs().max()
    return (
        f"{len(both)} of them had been run for {_link(other)} too: the largest difference of their "
        f"final losses is {apart:g}."
    )


def _advices() -> list[Advice]:
    """What the README's job advises each optimizer."""
    trials = view("front").trials
    return advices(trials, stages=STAGES, microbatches=MICROBATCHES)


def answer() -> str:
    """The optimizers that may be asynchronous whatever the rival, in bold, with what each wins
    over the slowest rival in the same time; then a sentence for each other optimizer."""
    wins, others = [], []
    for advice in _advices():
        rivals = [*advice.rivals.values()]
        slowest = max(rivals, key=lambda rival: rival.speed_up)
        if slowest.same_time and all(rival.decision.word == GO for rival in rivals):
            wins.append((name(advice.optimizer), slowest, slowest.same_time.gap))
        else:
            others.append(f"{sentence(advice)}.")
    return minus(" ".join([*_won(wins), *others]))


def _won(wins: Sequence[tuple[str, Rival, float]]) -> list[str]:
    if not wins:
        return []
    optimizers, [rival, *_], gaps = zip(*wins, strict=True)
    more = f"{floor(100 * (rival.speed_up - 1) + 1e-6)} %"
    lower = " or ".join(f"{-gap:.3f}" for gap in gaps)
    return [
        f"**Yes, with {' or '.join(optimizers)} and Error Feedback: in the time of {rival.name}, "
        f"2BW makes {more} more updates and its loss ends lower by {lower}.**"
    ]


def same_time() -> str:
    """The delayed run of Muon that takes as long as sync on 4 stages with 8 microbatches."""
    trials = view("lengths").trials
    answer = advise(trials, optimizer="muon", stages=4, microbatches=8, updates=400)
    halves, in_a_v = answer.rivals["ZB-H1"], answer.rivals["ZB-V"]
    at = halves.same_time
    assert at is not None
    assert answer.gap is not None
    low, high = at.interval
    tax = tax_text(answer.gap.tax._asdict())
    return (
        f"Final losses say otherwise: delayed runs of {at.updates:.0f} updates, which take as long "
        f"as the {at.sync_updates:.0f} of sync against ZB-H1, ended {at.gap:+.4f} [{low:+.4f}, "
        f"{high:+.4f}] from sync (n={at.n}), and the token tax is {tax}, below the speed-up of "
        f"{halves.speed_up:.3f}. Against ZB-V the speed-up is {in_a_v.speed_up:.3f}: "
        f"{break_even(answer.gap.tax, in_a_v.speed_up)}."
    ).replace("-0", "−0")


def differences() -> str:
    """How many published intervals of downstream differences of each model do not hold 0, and
    which."""
    rows = scores()
    rows = rows[rows["measure"].isin([ACCURACY, BITS]) & rows["low"].notna()]
    return "\n".join(f"- {model}: {_outside(of)}." for model, of in rows.groupby("model"))


def _outside(rows: pd.DataFrame) -> str:
    outside = rows[(rows["low"] > 0) | (rows["high"] < 0)]
    names = [
        f"{name(optimizer)}, {REPORTED_ARMS[str(arm)]}: "
        f"{str(measure).replace('_', ' ')} in {', '.join(map(title, group['task']))}"
        for (optimizer, arm, measure), group in outside.groupby(["optimizer", "arm", "measure"])
    ]
    expected = (1 - CONFIDENCE) * len(rows)
    which = f" ({'; '.join(names)})" if names else ""
    return (
        f"of {len(rows)} intervals of accuracy and of bits per byte {len(outside)} do not hold "
        f"0{which}; were there no difference, {expected:.0f} would be expected"
    )
