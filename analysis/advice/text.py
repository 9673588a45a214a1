"""An advice in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from math import isnan
from typing import TYPE_CHECKING

from analysis.advice.speed import equal_stages, fastest
from analysis.intervals import Interval

if TYPE_CHECKING:
    from analysis.advice import Advice
    from analysis.advice.evidence import Evidence, Gap
    from analysis.advice.race import SameLoss, SameTime

TRIED_BY_MAIN = (0, 1)
"""Coefficients of Error Feedback in the sweep `main`."""


def text(advice: Advice) -> str:
    """The verdict first, then what it rests on."""
    found = advice.evidence
    parts = [_verdict(advice), _gaps(advice, found) if found else [], [*_speed(advice)]]
    if found and advice.gap:
        parts.append([*_race(advice, advice.gap)])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _verdict(advice: Advice) -> list[str]:
    asked = f"{advice.optimizer}, {advice.stages} stages, {advice.microbatches} microbatches"
    against = f" (against {fastest(advice.speed_ups)})" if advice.verdicts else ""
    lines = [f"{asked}: {advice.verdict.word}{against}", f"  {advice.verdict.why}"]
    if advice.verdict.settle:
        lines.append(f"  to settle it: {_command(advice)}")
    return lines


def _command(advice: Advice) -> str:
    """The sweep that makes these runs; which scale it is, is not written in a trial."""
    sweep = "main" if not advice.gap or advice.gap.coefficient in TRIED_BY_MAIN else "coefficient"
    words = [f"sweep={sweep}", "scale=SCALE", f"grid.optimizer=[{advice.optimizer}]"]
    setting = advice.evidence.setting.split(", ") if advice.evidence else []
    words += [word.replace("=None", "=null") for word in setting if word]
    words += [f"{key}={value}".replace(" ", "") for key, value in advice.verdict.settle.items()]
    return f"python -m sweeps {shlex.join(words)}, SCALE that of these trials"


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


def _race(advice: Advice, gap: Gap) -> Iterator[str]:
    yield f"{gap.arm} and sync in the same time:"
    for name, at in advice.same_time.items():
        yield f"  against {name}: {_at_that_time(at)}: {advice.verdicts[name].word}"
    if advice.same_loss is not None:
        at_loss = _same_loss(advice.same_loss, advice.speed_ups)
        yield f"{gap.arm} and sync at the same loss: {at_loss}"


def _at_that_time(at: SameTime) -> str:
    lengths = f"{at.updates:.0f} updates to {at.sync_updates:.0f}"
    if isnan(at.gap):
        return f"{lengths}, no delayed runs are that long"
    interpolated = at.flatters_delay or at.flatters_sync
    between = ", between runs of other lengths" if interpolated else ""
    gap = f"{at.gap:+.4f}{_interval(at.interval, '+.4f')} n={at.n}"
    return f"{lengths}, loss {gap} from sync's{between}"


def _same_loss(at: SameLoss, speed_ups: Mapping[str, float]) -> str:
    ratio = at.updates / at.sync_updates
    if isnan(ratio):
        return "not enough data, and nothing is extrapolated"
    times = [f"{ratio / speed_up:.2f} of {name}'s" for name, speed_up in speed_ups.items()]
    known = "" if at.measured else " (by sync's curve, a rough guide: no runs of such lengths)"
    return (
        f"{at.loss:.4f} after {at.updates:.0f} updates to {at.sync_updates:.0f}, "
        f"{' and '.join(times)} time{known}"
    )
