"""An advice: a verdict on one optimizer and pipeline with what it rests on, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

from analysis.advice.evidence import Evidence, Gap
from analysis.advice.race import SameTime
from analysis.advice.speed import Costs, equal_stages
from analysis.advice.verdict import BY_UPDATES, Decision
from analysis.statistics.intervals import ends_text
from analysis.statistics.tax import Tax
from analysis.statistics.text import tax_text

UNEVEN = 0.05
"""How much longer than the mean the slowest stage takes before the text says so."""


@dataclass(frozen=True)
class Advice:
    """A verdict with its evidence; as a string it is text for people, the verdict first."""

    optimizer: str
    stages: int
    microbatches: int
    costs: Costs
    speed_ups: dict[str, float]
    """For each synchronous pipeline, how many batches 2BW makes in the time of one."""
    activations: dict[str, float]
    """For each synchronous pipeline, of how many microbatches a rank keeps activations."""
    most_activations: float
    """Of how many microbatches a rank may keep activations."""
    rival: str
    """The fastest synchronous pipeline that keeps no more."""
    evidence: Evidence | None
    """None if the store has no pair of the delay."""
    gap: Gap | None
    """The gap and the token tax of the recommended arm; None if no arm can be recommended."""
    same_time: dict[str, SameTime]
    """The delay, at each seed with the λ that is best on the others, against each synchronous
    pipeline; empty without an arm."""
    verdicts: dict[str, Decision]
    """The verdict against each synchronous pipeline; empty without an arm."""
    verdict: Decision
    """The verdict against the rival."""
    command: str
    """The command of the trials that would decide; empty if the verdict is decided, or if no sweep
    of the store ran such trials."""

    def __str__(self) -> str:
        evidence = self.evidence
        parts = [_verdict(self), _gaps(self, evidence) if evidence else [], [*_speed(self)]]
        if evidence and self.gap:
            parts += [[*_tax(self, self.gap, evidence)], [*_race(self, self.gap)]]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _verdict(advice: Advice) -> list[str]:
    question = f"{advice.optimizer}, {advice.stages} stages, {advice.microbatches} microbatches"
    against = f" (against {advice.rival})" if advice.verdicts else ""
    lines = [f"{question}: {advice.verdict.word}{against}", f"  {advice.verdict.why}"]
    if advice.command:
        lines.append(f"  to settle it: {advice.command}")
    elif advice.verdict.settle:
        lines.append(f"  to settle it, run more of these trials: {_settings(advice)}")
    return lines


def _settings(advice: Advice) -> str:
    """The settings that these trials need, where no sweep of the store can make them."""
    shown = {key: value for key, value in advice.verdict.settle.items() if key not in BY_UPDATES}
    return ", ".join(f"{key.removeprefix('grid.')}={value}" for key, value in shown.items())


def headline(advice: Advice) -> str:
    """The verdict alone."""
    return "\n".join(_verdict(advice))


def _gaps(advice: Advice, evidence: Evidence) -> list[str]:
    setting = f" at {evidence.setting}" if evidence.setting else ""
    return [
        f"gap of 2BW after {evidence.updates} updates{setting}, nats per token [95 %]:",
        *(f"  {gap.arm:<16}{_gap(gap)}" for gap in evidence.gaps),
        f"  recommended λ of Error Feedback: {_recommended(advice.gap, evidence)}",
    ]


def _gap(gap: Gap) -> str:
    parts = [f"{gap.gap:+.4f}{ends_text(*gap.interval, '+.4f')} n={gap.n}"] if gap.n else []
    if not isnan(gap.removed):
        parts.append(f"removes {gap.removed:.0%}{ends_text(*gap.removed_interval, '.0%')}")
    if gap.diverged:
        parts.append(f"{gap.diverged} of {gap.pairs} diverged")
    return ", ".join(parts)


def _recommended(chosen: Gap | None, evidence: Evidence) -> str:
    tried = [gap.coefficient for gap in evidence.gaps if gap.coefficient]
    if not tried:
        return "not enough data: none was run"
    among = f"of {', '.join(f'{value:g}' for value in tried)}"
    if chosen is None or not chosen.removes:
        return f"not enough data: {among} none is shown to remove a part of the gap"
    only = "" if len(tried) > 1 else ", the only one that was run: sweep=coefficient runs others"
    return f"{chosen.coefficient:g} (smallest mean gap {among}{only})"


def _speed(advice: Advice) -> Iterator[str]:
    yield "speed of 2BW in the steady state, simulated:"
    for name, speed_up in advice.speed_ups.items():
        kept = f"a rank keeps activations of {advice.activations[name]:g} microbatches"
        yield f"  {speed_up:.3f} times {name}, where {kept}"
    most, rival = advice.most_activations, advice.rival
    yield f"  allowed are {most:g}, so {rival} is the fastest to compare with"
    equal = advice.costs == equal_stages(advice.stages)
    assumed = "equal stages, a backward of two forwards, no time for updates and messages"
    yield f"  assumed: {assumed if equal else 'the costs that were given'}"
    if (slowest := _over_mean(advice.costs)) > 1 + UNEVEN:
        yield (
            f"  the slowest stage takes {slowest:.2f} times the mean: all these pipelines are as "
            f"fast as {advice.stages / slowest:.3g} equal stages at most"
        )
    yield "  not counted: what Error Feedback adds to an update, the second version of the weights"
    yield "  all wait for the gradient's norm: ZB-V that checks it later has hardly a bubble left"


def _over_mean(costs: Costs) -> float:
    whole = [f + b for f, b in zip(costs.forward, costs.backward, strict=True)]
    return max(whole) * len(whole) / sum(whole)


def _tax(advice: Advice, gap: Gap, evidence: Evidence) -> Iterator[str]:
    tax = gap.tax
    yield f"token tax of {gap.arm}, the updates it needs for sync's loss over sync's own:"
    if not tax.tax_n:
        yield f"  not enough data: {tax.tax_why}"
        return
    yield f"  {tax_text(tax._asdict())} n={tax.tax_n}, sync with {evidence.updates} updates"
    for name, speed_up in advice.speed_ups.items():
        yield f"  against {speed_up:.3f}, the speed-up over {name}: {break_even(tax, speed_up)}"


def break_even(tax: Tax, speed_up: float) -> str:
    """A tax below the speed-up pays."""
    if isnan(tax.tax_low):
        return "one seed shows nothing"
    if tax.tax_high < speed_up:
        return "the tax is lower, so the delay pays"
    if tax.tax_low > speed_up:
        return "the tax is higher, so the delay does not pay"
    return "not shown to be lower or higher"


def _race(advice: Advice, gap: Gap) -> Iterator[str]:
    several = len(advice.evidence.gaps) > 1 if advice.evidence else False
    compared = "the delay, each seed at the λ that is best on the others," if several else gap.arm
    yield f"{compared} and sync in the same time:"
    for name, at in advice.same_time.items():
        yield f"  against {name}: {_at_that_time(at)}: {advice.verdicts[name].word}"


def _at_that_time(at: SameTime) -> str:
    lengths = f"{at.updates:.0f} updates to {at.sync_updates:.0f}"
    if isnan(at.gap):
        return f"{lengths}, no delayed runs are that long"
    between = ", between runs of other lengths" if at.is_interpolated else ""
    gap = f"{at.gap:+.4f}{ends_text(*at.interval, '+.4f')} n={at.n}"
    return f"{lengths}, loss {gap} from sync's{between}"
