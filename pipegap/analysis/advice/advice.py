"""An advice: a verdict on one optimizer and pipeline with what it rests on, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

from pipegap.analysis.advice.evidence import Evidence, Gap
from pipegap.analysis.advice.speed import SLOWEST, Costs
from pipegap.analysis.advice.timing import Ratio
from pipegap.analysis.advice.verdict import (
    BY_UPDATES,
    UNDECIDED,
    Decision,
    Rival,
    against,
    listed,
    loss_text,
)
from pipegap.analysis.statistics.intervals import ends_text, share_text
from pipegap.analysis.statistics.tax import Tax
from pipegap.analysis.statistics.text import tax_text
from pipegap.analysis.table import names
from pipegap.analysis.table.text import aligned, fitted, hanging

TOO_SHORT = "not enough data: these runs are too short"
UNEVEN = 0.05
"""How much longer than the mean the slowest stage takes before the text says so."""


@dataclass(frozen=True)
class Advice:
    """A verdict with its evidence; as a string it is text for people, the verdict first."""

    optimizer: str
    stages: int
    microbatches: int
    costs: Costs
    limits: tuple[str, ...]
    """What a step is made of, and what stands in the way of a gain, in lines."""
    rivals: dict[str, Rival]
    """The synchronous pipelines by name, in the order in which people meet them. The delay is
    compared, at each seed with the λ that is best on the others, with each of them."""
    most_activations: float
    """Of how many microbatches a rank may keep activations."""
    rival: str
    """The fastest that keeps no more activations than allowed."""
    evidence: Evidence | None
    """None if the store has no pair of the delay."""
    gap: Gap | None
    """The gap and the token tax of the recommended arm; None if no arm can be recommended."""
    verdict: Decision
    """The verdict against the rival."""
    left_out: tuple[str, ...]
    """Arms that diverged, and so are no candidates beside those that did not, in words."""
    command: str
    """The command of the trials that would decide; empty if the verdict is decided, or if no sweep
    of the store ran such trials."""

    @property
    def settings(self) -> str:
        """Those of the trials that would decide, in words; empty if the verdict is decided, or if
        no more of such trials decide: why says it."""
        settle = {} if "scale" in self.verdict.settle else self.verdict.settle
        settings_shown = {k: value for k, value in settle.items() if k not in BY_UPDATES}
        return ", ".join(
            f"{k.removeprefix('grid.')}={value}" for k, value in settings_shown.items()
        )

    @property
    def is_compared(self) -> bool:
        """Whether the store has two pairs of runs that are long enough, whatever they decide."""
        evidence = self.evidence
        return bool(evidence and evidence.decides and max(gap.pairs for gap in evidence.gaps) > 1)

    @property
    def num_decided(self) -> int:
        """The number of rivals against which the verdict is go or stay."""
        return sum(rival.decision.word != UNDECIDED for rival in self.rivals.values())

    @property
    def decided_by(self) -> Gap | None:
        """The gap of the arm whose runs decided, against the slowest pipeline that is decided; it
        may be another arm than the recommended one, of which there may be no longer runs."""
        decided = [rival for rival in self.rivals.values() if rival.decision.word != UNDECIDED]
        arms = {rival.speed_up: rival.same_time.arm for rival in decided if rival.same_time}
        if not arms or self.evidence is None:
            return None
        return next(gap for gap in self.evidence.gaps if gap.arm == arms[max(arms)])

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the text for a terminal of so many columns."""
        evidence = self.evidence
        parts = [[*heading([self])], [*self.limits], _verdict(self), _against(self, width)]
        parts += [_gaps(self, evidence) if evidence else []]
        if evidence and self.gap:
            parts += [[*_tax(self, self.gap, evidence)]]
        paragraphs = "\n\n".join("\n".join(lines) for lines in [*parts, [*_speed(self)]] if lines)
        return hanging(paragraphs, width)


def sentence(advice: Advice) -> str:
    """`Muon: go, against every schedule; in the time of 1F1B it makes 37 % more updates and …`."""
    verdict_words = f"{names.optimizer(advice.optimizer)}: {against([*advice.rivals.values()])}"
    return verdict_words + (
        f"; left out: {listed(advice.left_out)} diverged" if advice.left_out else ""
    )


def cost(advice: Advice) -> str:
    """What the arm that decided costs beside what it wins; empty where nothing is decided."""
    gap = advice.decided_by
    if gap is None:
        return ""
    parts = [f"a gap of {_mean(gap)} after as many updates"]
    parts += [f"a token tax of {tax_text(gap.tax._asdict())}"] if gap.tax.tax_n else []
    sets = "2 more sets" if gap.coefficient else "1 more set"
    return f"{gap.words} costs {listed([*parts, f'{sets} of weights'])}"


def ranking(answers: Sequence[Advice]) -> Iterator[str]:
    """`lowest loss in the time of 1F1B: SOAP 1.986, Muon 2.017`, in the order of the answers; none
    unless several optimizers trained one task for as long, and delayed runs for that time."""
    first, losses = None, {}
    for advice in answers:
        evidence, rival = advice.evidence, advice.rivals.get(SLOWEST)
        at = rival.same_time if rival else None
        if evidence and at and at.n and not at.excess:
            question = evidence.task, at.sync_updates
            first = first or question
            if question == first:
                losses[advice.optimizer] = at.loss
    if len(losses) > 1:
        texts = [f"{names.optimizer(name)} {loss:.3f}" for name, loss in losses.items()]
        yield f"lowest loss in the time of {SLOWEST}: {', '.join(texts)}"


def heading(answers: Sequence[Advice]) -> Iterator[str]:
    """What the answers are for, in a line per task; the other tasks of the store."""
    answers_by_text: dict[str, list[str]] = {}
    for advice in answers:
        answers_by_text.setdefault(_heading(advice), []).append(names.optimizer(advice.optimizer))
    for line, optimizers in answers_by_text.items():
        yield line if len(answers_by_text) == 1 else f"{', '.join(optimizers)}: {line}"
    other_tasks = dict.fromkeys(
        o for answer in answers if answer.evidence for o in answer.evidence.others
    )
    if other_tasks:
        yield f"not for the other tasks here: {'; '.join(other_tasks)}"


def _heading(advice: Advice) -> str:
    how = "measured and " * any(rival.is_measured for rival in advice.rivals.values())
    pipeline = f"{advice.stages} stages, {advice.microbatches} microbatches"
    simulated = f"time {how}simulated for {pipeline}"
    evidence = advice.evidence
    if evidence is None:
        return f"no pair of runs yet; {simulated}"
    decide = {at.arm for rival in advice.rivals.values() if (at := rival.same_time)}
    arms = listed([gap.words for gap in evidence.gaps if gap.arm in decide or not decide])
    losses = f"{evidence.task}, {evidence.updates:,} updates, {arms}"
    return f"{losses}: how its losses change with size is not known; {simulated}"


def _verdict(advice: Advice) -> list[str]:
    lines = [sentence(advice), *([f"  {costs}"] if (costs := cost(advice)) else [])]
    if advice.command:
        lines.append(f"  to settle it against {advice.rival}: {advice.command}")
    elif settings := advice.settings:
        lines.append(f"  to settle it against {advice.rival}, run more of these trials: {settings}")
    return lines


def headline(advice: Advice) -> str:
    """The sentence, and how to settle what is not decided against the fastest rival."""
    return "\n".join(_verdict(advice))


def _gaps(advice: Advice, evidence: Evidence) -> list[str]:
    setting = f" at {evidence.setting}" if evidence.setting else ""
    if evidence.num_settings > 1:
        setting += f", the best of {evidence.num_settings} for sync by these seeds"
    return [
        f"gap of 2BW after {evidence.updates} updates{setting}, nats per token [95 %]:",
        *aligned([[f"  {gap.words}", _gap(gap)] for gap in evidence.gaps]),
        f"  recommended λ of Error Feedback: {_recommended(advice.gap, evidence)}",
    ]


def _gap(gap: Gap) -> str:
    parts = [_mean(gap)] if gap.n else []
    if not isnan(gap.removed):
        parts.append(f"removes {share_text(gap.removed, *gap.removed_interval)}")
    if gap.diverged:
        parts.append(f"{gap.diverged} of {gap.pairs} diverged")
    return ", ".join(parts)


def _mean(gap: Gap) -> str:
    return f"{gap.gap:+.4f}{ends_text(*gap.interval, '+.4f')} n={gap.n}"


def _recommended(best_gap: Gap | None, evidence: Evidence) -> str:
    tried = [gap.coefficient for gap in evidence.gaps if gap.coefficient]
    if not tried:
        return "not enough data: none was run"
    if not evidence.decides:
        return TOO_SHORT
    among = f"of {', '.join(f'{value:g}' for value in tried)}"
    if any(gap.removes for gap in evidence.gaps) and not (best_gap and best_gap.removes):
        return f"none: {among} those that remove a part of the gap diverged in runs that count"
    if best_gap is None or not best_gap.removes:
        return f"not enough data: {among} none is shown to remove a part of the gap"
    only = "" if len(tried) > 1 else ", the only one that was run: sweep=coefficient runs others"
    return f"{best_gap.coefficient:g} (smallest mean gap {among}{only})"


def _against(advice: Advice, width: int | None) -> list[str]:
    heads = [
        f"against ({advice.stages} stages, {advice.microbatches} microbatches)",
        *("2BW is faster by", "verdict", "loss from sync's in the same time [95 %]", "runs"),
    ]
    rows = []
    for rival in advice.rivals.values():
        at, row = rival.same_time, rival.row
        gap = loss_text(at) if at and at.n else ""
        rows.append([rival.label, rival.ratio.text, row["verdict"], gap, row["evidence"]])
    return fitted(heads, rows, width, heads[::2])


def _speed(advice: Advice) -> Iterator[str]:
    yield "speed of 2BW in the steady state, simulated, and activations, in microbatches per rank:"
    most, fastest, costs = advice.most_activations, advice.rival, advice.costs
    simulated = [rival for rival in advice.rivals.values() if not isnan(rival.activations)]
    activations = ", ".join(f"{rival.label} keeps {rival.activations:g}" for rival in simulated)
    yield f"  {activations}"
    yield f"  allowed are {most:g}, so {fastest} is the fastest to compare with"
    assumed = "equal stages, a backward of two forwards"
    assumed += "" if costs.update or costs.communication else ", no time for updates and messages"
    yield f"  assumed: {'the costs that were given' if costs.are_known else assumed}"
    whole = costs.work
    if (slowest := max(whole) * len(whole) / sum(whole)) > 1 + UNEVEN:  # over the mean
        yield (
            f"  the slowest stage takes {slowest:.2f} times the mean: all these pipelines are as "
            f"fast as {advice.stages / slowest:.3g} equal stages at most"
        )
    yield "  not counted: what Error Feedback adds to an update, the second version of the weights"
    yield "  all wait for the gradient's norm: ZB-V that checks it later has hardly a bubble left"


def _tax(advice: Advice, gap: Gap, evidence: Evidence) -> Iterator[str]:
    tax = gap.tax
    yield f"token tax of {gap.words}, the updates it needs for sync's loss over sync's own:"
    if not tax.tax_n:
        yield f"  not enough data: {tax.tax_why}"
        return
    yield f"  {tax_text(tax._asdict())} n={tax.tax_n}, sync with {evidence.updates} updates"
    if not evidence.decides:
        yield f"  whether the delay pays: {TOO_SHORT}"
        return
    for rival in advice.rivals.values():
        pays = break_even(tax, rival.ratio)
        yield f"  against {rival.ratio.text}, the speed-up over {rival.label}: {pays}"


def break_even(tax: Tax, speed_up: Ratio) -> str:
    """A tax below the speed-up pays."""
    if isnan(tax.tax_low):
        return "one seed shows nothing"
    if tax.tax_high < speed_up.low:
        gain = speed_up.value / tax.tax
        return f"the tax is lower, so the delay pays: {gain:.2f} times as fast to sync's loss"
    if tax.tax_low > speed_up.high:
        return "the tax is higher, so the delay does not pay"
    return "not shown to be lower or higher"
