"""The score: the share of the mutants that can be noticed which a test notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml
from scipy import stats

from bench.mutations.mutants import Mutant
from bench.mutations.rooms import ROOMS, STARTS_RAY


class Status(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    NOT_REACHED = "not reached"
    """No test that was tried executes it."""


@dataclass(frozen=True)
class Verdict:
    """Why no test needs to notice a mutant: read by a person, once."""

    why: str
    """`equivalent`, `message` (only words change) or `performance`."""
    reason: str


def read_verdicts(path: Path) -> dict[tuple[str, ...], Verdict]:
    """By file, function, old and new lines: a list of mappings with these keys, in YAML."""
    of = ("file", "function", "old", "new")
    return {
        tuple(str(one[name]).strip() for name in of): Verdict(one["why"], one["reason"])
        for one in yaml.safe_load(path.read_text()) or ()
    }


def verdict_of(mutant: Mutant, verdicts: Mapping[tuple[str, ...], Verdict]) -> Verdict | None:
    """That of this edit, if there is one."""
    return verdicts.get((mutant.path, mutant.function, mutant.old, mutant.new))


def room_of(mutant: Mutant) -> str:
    """The room that the file is in."""
    return str(Path(mutant.path).parent)


@dataclass(frozen=True)
class Tried:
    """A mutant, and what became of it when it was first tried and when it was last."""

    mutant: Mutant
    first: Status
    last: Status


@dataclass(frozen=True)
class Score:
    """Counts of some mutants; those with a verdict count nowhere else."""

    killed: int
    survived: int
    uncounted: int
    by_verdict: Mapping[str, int]

    def __str__(self) -> str:
        """As per cent, with Wilson's 95 % interval."""
        of = self.killed + self.survived
        if not of:
            return ""
        found = stats.binomtest(self.killed, of).proportion_ci(0.95, method="wilson")
        interval = f"[{100 * found.low:.1f}, {100 * found.high:.1f}]"
        return f"{100 * self.killed / of:.1f} % {interval}"


def score(
    tried: Iterable[tuple[Mutant, Status]], verdicts: Mapping[tuple[str, ...], Verdict]
) -> Score:
    """Counts them. A mutant that was killed is, whatever its verdict says."""
    counts: Counter[str] = Counter()
    by_verdict: Counter[str] = Counter()
    for mutant, status in tried:
        verdict = verdict_of(mutant, verdicts)
        if status is not Status.KILLED and verdict:
            by_verdict[verdict.why] += 1
        elif status is Status.NOT_REACHED and room_of(mutant) in STARTS_RAY:
            counts["uncounted"] += 1
        else:
            counts["killed" if status is Status.KILLED else "survived"] += 1
    return Score(counts["killed"], counts["survived"], counts["uncounted"], by_verdict)


def table(
    mutants: Sequence[Mutant],
    tried: Sequence[Tried],
    verdicts: Mapping[tuple[str, ...], Verdict],
) -> str:
    """A Markdown table, one row per room and one of all."""
    lines = [
        "| | mutants | tried | needs Ray | equivalent, words or speed | killed | survived "
        "| killed of these [95 %] | before tests were added |",
        f"|{' --- |' * 9}",
    ]
    for room in (*ROOMS, "all"):
        num_mutants = sum(room in (room_of(one), "all") for one in mutants)
        own = [one for one in tried if room in (room_of(one.mutant), "all")]
        now = score([(one.mutant, one.last) for one in own], verdicts)
        then = score([(one.mutant, one.first) for one in own], verdicts)
        judged = sum(now.by_verdict.values())
        counts = (num_mutants, len(own), now.uncounted, judged, now.killed, now.survived)
        lines.append(f"| {room} | {' | '.join(f'{n:,}' for n in counts)} | {now} | {then} |")
    return "\n".join(lines)


def survivors_table(tried: Sequence[Tried], verdicts: Mapping[tuple[str, ...], Verdict]) -> str:
    """A Markdown table of the mutants that nobody killed at first, with what became of them."""
    lines = ["| function | was | became | |", "| --- | --- | --- | --- |"]
    for one in tried:
        mutant, verdict = one.mutant, verdict_of(one.mutant, verdicts)
        if one.first is Status.KILLED or is_uncounted(one):
            continue
        if one.last is Status.KILLED:
            reason = "a test was added"
        else:
            reason = f"{verdict.why}: {verdict.reason}" if verdict else "**open**"
        name = f"{Path(mutant.path).with_suffix('')}, `{mutant.function}`"
        lines.append(f"| {name} | {_code(mutant.old)} | {_code(mutant.new)} | {reason} |")
    return "\n".join(lines)


def is_uncounted(one: Tried) -> bool:
    """Whether only a test that starts Ray could notice it."""
    return one.last is Status.NOT_REACHED and room_of(one.mutant) in STARTS_RAY


def _code(lines: str) -> str:
    text = " ".join(lines.split()).replace("|", "\\|")
    return f"`{text}`"
