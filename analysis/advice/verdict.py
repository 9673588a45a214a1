"""The rule: when to go asynchronous, when to stay synchronous, and when data are too few."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from analysis.advice.evidence import Evidence, Gap
from analysis.advice.race import NEARLY, SameTime, compared
from analysis.statistics.intervals import ends_text
from analysis.statistics.power import seeds_needed

GO, STAY, UNDECIDED = "go asynchronous", "stay synchronous", "not enough data"
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
    `race.after`.
    """
    if not candidates:
        return None
    smallest = min(candidates, key=lambda gap: gap.gap)
    plain = next((gap for gap in candidates if gap.coefficient == 0), smallest)
    return smallest if smallest.removes else plain


def candidates(evidence: Evidence, speed_ups: Collection[float]) -> list[Gap]:
    """The gaps of at least two pairs of arms no run of which, of a length that is compared at one
    of the speed-ups, diverged where sync did not."""
    return [
        gap for gap in evidence.gaps if gap.n >= 2 and not _diverged(evidence, gap.arm, speed_ups)
    ]


def _diverged(evidence: Evidence, arm: str, speed_ups: Collection[float]) -> list[str]:
    """How many runs of an arm diverged where sync did not, for each length, in words."""
    lengths = compared(evidence, arm, speed_ups)
    counts = ((length, *evidence.diverged(arm, length)) for length in lengths)
    return [f"{arm} in {k} of {n} runs of {length} updates" for length, k, n in counts if k]


def without_candidate(evidence: Evidence | None, speed_ups: Collection[float]) -> Decision:
    """The verdict where no arm can be recommended: stay if the delay diverged and sync did not."""
    num_pairs = 0
    if evidence is not None:
        counts = [w for gap in evidence.gaps for w in _diverged(evidence, gap.arm, speed_ups)]
        if counts:
            why = f"the delayed runs diverged where sync did not: {', '.join(counts)}"
            return Decision(STAY, why)
        num_pairs = max((gap.n for gap in evidence.gaps), default=0)
    why = f"a gap has an interval from two pairs of runs on, and there are {num_pairs}"
    return Decision(UNDECIDED, why, {"seeds": [0, 1, 2]})


def verdict(same_updates: SameTime, at: SameTime, speed_up: float, updates: int) -> Decision:
    """In this order, with 95 % intervals of numbers paired by seed:

    1. If 2BW is not faster: stay.
    2. If there are runs that take the same time, the delayed ones longer by the speed-up: go if the
       interval of their loss minus sync's lies below 0, stay if it lies above. A loss interpolated
       between runs of other lengths may only decide against the side that this favours.
    3. If the interval of the gap after as many updates (`same_updates`) does not exceed 0: go.
    4. Else not enough data: delayed runs longer by the speed-up would decide it.
    """
    if speed_up <= 1 + 1e-9:
        return Decision(STAY, "2BW is no faster here")
    if at.is_lower or at.is_higher:
        return Decision(GO if at.is_lower else STAY, _by_time(at))
    if same_updates.interval[1] <= 0:
        return Decision(GO, "after as many updates its loss is no higher, and they take less time")
    if at.interval[0] <= 0 <= at.interval[1]:
        return Decision(UNDECIDED, _by_time(at), _more_seeds(at))
    why = (
        f"in the same time there are {speed_up:.3g} times the updates; whether these make up for "
        f"the gap, no runs of that length say"
    )
    longer = {"num_updates": ceil(updates * speed_up - NEARLY), **BY_UPDATES}
    return Decision(UNDECIDED, why, longer)


BY_UPDATES = {"tokens_per_parameter": "null"}
"""At the scales that give their length in tokens, num_updates must replace that."""


def _by_time(at: SameTime) -> str:
    loss = f"{at.gap:+.4f}{ends_text(*at.interval, '+.4f')} n={at.n}"
    return f"in the same time its loss is {loss} from sync's"


def _more_seeds(at: SameTime) -> dict[str, Any]:
    """The seeds with which the interval around such a mean excludes 0 at this spread."""
    num_seeds = min(seeds_needed(at.spread, abs(at.gap)), MOST_SEEDS) if at.gap else MOST_SEEDS
    return {"grid.num_updates": at.lengths, **BY_UPDATES, "seeds": [*range(num_seeds)]}
