"""May I make my pipeline asynchronous? From a store of trials and a simulation of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.advice.evidence import Evidence, Gap, evidence
from analysis.advice.race import SameTime, after, same_time
from analysis.advice.speed import Costs, equal_stages, fastest, speed_ups
from analysis.advice.text import text
from analysis.advice.verdict import GO, UNDECIDED, Verdict, recommended, sound, verdict, without_gap
from analysis.statistics.gaps import gaps
from trainer.base.errors import BadInput

__all__ = ["Advice", "Costs", "advise"]

MOST = 16_384
"""Stages times microbatches: simulating more takes minutes and changes nothing."""


@dataclass(frozen=True)
class Advice:
    """A verdict with its evidence; as a string it is text for people."""

    optimizer: str
    stages: int
    microbatches: int
    costs: Costs
    speed_ups: dict[str, float]
    """For each synchronous pipeline, how many batches 2BW makes in the time of one."""
    evidence: Evidence | None
    """None if the store has no pair of the delay."""
    gap: Gap | None
    """The gap and the token tax of the recommended arm; None if no arm can be recommended."""
    same_time: dict[str, SameTime]
    """The delay, at each seed with the λ that is best on the others, against each synchronous
    pipeline; empty without an arm."""
    verdicts: dict[str, Verdict]
    """The verdict against each synchronous pipeline; empty without an arm."""
    verdict: Verdict
    """The verdict against the fastest of them."""

    def __str__(self) -> str:
        return text(self)


def advise(
    df: pd.DataFrame,
    *,
    optimizer: str,
    stages: int,
    microbatches: int,
    updates: int | None = None,
    costs: Costs | None = None,
) -> Advice:
    """The advice for one optimizer and pipeline, from `load`'s table.

    `updates`: how long sync trains; by default the longest training for which the store gives a
    verdict, else the longest. `costs`: times of a microbatch on each stage; by default
    `speed.equal_stages`. The rule is `verdict.verdict`. Raises BadInput for an optimizer or a
    length without trials, and for a pipeline that cannot be; warns and raises as `gaps` does.
    """
    costs = costs or equal_stages(stages)
    speeds = _speed_ups(stages, microbatches, costs)
    trials = _of(df, optimizer)
    found = _long(evidence(trials, gaps(trials)), updates)
    answers = [_answer(one, speeds) for one in found] or [_answer(None, speeds)]
    chosen = next((one for one in answers if one["verdict"].word != UNDECIDED), answers[0])
    return Advice(optimizer, stages, microbatches, costs, speeds, **chosen)


def _answer(found: Evidence | None, speeds: Mapping[str, float]) -> dict[str, Any]:
    """The fields of an advice that depend on the length of training."""
    gap = recommended(found) if found is not None else None
    if found is None or gap is None:
        nothing: dict[str, Any] = {"same_time": {}, "verdicts": {}}
        return {"evidence": found, "gap": gap, **nothing, "verdict": without_gap(found)}
    arms = [one.arm for one in sound(found)]
    equal = after(found, arms, found.updates, found.updates)
    at = {name: same_time(found, arms, speed_up) for name, speed_up in speeds.items()}
    verdicts = {
        name: verdict(equal, at[name], speed_up, found.updates) for name, speed_up in speeds.items()
    }
    if verdicts[fastest(speeds)].word == GO:  # what beats the fastest beats them all
        verdicts = dict.fromkeys(speeds, verdicts[fastest(speeds)])
    return {
        "evidence": found,
        "gap": gap,
        "same_time": at,
        "verdicts": verdicts,
        "verdict": verdicts[fastest(speeds)],
    }


def _speed_ups(stages: int, microbatches: int, costs: Costs) -> dict[str, float]:
    for key, value in (("stages", stages), ("microbatches", microbatches)):
        if value < 1:
            raise BadInput(key, value, "must be 1 or more")
    if microbatches < stages - 1:
        allowed = f"2BW needs at least stages - 1 = {stages - 1} ({stages} or more recommended)"
        raise BadInput("microbatches", microbatches, allowed)
    if stages * microbatches > MOST:
        raise BadInput("microbatches", microbatches, f"must be {MOST // stages} at most")
    return speed_ups(costs, microbatches)


def _of(df: pd.DataFrame, optimizer: str) -> pd.DataFrame:
    known = sorted({*df["optimizer"].dropna()})
    if optimizer not in known:
        names = ", ".join(known) or "none: python -m sweeps runs some"
        allowed = f"must be one that there are trials of ({names})"
        raise BadInput("optimizer", optimizer, allowed)
    return df[df["optimizer"] == optimizer]


def _long(found: list[Evidence], updates: int | None) -> list[Evidence]:
    lengths = [one.updates for one in found]
    if updates is None or not found:
        return found
    if updates not in lengths:
        known = ", ".join(map(str, lengths))
        raise BadInput("updates", updates, f"must be a length that there are gaps at ({known})")
    return [one for one in found if one.updates == updates]
