"""Answers as lines for people, and as plain data for programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.forecast.answer import Answer, Foretold
from analysis.forecast.forecast import Forecast, Form
from analysis.forecast.ladder import Ladder, name_of
from analysis.table.text import markdown, some

HEADS = ("arm", "gap [95 %]", "token tax [95 %]", "form", "rungs", "T of the rungs")
TRUST = (
    "95 % intervals of the mean gap of so many seeds; they reach around a law with a floor and one "
    "without, and assume that one of them holds beyond the rungs"
)


def text(answers: Sequence[Answer]) -> str:
    """A table of the arms, and below it what is behind it."""
    first = answers[0]
    at = name_of(first.target) if first.ladder.rungs else f"T={first.target[0]:,}"
    lines = [f"{first.ladder.optimizer} at {at}, {first.seeds} seeds", ""]
    lines += [markdown(HEADS, map(_cells, answers))]
    lines += ["", *(line for each in answers for line in _behind(each)), TRUST]
    return "\n".join(lines)


def _cells(of: Answer) -> list[str]:
    lengths = [rung.updates for rung in of.ladder.rungs]
    ladder = [str(len(lengths)), f"{min(lengths):,} to {max(lengths):,}" if lengths else ""]
    if of.point is None:
        return [of.ladder.arm, "not enough data", "", "", *ladder]
    form = of.forms[0].form + (", extrapolated" if of.is_beyond else "")
    return [
        of.ladder.arm,
        gap_text(of.point),
        tax_text(of.point),
        form,
        *ladder,
    ]


def gap_text(point: Forecast) -> str:
    """`+0.0129 [+0.0070, +0.0190]`."""
    low, high = point.gap_interval
    return f"{point.gap:+.4f} [{low:+.4f}, {high:+.4f}]"


def tax_text(point: Forecast) -> str:
    """`1.060 [1.031, 1.094]`."""
    low, high = point.tax_interval
    return f"{point.tax:.3f} [{low:.3f}, {high:.3f}]"


def _behind(of: Answer) -> list[str]:
    arm = of.ladder.arm
    if of.point is None:
        return [f"{arm}: not enough data: {of.why}"]
    lines = [f"{arm}: {', '.join(map(_form, of.forms))}", f"{arm}: {_exponents(of)}"]
    if of.ladder.shared:
        lines.append(f"{arm}: rungs of {of.ladder.shared}")
    if of.left_out:
        lines.append(f"{arm}: no term of {', '.join(of.left_out)}, which does not vary")
    lines += [f"{arm}: without {reason}" for reason in of.ladder.dropped]
    lines += [f"{arm}: {line}" for line in _outside(of.ladder)]
    return lines + [f"{arm}: {_foretold(each)}" for each in of.longest]


def _form(form: Form) -> str:
    exponents = ", ".join(f"{name} = {value:.2f}" for name, value in form.exponents.items())
    refuted = "" if form.counts else ", refuted"
    return f"{form.form} ({exponents}; off by {form.held_out:.4f} on rungs left out{refuted})"


def _exponents(of: Answer) -> str:
    each = (f"{name} in [{low:.2f}, {high:.2f}]" for name, (low, high) in of.exponents.items())
    return ", ".join(each)


def _outside(ladder: Ladder) -> Iterator[str]:
    """One line per reason for which rungs lie outside of the paper's regime."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for rung in ladder.rungs:
        by_reason[rung.regime].append(name_of(rung.settings))
    for reason, names in by_reason.items():
        if reason:
            many = f"{len(names)} of {len(ladder.rungs)} rungs"
            yield f"{many} are outside of the paper's regime, {reason}: {some(names)}"


def _foretold(of: Foretold) -> str:
    where = "inside" if of.is_inside else "OUTSIDE"
    said, seen = gap_text(of.point), of.rung.gaps.mean()
    return f"{name_of(of.rung.settings)} from shorter rungs: {said}, measured {seen:+.4f}, {where}"


def plain(of: Answer) -> dict[str, Any]:
    """For JSON: numbers, words, lists and mappings."""
    updates, batch, parameters = of.target
    found: dict[str, Any] = {
        **{"optimizer": of.ladder.optimizer, "arm": of.ladder.arm, "updates": updates},
        **{"batch": batch, "parameters": parameters, "seeds": of.seeds, "why": of.why},
        "rungs": [list(rung.settings) for rung in of.ladder.rungs],
        "regimes": [rung.regime for rung in of.ladder.rungs],
    }
    if of.point is None:
        return found
    forms = [
        {"form": form.form, "held_out": form.held_out, "counts": form.counts, **form.exponents}
        for form in of.forms
    ]
    longest = [
        {
            "settings": each.rung.settings,
            "measured": float(each.rung.gaps.mean()),
            **_point(each.point),
        }
        for each in of.longest
    ]
    return {
        **found,
        **_point(of.point),
        **{"is_beyond": of.is_beyond, "forms": forms, "left_out": list(of.left_out)},
        "exponents": {key: list(ends) for key, ends in of.exponents.items()},
        "longest_from_shorter": longest,
    }


def _point(point: Forecast) -> dict[str, Any]:
    gap_low, gap_high = point.gap_interval
    tax_low, tax_high = point.tax_interval
    return {
        **{"gap": point.gap, "gap_low": gap_low, "gap_high": gap_high},
        **{"tax": point.tax, "tax_low": tax_low, "tax_high": tax_high},
    }
