"""Advice: a verdict on one optimizer and pipeline, with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.advice.evidence import Evidence, Gap, evidence
from analysis.advice.race import SameTime, after, same_time
from analysis.advice.remedy import command
from analysis.advice.speed import (
    TWO_BUFFERED,
    Costs,
    equal_stages,
    fastest,
    flushed_speeds,
    speed,
)
from analysis.advice.text import text
from analysis.advice.verdict import GO, UNDECIDED, Verdict, recommended, sound, verdict, without_gap
from analysis.statistics.gaps import gaps
from analysis.table.records import Record
from trainer.base.errors import BadInput

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
    activations: dict[str, float]
    """For each of them, of how many microbatches a rank keeps activations."""
    most_activations: float
    """Of how many microbatches a rank may keep them."""
    rival: str
    """The fastest synchronous pipeline that keeps no more."""
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
    """The verdict against the rival."""
    command: str
    """What runs the trials that would decide it; empty if it is decided, or if no sweep of the
    store ran such trials."""

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
    activations: float | None = None,
    records: Sequence[Record] = (),
) -> Advice:
    """The advice for one optimizer and pipeline, from `load`'s table.

    `updates`: how long sync trains; by default the longest training for which the store gives a
    verdict, else the longest. `costs`: times of a microbatch on each stage; by default
    `speed.equal_stages`. `activations`: of how many microbatches a rank may keep activations in
    the synchronous pipeline; by default as many as with 2BW. `records`: those of the store, from
    which the advice learns how to run more of its trials. The rule is `verdict.verdict`. Raises
    BadInput for an optimizer or a length without trials, and for a pipeline that cannot be; warns
    and raises as `gaps` does.
    """
    costs = costs or equal_stages(stages)
    _check(stages, microbatches)
    own, others = speed(TWO_BUFFERED, costs, microbatches), flushed_speeds(costs, microbatches)
    most = own.activations if activations is None else activations
    rival = fastest(others, most)
    speeds = {name: at.batch_time / own.batch_time for name, at in others.items()}
    trials = _of(df, optimizer)
    found = _long(evidence(trials, gaps(trials)), updates)
    answers = [_answer(one, speeds, rival) for one in found] or [_answer(None, speeds, rival)]
    chosen = next((one for one in answers if one["verdict"].word != UNDECIDED), answers[0])
    return Advice(
        optimizer,
        stages,
        microbatches,
        costs,
        speeds,
        {name: at.activations for name, at in others.items()},
        most,
        rival,
        **chosen,
        command=command(optimizer, chosen["evidence"], chosen["gap"], chosen["verdict"], records),
    )


def _answer(found: Evidence | None, speeds: Mapping[str, float], rival: str) -> dict[str, Any]:
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
    if verdicts[rival].word == GO:  # what beats the rival beats all that are slower
        slower = [name for name, speed_up in speeds.items() if speed_up >= speeds[rival]]
        verdicts |= dict.fromkeys(slower, verdicts[rival])
    return {
        "evidence": found,
        "gap": gap,
        "same_time": at,
        "verdicts": verdicts,
        "verdict": verdicts[rival],
    }


def _check(stages: int, microbatches: int) -> None:
    """Raises BadInput for a pipeline that 2BW cannot have, or that takes long to simulate."""
    for key, value in (("stages", stages), ("microbatches", microbatches)):
        if value < 1:
            raise BadInput(key, value, "must be 1 or more")
    if microbatches < stages - 1:
        allowed = f"2BW needs at least stages - 1 = {stages - 1} ({stages} or more recommended)"
        raise BadInput("microbatches", microbatches, allowed)
    if stages * microbatches > MOST:
        raise BadInput("microbatches", microbatches, f"must be {MOST // stages} at most")


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
