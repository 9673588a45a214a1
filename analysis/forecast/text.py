"""Answers as lines for people, and as plain data for programs."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.forecast.answer import Answer, Foretold
from analysis.forecast.forecast import Forecast, Form
from analysis.forecast.ladder import Ladder, name_of
from analysis.statistics.intervals import ends_text
from analysis.table.text import markdown
from trainer.base.errors import some

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
    lines = [f"{arm}: {', '.join(map(_form, answer.forms))}", f"{arm}: {_exponents(answer)}"]
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


def _exponents(answer: Answer) -> str:
    each = (f"{name} in [{low:.2f}, {high:.2f}]" for name, (low, high) in answer.exponents.items())
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
