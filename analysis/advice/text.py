"""An advice in words."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING

from analysis.advice.speed import equal_stages, fastest
from analysis.intervals import Interval

if TYPE_CHECKING:
    from analysis.advice import Advice
    from analysis.advice.evidence import Evidence, Gap
    from analysis.advice.verdict import Race

TRIED_BY_MAIN = (0, 1)
"""Coefficients of Error Feedback in the sweep `main`."""


def text(advice: Advice) -> str:
    """The verdict first, then what it rests on."""
    found = advice.evidence
    parts = [_verdict(advice), _gaps(advice, found) if found else [], [*_speed(advice)]]
    if found and advice.gap:
        parts.append([*_same_time(advice, found, advice.gap)])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _verdict(advice: Advice) -> list[str]:
    asked = f"{advice.optimizer}, {advice.stages} stages, {advice.microbatches} microbatches"
    against = f" (against {fastest(advice.speed_ups)})" if advice.races else ""
    lines = [f"{asked}: {advice.verdict.word}{against}", f"  {advice.verdict.why}"]
    if advice.verdict.settle:
        lines.append(f"  to settle it: {_command(advice)}")
    return lines


def _command(advice: Advice) -> str:
    """The sweep that makes these runs; which scale it is, is not written in a trial."""
    sweep = "main" if not advice.gap or advice.gap.coefficient in TRIED_BY_MAIN else "coefficient"
    words = [f"sweep={sweep}", "scale=SCALE", f"'grid.optimizer=[{advice.optimizer}]'"]
    setting = advice.evidence.setting.split(", ") if advice.evidence else []
    words += [word.replace("=None", "=null") for word in setting if word]
    words += [f"{key}={value}".replace(" ", "") for key, value in advice.verdict.settle.items()]
    return f"python -m sweeps {' '.join(words)}, SCALE that of these trials"


def _gaps(advice: Advice, found: Evidence) -> list[str]:
    setting = f" at {found.setting}" if found.setting else ""
    return [
        f"gap of 2BW after {found.updates} updates{setting}, nats a token [95 %]:",
        *(f"  {gap.arm:<16}{_gap(gap)}" for gap in found.gaps),
        f"  recommended λ of Error Feedback: {_recommended(advice.gap, found)}",
    ]


def _gap(gap: Gap) -> str:
    parts = [f"{gap.gap:+.4f}{_interval(gap.interval, '+.4f')} n={gap.n}"] if gap.n else []
    if not isnan(gap.removed):
        parts.append(f"removes {gap.removed:.0%}{_interval(gap.removed_interval, '.0%')}")
    if gap.diverged:
        parts.append(f"{gap.diverged} of {gap.pairs} diverged")
    return ", ".join(parts)


def _interval(interval: Interval, form: str) -> str:
    low, high = interval
    return "" if isnan(low) else f" [{low:{form}}, {high:{form}}]"


def _recommended(chosen: Gap | None, found: Evidence) -> str:
    tried = [gap.coefficient for gap in found.gaps if gap.coefficient]
    if not tried:
        return "not enough data: none was run"
    of = f"of {', '.join(f'{value:g}' for value in tried)}"
    if chosen is None or not chosen.removes:
        return f"not enough data: {of} none is shown to remove a part of the gap"
    only = "" if len(tried) > 1 else ", the only one that was run: sweep=coefficient runs others"
    return f"{chosen.coefficient:g} (smallest mean gap {of}{only})"


def _speed(advice: Advice) -> Iterator[str]:
    yield "speed of 2BW in the steady state, simulated:"
    for name, speed_up in advice.speed_ups.items():
        yield f"  {speed_up:.3f} times {name}"
    equal = advice.costs == equal_stages(advice.stages)
    assumed = "equal stages, a backward of two forwards, no time for updates and messages"
    yield f"  assumed: {assumed if equal else 'the costs that were given'}"
    yield "  not counted: what Error Feedback adds to an update"


def _same_time(advice: Advice, found: Evidence, gap: Gap) -> Iterator[str]:
    yield f"{gap.arm} in the time that sync takes for {found.updates} updates:"
    for name, at in advice.races.items():
        yield f"  against {name}: {at.updates:.0f} updates, {_at_that_time(at)}: {at.verdict.word}"
    yield f"to sync's final loss of {found.loss_sync:.4f}: {_same_loss(advice, found)}"


def _at_that_time(at: Race) -> str:
    if isnan(at.gap):
        return "no delayed runs are that long"
    return f"loss {at.gap:+.4f}{_interval(at.interval, '+.4f')} n={at.n} from sync's"


def _same_loss(advice: Advice, found: Evidence) -> str:
    needed = advice.updates_to_same_loss
    if not isnan(needed):
        return f"{needed:.0f} updates, {_times(advice, needed / found.updates)}"
    low, high = advice.slowdown
    bound = (
        f"; by sync's own curve {low * found.updates:.0f} to {high * found.updates:.0f} updates "
        f"at least, {_times(advice, low)}"
    )
    unseen = "no delayed run was seen to get there, and nothing is extrapolated"
    return unseen + ("" if isnan(low) else bound)


def _times(advice: Advice, updates: float) -> str:
    times = (f"{updates / value:.2f} of {name}'s" for name, value in advice.speed_ups.items())
    return f"{' and '.join(times)} time"
