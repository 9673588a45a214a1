"""The rule: when to go asynchronous, when to stay synchronous, when data are too few; and the
advice in words.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import ceil, floor, isfinite, isinf, isnan, nan
from typing import Any

from pipegap.analysis.advice.evidence import (
    NEARLY,
    Evidence,
    Gap,
    SameTime,
    compared,
    optimistic,
    pessimistic,
)
from pipegap.analysis.advice.speed import FLUSHED, SLOWEST, Costs
from pipegap.analysis.advice.timing import Ratio
from pipegap.analysis.statistics.pairs import ENOUGH_UPDATES, ends_text, seeds_needed, share_text
from pipegap.analysis.statistics.tax import Tax
from pipegap.analysis.statistics.text import tax_text
from pipegap.analysis.table import names
from pipegap.analysis.table.text import aligned, fitted, hanging

# The rule, and the answer against each synchronous pipeline, as rows and as one sentence.

GO, STAY, UNDECIDED = "go asynchronous", "stay synchronous", "not enough data"
SHORT = {GO: "go", STAY: "stay", UNDECIDED: "not enough data"}
MUST_BE_MEASURED = "must be measured"
"""What a table says in the place of *not enough data* where only a simulation asks for them."""
MOST_SEEDS = 20
"""The most seeds that are asked for: a difference that needs more hardly matters."""


@dataclass(frozen=True)
class Decision:
    """One of GO, STAY and UNDECIDED, and why."""

    word: str
    why: str
    settle: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the sweep that would decide it; empty if it is decided."""
    runs: Mapping[str, int] = field(default_factory=dict)
    """Updates by arm of the runs that would decide it, where no other runs are needed."""
    must_be_measured: bool = False
    """Whether a measured step of the rival might decide it alone."""

    @property
    def short(self) -> str:
        """The verdict in a table and in a sentence."""
        return MUST_BE_MEASURED if self.must_be_measured else SHORT[self.word]


def recommended(candidates: Sequence[Gap]) -> Gap | None:
    """The plain delay, or Error Feedback with the coefficient λ that the evidence favours.

    That is the λ of the smallest mean gap if the interval of the share that it removes of the plain
    gap lies above 0; else the plain delay, or the arm of the smallest gap if that was not run. None
    without candidates. λ is chosen on all seeds, so that no verdict rests on this arm's own gap:
    `evidence.pessimistic` and `evidence.optimistic` choose for each seed on the others.
    """
    if not candidates:
        return None
    smallest = min(candidates, key=lambda gap: gap.gap)
    # Error Feedback takes one more set of weights: it must be shown to remove something.
    plain = next((gap for gap in candidates if gap.coefficient == 0), smallest)
    return smallest if smallest.removes else plain


def candidates(evidence: Evidence, speed_ups: Collection[float]) -> list[Gap]:
    """The gaps of arms that have two pairs or more, and of which no run diverged where sync did
    not. The runs are those of the lengths that are compared at one of the speed-ups."""
    return [gap for gap in evidence.gaps if gap.n >= 2 and not diverged(evidence, gap, speed_ups)]


def diverged(evidence: Evidence, gap: Gap, speed_ups: Collection[float]) -> list[str]:
    """How many runs of an arm diverged where sync did not, for each length, in words."""
    lengths = compared(evidence, gap.arm, speed_ups)
    counts = ((length, *evidence.diverged(gap.arm, length)) for length in lengths)
    return [f"{gap.words} in {k} of {n} runs of {length} updates" for length, k, n in counts if k]


def without_candidate(
    evidence: Evidence | None, speed_ups: Collection[float], longest: float
) -> Decision:
    """The verdict where no arm can be recommended: stay if the delay diverged and sync did not.

    `longest`: the most updates of a trial, which count without evidence.
    """
    num_pairs, updates, deciding = 0, longest, float(ENOUGH_UPDATES)
    if evidence is not None:
        updates, deciding = evidence.updates, evidence.deciding
    if reason := _too_few(updates, deciding):
        return reason
    if evidence is not None:
        counts = [w for gap in evidence.gaps for w in diverged(evidence, gap, speed_ups)]
        if counts:
            why = f"the delayed runs diverged where sync did not: {', '.join(counts)}"
            return Decision(STAY, why)
        num_pairs = max((gap.n for gap in evidence.gaps), default=0)
    why = f"a gap has an interval from two pairs of runs on, and there are {num_pairs}"
    return Decision(UNDECIDED, why, {"seeds": [0, 1, 2]})


def decide(
    evidence: Evidence, arms: Sequence[str], speed_up: Ratio, largest: float
) -> tuple[Decision, SameTime | None]:
    """The verdict against a rival over which 2BW has this speed-up, and the comparison that it
    rests on. `largest`: the speed-up for which a sweep would train longer runs.

    In this order, with 95 % intervals of numbers paired by seed:

    1. If 2BW is not faster: stay.
    2. If a run that is compared is shorter than `evidence.deciding`: not enough data.
    3. In the same time, if the interval of the delayed loss minus sync's lies below 0: go; if it
       lies above 0: stay. Where no runs have the lengths for that, a verdict must hold of runs that
       end no better for its side (see `statistics.tax`). Go must hold at the lowest speed-up that
       was measured, stay at the highest: each then errs at one end of two intervals.
    4. Else not enough data.
    """
    if slower := no_faster(speed_up):
        return slower, None
    least, most = speed_up.ends
    high, low = pessimistic(evidence, arms, least), optimistic(evidence, arms, most)
    # An end of 0, or infinite: the step of 2BW, or of this rival, is only known from below.
    go = Decision(GO, _by_time(high)) if speed_up.low else NOT_MEASURED
    stay = Decision(STAY, _by_time(low)) if isfinite(speed_up.high) else RIVAL_NOT_MEASURED
    for at, is_shown, decision in ((high, high.is_lower, go), (low, low.is_higher, stay)):
        # What is shown rests on the runs compared, of which sync's are the shortest.
        shortest = min(at.sync_lengths) if is_shown else evidence.updates
        if reason := _too_few(shortest, evidence.deciding):
            return reason, at
        if is_shown:
            return decision, at
    return _undecided(evidence, high, largest), high


def _undecided(evidence: Evidence, at: SameTime, largest: float) -> Decision:
    # Runs of the right lengths, but too noisy: more seeds may settle it.
    if not at.excess and at.interval[0] <= 0 <= at.interval[1]:
        sync_updates, updates = at.needed
        runs = {"sync": sync_updates, **dict.fromkeys(at.arms, updates)}
        # An interval that is as wide to each side as the mean is large just excludes 0.
        num_seeds = min(seeds_needed(at.spread, abs(at.gap)), MOST_SEEDS) if at.gap else MOST_SEEDS
        settle = {"grid.num_updates": at.needed, **BY_UPDATES, "seeds": [*range(num_seeds)]}
        return Decision(UNDECIDED, _by_time(at), settle, runs)
    if not at.excess and at.n > 1:
        why = f"{_by_time(at)}, but what is interpolated favours sync"
        return _longer(evidence, at, at.speed_up, why)
    why = (
        f"in the same time there are {at.speed_up:.3g} times the updates; whether these make up "
        f"for the gap, no runs of that length say"
    )
    return _longer(evidence, at, largest, why)


def no_faster(speed_up: Ratio) -> Decision | None:
    """The verdict that needs no losses; None where 2BW may be faster."""
    if speed_up.ends[1] > 1 + NO_FASTER:
        return None
    if not isfinite(speed_up.high):
        return RIVAL_NOT_MEASURED
    if speed_up.value > 1 - NO_FASTER:
        return Decision(STAY, "2BW is no faster here")
    share = f"its step takes {speed_up.value:.2f} of the time of one of 2BW"
    return Decision(STAY, share if speed_up.low else f"{share}, even without a bubble")


NO_FASTER = 1e-9
"""The rounding error of a speed-up."""
NOT_MEASURED = Decision(
    UNDECIDED, "go only if 2BW is as fast as simulated: measure a step of it, time_2bw="
)
RIVAL_NOT_MEASURED = Decision(
    UNDECIDED, "stay only if this rival is as fast as simulated: measure a step of it, rival.NAME="
)


def _too_few(updates: float, deciding: float) -> Decision | None:
    """The verdict on runs that are too short to decide anything; None on longer ones."""
    if not updates < deciding:  # NaN, of trials without an update, is not too few
        return None
    why = f"runs of {updates:,.0f} updates decide nothing"
    if updates < ENOUGH_UPDATES:
        return Decision(UNDECIDED, f"{why}: fewer than {ENOUGH_UPDATES} are a smoke test", TINY)
    if isinf(deciding):
        return Decision(UNDECIDED, f"{why}: no length without decay is in the paper's regime", TINY)
    least = ceil(deciding)
    why += f": the paper's regime begins at {least:,} with this momentum, rate and decay"
    return Decision(UNDECIDED, why, {"num_updates": least, **BY_UPDATES})


TINY = {"scale": "tiny"}
"""The smallest scale that decides something."""
BY_UPDATES = {"tokens_per_parameter": "null"}
"""At the scales that give their length in tokens, num_updates must replace that."""


def _longer(evidence: Evidence, at: SameTime, speed_up: float, why: str) -> Decision:
    """The verdict that runs of the best arm that are longer by the speed-up would settle."""
    updates = ceil(evidence.updates * speed_up - NEARLY)
    runs = {"sync": evidence.updates, at.arm: updates}
    return Decision(UNDECIDED, why, {"num_updates": updates, **BY_UPDATES}, runs)


def _by_time(at: SameTime) -> str:
    side = "fewer" if at.excess < 0 else "more"
    when = f"with {side} updates than the time allows" if at.excess else "in the same time"
    return f"{when} its loss is {loss_text(at)} from sync's"


def loss_text(at: SameTime) -> str:
    """`-0.0139 [-0.0171, -0.0106] n=8`: the difference of the losses."""
    return f"{at.gap:+.4f}{ends_text(*at.interval, '+.4f')} n={at.n}"


@dataclass(frozen=True)
class Rival:
    """A synchronous pipeline, or what else was measured, and what 2BW gains over it."""

    name: str
    num_chunks: int
    """Parts of the model per rank."""
    speed_up: float
    """How many batches 2BW makes in the time of one."""
    speed_up_interval: Sequence[float]
    """`low` and `high` of `Ratio`: `speed_up` where nothing was measured."""
    is_measured: bool
    activations: float
    """Of how many microbatches a rank keeps activations; NaN if that is not known."""
    fits: bool
    """Whether these are no more than allowed."""
    decision: Decision
    same_time: SameTime | None
    """The comparison that the decision rests on; None without an arm or without a speed-up."""

    @property
    def label(self) -> str:
        """The name, and the parts per rank of a pipeline that can have several numbers of them."""
        several = len(FLUSHED.get(self.name, ())) > 1
        return f"{self.name} ({self.num_chunks} parts)" if several else self.name

    @property
    def ratio(self) -> Ratio:
        """The speed-up with its interval."""
        return Ratio(self.speed_up, *self.speed_up_interval)

    @property
    def row(self) -> dict[str, Any]:
        """The columns of `advise.ROW` but for the optimizer."""
        at = self.same_time
        low, high = at.interval if at else (nan, nan)
        return {
            "rival": self.label,
            "speedup": self.speed_up,
            "verdict": self.decision.short,
            "difference": at.gap if at else nan,
            "low": low,
            "high": high,
            "n": at.n if at else 0,
            "evidence": at.runs if at and at.n else "",
        }


def must_be_measured(rivals: Mapping[str, Rival], plain: Collection[str]) -> dict[str, Rival]:
    """Return the rivals, of which those must be measured that alone stand between *go* and *not
    enough data*: all `plain` and all measured ones are beaten, as far as 2BW is as fast as
    simulated, and by a simulation of more than that some pipelines are faster
    (`speed.Speed.is_plain`)."""
    simulated = {name for name, rival in rivals.items() if not (rival.is_measured or name in plain)}
    beaten = [
        rival.decision.word == GO or rival.decision == NOT_MEASURED
        for name, rival in rivals.items()
        if name not in simulated
    ]
    open_names = {name for name in simulated if rivals[name].decision.word == UNDECIDED}
    if not (beaten and all(beaten)):
        return {**rivals}
    return {
        name: replace(rival, decision=_unmeasured(rival)) if name in open_names else rival
        for name, rival in rivals.items()
    }


def _unmeasured(rival: Rival) -> Decision:
    word = shlex.quote(f"rival.{rival.name}=TIME")
    why = f"only a simulation makes it so fast, so it must be measured, {word}; if it is: "
    return replace(rival.decision, why=why + rival.decision.why, must_be_measured=True)


def against(rivals: Sequence[Rival]) -> str:
    """`go, against every schedule`, or the rivals of each verdict, with the numbers of the slowest
    one that is decided."""
    by_verdict = {
        short: [rival for rival in rivals if rival.decision.short == short]
        for short in (*SHORT.values(), MUST_BE_MEASURED)
    }
    words = [short for short, group in by_verdict.items() if group]
    if len(words) == 1:
        every = "any" if words == [SHORT[UNDECIDED]] else "every"
        text = f"{words[0]}, against {every} schedule"
    else:
        labels = {short: listed([rival.label for rival in by_verdict[short]]) for short in words}
        text = "; ".join(
            f"{of} {short}" if short == MUST_BE_MEASURED else f"{short} against {of}"
            for short, of in labels.items()
        )
    return f"{text}; {_numbers(by_verdict[words[0]])}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    *first_words, last = words
    return f"{', '.join(first_words)} and {last}" if first_words else last


def _numbers(rivals: Sequence[Rival]) -> str:
    """What the same time allows, against the slowest and the fastest rival with runs that long."""
    measured = [rival for rival in rivals if rival.same_time and not rival.same_time.excess]
    slowest = max(measured or rivals, key=lambda rival: rival.speed_up)
    fastest = min(measured or rivals, key=lambda rival: rival.speed_up)
    if not measured or slowest.decision.word == UNDECIDED:
        return slowest.decision.why
    text = f"in the time of {slowest.label} it makes {more_updates(slowest)} {_ends(slowest)}"
    if fastest.speed_up == slowest.speed_up:
        return text
    return f"{text}, in that of {fastest.label} {more_updates(fastest)} {_ends(fastest)}"


def more_updates(rival: Rival) -> str:
    """`37 % more updates`, in the time of a rival."""
    speed_up = rival.same_time.speed_up if rival.same_time else rival.speed_up
    return f"{floor(100 * (speed_up - 1) + 1e-6)} % more updates"  # whole ones, never too many


def _ends(rival: Rival) -> str:
    at = rival.same_time
    if at is None:
        return ""
    low, high = sorted(map(abs, at.interval))  # a decided interval lies on one side of 0
    side = "lower" if at.gap < 0 else "higher"
    by = f"{abs(at.gap):.4f}{ends_text(low, high, '.4f')}"
    return f"and ends {side} by {by}"


# An advice: a verdict on one optimizer and pipeline with what it rests on, in words.

TOO_SHORT = "not enough data: these runs are too short"


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
    price: str = ""
    """How many trials these are and how long they take, in words; empty if that is not known."""

    @property
    def settings(self) -> str:
        """Those of the trials that would decide, in words; empty if the verdict is decided, or if
        no more of such trials decide: why says it."""
        settle = {} if "scale" in self.verdict.settle else self.verdict.settle
        words = (f"{k.removeprefix('grid.')}={v}" for k, v in settle.items() if k not in BY_UPDATES)
        return ", ".join(words)

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
    left_out = f"; left out: {listed(advice.left_out)} diverged" if advice.left_out else ""
    optimizer, rivals = names.optimizer(advice.optimizer), [*advice.rivals.values()]
    return f"{optimizer}: {against(rivals)}{left_out}"


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
    for advice in answers:
        if advice.evidence and (mixed := advice.evidence.mixed):
            yield f"{names.optimizer(advice.optimizer)}: {mixed}: they round otherwise"
    tasks = (advice.evidence.others for advice in answers if advice.evidence)
    if other_tasks := dict.fromkeys(chain.from_iterable(tasks)):
        yield f"not for the other tasks here: {'; '.join(other_tasks)}"


def _heading(advice: Advice) -> str:
    measured = [rival.label for rival in advice.rivals.values() if rival.is_measured]
    how = f"measured of {listed(measured)}, else simulated" if measured else "simulated"
    simulated = f"time {how} for {advice.stages} stages, {advice.microbatches} microbatches"
    evidence = advice.evidence
    if evidence is None:
        return f"no pair of runs yet; {simulated}"
    decide = {at.arm for rival in advice.rivals.values() if (at := rival.same_time)}
    arms = listed([gap.words for gap in evidence.gaps if gap.arm in decide or not decide])
    losses = f"{evidence.task}, {evidence.updates:,} updates, {arms}"
    return f"{losses}: how its losses change with size is not known; {simulated}"


def _verdict(advice: Advice) -> list[str]:
    lines = [sentence(advice), *([f"  {costs}"] if (costs := cost(advice)) else [])]
    goal = f"  to settle it against {advice.rival}"
    goal += ", measure a step of it, or" * advice.verdict.must_be_measured
    price = f" ({advice.price})" if advice.price else ""
    if advice.command:
        lines.append(f"{goal}{price}: {advice.command}")
    elif settings := advice.settings:
        comma = "" if advice.verdict.must_be_measured else ","
        lines.append(f"{goal}{comma} run more of these trials: {settings}{price}")
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
    if (slowest := max(whole) * len(whole) / sum(whole)) > 1.05:  # over the mean
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
    """Say whether the delay pays: it does if its tax lies below the speed-up."""
    if isnan(tax.tax_low):
        return "one seed shows nothing"
    if tax.tax_high < speed_up.low:
        gain = speed_up.value / tax.tax
        return f"the tax is lower, so the delay pays: {gain:.2f} times as fast to sync's loss"
    if tax.tax_low > speed_up.high:
        return "the tax is higher, so the delay does not pay"
    return "not shown to be lower or higher"
