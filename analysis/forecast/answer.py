"""The answer to "what will the delay cost there?": a forecast, or why there is not enough data.

An answer is told as lines for people, and as plain data for programs.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.forecast.forecast import Forecast, Forecaster, Form
from analysis.forecast.ladder import Ladder, Rung, name_of
from analysis.forecast.laws import FORMS, REGRESSORS, SyncLaw, TaxLaw, left_out
from analysis.statistics.intervals import Interval, ends_text
from analysis.table.text import markdown
from trainer.base.errors import some

Target = tuple[int, int, int]
"""Updates, tokens per update, parameters."""
FEWEST_LENGTHS = 3
"""Two lengths do not show how sync's loss bends."""
REACH = 1.0
"""How far beyond its ends a ladder carries, as a share of its own span, in logarithms."""
HEADS = ("arm", "gap [95 %]", "token tax [95 %]", "form", "rungs", "T of the rungs")
TRUST = (
    "95 % intervals of the mean gap of so many seeds; they reach around a law with a floor and one "
    "without, and assume that one of them holds beyond the rungs"
)


@dataclass(frozen=True)
class Foretold:
    """A rung of the ladder, and what the shorter rungs say of it."""

    rung: Rung
    point: Forecast

    @property
    def is_inside(self) -> bool:
        """Whether its mean gap lies in the interval."""
        low, high = self.point.gap_interval
        return bool(low <= self.rung.gaps.mean() <= high)


@dataclass(frozen=True)
class Answer:
    """For one optimizer and arm. Without enough data `point` is None and `why` says it."""

    ladder: Ladder
    target: Target
    seeds: int
    point: Forecast | None = None
    why: str = ""
    forms: Sequence[Form] = ()
    """The chosen one first."""
    exponents: Mapping[str, Interval] = field(default_factory=dict)
    """95 % intervals of the law's exponents, around the forms that count."""
    left_out: Sequence[str] = ()
    """Regressors that do not vary on the ladder."""
    longest: Sequence[Foretold] = ()
    """The longest rungs, foretold from the shorter ones; empty if these do not support that."""

    @property
    def is_beyond(self) -> bool:
        """Whether the target lies outside of the rungs."""
        settings, target = self.ladder.settings, np.array(self.target)
        return bool(((target < settings.min(0)) | (target > settings.max(0))).any())


def answer(ladder: Ladder, target: Target, seeds: int) -> Answer:
    """The forecast of the mean gap of so many seeds at the target."""
    if why := why_not(ladder, target):
        return Answer(ladder, target, seeds, why=why)
    forecaster = Forecaster(ladder)
    [point] = forecaster.at(np.array([target], dtype=float), seeds)
    return Answer(
        ladder,
        target,
        seeds,
        point,
        forms=forecaster.forms,
        exponents=forecaster.exponents,
        left_out=left_out(ladder.settings),
        longest=_longest(ladder),
    )


def _longest(ladder: Ladder) -> list[Foretold]:
    """Each of the longest rungs, foretold from all that are shorter."""
    length = max(rung.updates for rung in ladder.rungs)
    shorter = ladder.below(length)
    rungs = [rung for rung in ladder.rungs if rung.updates == length]
    rungs = [rung for rung in rungs if not why_not(shorter, rung.settings)]
    if not rungs:
        return []
    forecaster = Forecaster(shorter)
    return [
        Foretold(rung, *forecaster.at(np.array([rung.settings], dtype=float), len(rung.gaps)))
        for rung in rungs
    ]


def why_not(ladder: Ladder, target: Target) -> str:
    """Why the ladder supports no forecast at a target (updates, tokens per update, parameters);
    empty if it does."""
    if not ladder.rungs:
        return "no rung: " + ("; ".join(ladder.dropped) or "no pair of this arm and sync")
    settings = ladder.settings
    num_lengths, needed = len(set(settings[:, 0])), _needed(ladder)
    if num_lengths < FEWEST_LENGTHS:
        return f"{num_lengths} lengths, {FEWEST_LENGTHS} are needed to see how sync's loss falls"
    if len(settings) < needed:
        return f"{len(settings)} rungs, {needed} are needed for what varies among them"
    constant = left_out(settings)
    for name, column, value in zip(REGRESSORS, settings.T, target, strict=True):
        low, high = column.min(), column.max()
        if name in constant and value != low:
            return f"every rung has {name}={low:.0f}: nothing is known of {name}={value}"
        reach = (high / low) ** REACH
        if not low / reach <= value <= high * reach:
            return (
                f"{name}={value} is too far from the rungs' {low:.0f} to {high:.0f}: they carry "
                f"from {low / reach:.0f} to {high * reach:.0f}"
            )
    return ""


def _needed(ladder: Ladder) -> int:
    """One rung more than the larger law has parameters."""
    taxes = [TaxLaw(ladder.settings, has).num_parameters for has in FORMS.values()]
    return 1 + max(SyncLaw(ladder.settings).num_parameters, *taxes)


def text(answers: Sequence[Answer]) -> str:
    """A table of the arms, and below it what is behind it."""
    first = answers[0]
    at = name_of(first.target) if first.ladder.rungs else f"T={first.target[0]:,}"
    lines = [f"{first.ladder.optimizer} at {at}, {first.seeds} seeds", ""]
    lines += [markdown(HEADS, map(_cells, answers))]
    lines += ["", *(line for each in answers for line in _behind(each)), TRUST]
    return "\n".join(lines)


def _cells(answer: Answer) -> list[str]:
    lengths = [rung.updates for rung in answer.ladder.rungs]
    ladder = [str(len(lengths)), f"{min(lengths):,} to {max(lengths):,}" if lengths else ""]
    if answer.point is None:
        return [answer.ladder.arm, "not enough data", "", "", *ladder]
    form = answer.forms[0].form + (", extrapolated" if answer.is_beyond else "")
    return [answer.ladder.arm, gap_text(answer.point), tax_text(answer.point), form, *ladder]


def gap_text(point: Forecast) -> str:
    """`+0.0129 [+0.0070, +0.0190]`."""
    return f"{point.gap:+.4f}{ends_text(*point.gap_interval, '+.4f')}"


def tax_text(point: Forecast) -> str:
    """`1.060 [1.031, 1.094]`."""
    return f"{point.tax:.3f}{ends_text(*point.tax_interval, '.3f')}"


def _behind(answer: Answer) -> list[str]:
    arm = answer.ladder.arm
    if answer.point is None:
        return [f"{arm}: not enough data: {answer.why}"]
    exponents = [f"{n} in [{low:.2f}, {high:.2f}]" for n, (low, high) in answer.exponents.items()]
    lines = [f"{arm}: {', '.join(map(_form, answer.forms))}", f"{arm}: {', '.join(exponents)}"]
    if answer.ladder.shared:
        lines.append(f"{arm}: rungs of {answer.ladder.shared}")
    if answer.left_out:
        lines.append(f"{arm}: no term of {', '.join(answer.left_out)}, which does not vary")
    lines += [f"{arm}: without {reason}" for reason in answer.ladder.dropped]
    lines += [f"{arm}: {line}" for line in _outside(answer.ladder)]
    return lines + [f"{arm}: {_foretold(each)}" for each in answer.longest]


def _form(form: Form) -> str:
    exponents = ", ".join(f"{name} = {value:.2f}" for name, value in form.exponents.items())
    refuted = "" if form.counts else ", refuted"
    return f"{form.form} ({exponents}; off by {form.held_out:.4f} on rungs left out{refuted})"


def _outside(ladder: Ladder) -> Iterator[str]:
    """One line per reason for which rungs lie outside of the paper's regime."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for rung in ladder.rungs:
        by_reason[rung.regime].append(name_of(rung.settings))
    for reason, names in by_reason.items():
        if reason:
            many = f"{len(names)} of {len(ladder.rungs)} rungs"
            yield f"{many} are outside of the paper's regime, {reason}: {some(names)}"


def _foretold(foretold: Foretold) -> str:
    where = "inside" if foretold.is_inside else "OUTSIDE"
    forecast, seen = gap_text(foretold.point), foretold.rung.gaps.mean()
    name = name_of(foretold.rung.settings)
    return f"{name} from shorter rungs: {forecast}, measured {seen:+.4f}, {where}"


def plain(answer: Answer) -> dict[str, Any]:
    """For JSON: numbers, words, lists and mappings."""
    updates, batch, parameters = answer.target
    numbers: dict[str, Any] = {
        **{"optimizer": answer.ladder.optimizer, "arm": answer.ladder.arm, "updates": updates},
        **{"batch": batch, "parameters": parameters, "seeds": answer.seeds, "why": answer.why},
        "rungs": [list(rung.settings) for rung in answer.ladder.rungs],
        "regimes": [rung.regime for rung in answer.ladder.rungs],
    }
    if answer.point is None:
        return numbers
    forms = [
        {"form": form.form, "held_out": form.held_out, "counts": form.counts, **form.exponents}
        for form in answer.forms
    ]
    longest = [
        {
            "settings": each.rung.settings,
            "measured": float(each.rung.gaps.mean()),
            **_point(each.point),
        }
        for each in answer.longest
    ]
    return {
        **numbers,
        **_point(answer.point),
        **{"is_beyond": answer.is_beyond, "forms": forms, "left_out": list(answer.left_out)},
        "exponents": {key: list(ends) for key, ends in answer.exponents.items()},
        "longest_from_shorter": longest,
    }


def _point(point: Forecast) -> dict[str, Any]:
    gap_low, gap_high = point.gap_interval
    tax_low, tax_high = point.tax_interval
    return {
        **{"gap": point.gap, "gap_low": gap_low, "gap_high": gap_high},
        **{"tax": point.tax, "tax_low": tax_low, "tax_high": tax_high},
    }
