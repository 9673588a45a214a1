"""The rule: when to go asynchronous, when to stay synchronous, and when data are too few; and the
answer against each synchronous pipeline, as rows and as one sentence."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, isinf, nan
from typing import Any

from pipegap.analysis.advice.evidence import Evidence, Gap
from pipegap.analysis.advice.race import NEARLY, SameTime, compared, optimistic, pessimistic
from pipegap.analysis.advice.speed import FLUSHED
from pipegap.analysis.advice.timing import Ratio
from pipegap.analysis.statistics.intervals import ends_text, seeds_needed
from pipegap.analysis.statistics.pairs import ENOUGH_UPDATES

GO, STAY, UNDECIDED = "go asynchronous", "stay synchronous", "not enough data"
SHORT = {GO: "go", STAY: "stay", UNDECIDED: "not enough data"}
"""Verdicts in a table and in a sentence."""
MOST_SEEDS = 20
"""The most seeds that are asked for: a difference that needs more hardly matters."""


@dataclass(frozen=True)
class Decision:
    """One of GO, STAY and UNDECIDED, and why."""

    word: str
    why: str
    settle: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the sweep that would decide it; empty if it is decided."""


def recommended(candidates: Sequence[Gap]) -> Gap | None:
    """The plain delay, or Error Feedback with the coefficient λ that the evidence favours.

    That is the λ of the smallest mean gap if the interval of the share that it removes of the plain
    gap lies above 0; else the plain delay, or the arm of the smallest gap if that was not run. None
    without candidates. λ is chosen on all seeds: no verdict is made of this arm's own gap, but see
    `race`.
    """
    if not candidates:
        return None
    smallest = min(candidates, key=lambda gap: gap.gap)
    plain = next((gap for gap in candidates if gap.coefficient == 0), smallest)
    return smallest if smallest.removes else plain


def candidates(evidence: Evidence, speed_ups: Collection[float]) -> list[Gap]:
    """The gaps of at least two pairs of arms no run of which, of a length that is compared at one
    of the speed-ups, diverged where sync did not."""
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
    num_pairs = 0
    length = (
        (longest, ENOUGH_UPDATES) if evidence is None else (evidence.updates, evidence.deciding)
    )
    if reason := _too_few(*length):
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
       end no better for its side (see `race`). Go must hold at the lowest speed-up that was
       measured, stay at the highest: each then errs at one end of two intervals.
    4. Else not enough data.
    """
    if slower := no_faster(speed_up):
        return slower, None
    least, most = speed_up.ends
    high, low = pessimistic(evidence, arms, least), optimistic(evidence, arms, most)
    go = Decision(GO, _by_time(high)) if speed_up.low else NOT_MEASURED
    stay = Decision(STAY, _by_time(low)) if isfinite(speed_up.high) else RIVAL_NOT_MEASURED
    for at, is_shown, decision in ((high, high.is_lower, go), (low, low.is_higher, stay)):
        shortest = min(at.sync_lengths) if is_shown else evidence.updates
        if reason := _too_few(shortest, evidence.deciding):
            return reason, at
        if is_shown:
            return decision, at
    return _undecided(evidence, high, largest), high


def _undecided(evidence: Evidence, at: SameTime, largest: float) -> Decision:
    if not at.excess and at.interval[0] <= 0 <= at.interval[1]:
        return Decision(UNDECIDED, _by_time(at), _more_seeds(at))
    if not at.excess and at.n > 1:
        why = f"{_by_time(at)}, but what is interpolated favours sync"
        return Decision(UNDECIDED, why, _longer(evidence, at.speed_up))
    why = (
        f"in the same time there are {at.speed_up:.3g} times the updates; whether these make up "
        f"for the gap, no runs of that length say"
    )
    return Decision(UNDECIDED, why, _longer(evidence, largest))


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
    if not updates < deciding:
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


def _longer(evidence: Evidence, speed_up: float) -> dict[str, Any]:
    return {"num_updates": ceil(evidence.updates * speed_up - NEARLY), **BY_UPDATES}


def _by_time(at: SameTime) -> str:
    side = "fewer" if at.excess < 0 else "more"
    when = f"with {side} updates than the time allows" if at.excess else "in the same time"
    return f"{when} its loss is {loss_text(at)} from sync's"


def loss_text(at: SameTime) -> str:
    """`-0.0139 [-0.0171, -0.0106] n=8`: the difference of the losses."""
    return f"{at.gap:+.4f}{ends_text(*at.interval, '+.4f')} n={at.n}"


def _more_seeds(at: SameTime) -> dict[str, Any]:
    """The seeds with which the interval around such a mean excludes 0 at this spread."""
    num_seeds = min(seeds_needed(at.spread, abs(at.gap)), MOST_SEEDS) if at.gap else MOST_SEEDS
    return {"grid.num_updates": at.needed, **BY_UPDATES, "seeds": [*range(num_seeds)]}


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
            "verdict": SHORT[self.decision.word],
            "difference": at.gap if at else nan,
            "low": low,
            "high": high,
            "n": at.n if at else 0,
            "evidence": at.runs if at and at.n else "",
        }


def against(rivals: Sequence[Rival]) -> str:
    """`go, against every schedule`, or the rivals of each verdict, with the numbers of the slowest
    one that is decided."""
    by_word = {word: [rival for rival in rivals if rival.decision.word == word] for word in SHORT}
    words = [word for word, group in by_word.items() if group]
    if len(words) == 1:
        every = "any" if words == [UNDECIDED] else "every"
        text = f"{SHORT[words[0]]}, against {every} schedule"
    else:
        labels = {word: listed([rival.label for rival in by_word[word]]) for word in words}
        text = "; ".join(f"{SHORT[word]} against {labels[word]}" for word in words)
    return f"{text}; {_numbers(by_word[words[0]])}"


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
    return f"{floor(100 * (speed_up - 1) + 1e-6)} % more updates"


def _ends(rival: Rival) -> str:
    at = rival.same_time
    if at is None:
        return ""
    low, high = sorted(map(abs, at.interval))
    side = "lower" if at.gap < 0 else "higher"
    by = f"{abs(at.gap):.4f}{ends_text(low, high, '.4f')}"
    return f"and ends {side} by {by}"
