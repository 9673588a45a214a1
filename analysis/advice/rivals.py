"""The answer against each synchronous pipeline, as rows and as one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, nan
from typing import Any

from analysis.advice.race import SameTime
from analysis.advice.speed import FLUSHED
from analysis.advice.verdict import GO, STAY, UNDECIDED, Decision
from analysis.statistics.intervals import ends_text

SHORT = {GO: "go", STAY: "stay", UNDECIDED: "not enough data"}
"""Verdicts in a table and in a sentence."""


@dataclass(frozen=True)
class Rival:
    """A synchronous pipeline, and what 2BW gains over it."""

    name: str
    num_chunks: int
    """Parts of the model per rank."""
    speed_up: float
    """How many batches 2BW makes in the time of one."""
    activations: float
    """Of how many microbatches a rank keeps activations."""
    fits: bool
    """Whether these are no more than allowed."""
    decision: Decision
    same_time: SameTime | None
    """The comparison that the decision rests on; None without an arm or without a speed-up."""

    @property
    def label(self) -> str:
        """The name, and the parts per rank of a pipeline that can have several numbers of them."""
        several = len(FLUSHED[self.name]) > 1
        return f"{self.name} ({self.num_chunks} parts)" if several else self.name

    @property
    def share(self) -> float:
        """The share of a step of it that 2BW can win at all."""
        return 1 - 1 / self.speed_up

    @property
    def row(self) -> dict[str, Any]:
        """The columns of `rows.ROW` but for the optimizer."""
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
        said = f"{SHORT[words[0]]}, against {every} schedule"
    else:
        labels = {word: listed([rival.label for rival in by_word[word]]) for word in words}
        said = "; ".join(f"{SHORT[word]} against {labels[word]}" for word in words)
    return f"{said}; {_numbers(by_word[words[0]])}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _numbers(rivals: Sequence[Rival]) -> str:
    """What the same time allows, against the slowest rival with runs that long."""
    measured = [rival for rival in rivals if rival.same_time and not rival.same_time.excess]
    slowest = max(measured or rivals, key=lambda rival: rival.speed_up)
    at = slowest.same_time
    if at is None or at.excess or slowest.decision.word == UNDECIDED:
        return slowest.decision.why
    more = f"{floor(100 * (slowest.speed_up - 1) + 1e-6)} % more updates"
    low, high = sorted(map(abs, at.interval))
    side = "lower" if at.gap < 0 else "higher"
    by = f"{abs(at.gap):.4f}{ends_text(low, high, '.4f')}"
    return f"in the time of {slowest.label} it makes {more} and ends {side} by {by}"
