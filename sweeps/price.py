"""What a sweep will cost, before it runs: trials, tokens, FLOPs, hours."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from sweeps.expand import Trial
from sweeps.store import finished

ASSUMED_FLOPS = {"cuda": 400e12, "cpu": 50e9}
"""FLOP/s that a trial sustains on one GPU (40 % of an H100's dense bf16) or one CPU core."""


def price(trials: Sequence[Trial], num_asked: int) -> str:
    """Lines for people: what is asked, what is done, what the rest will take."""
    done = [trial for trial in trials if finished(trial)]
    todo = [trial for trial in trials if not finished(trial)]
    device = trials[0].config["device"].split(":")[0]
    speeds = [speed for trial in done if (speed := _measured(trial))]
    speed = median(speeds) if speeds else ASSUMED_FLOPS[device]
    source = f"measured on {len(speeds)} of its trials" if speeds else "assumed, not measured"
    flops = sum(trial.plan.flops for trial in todo)
    unprepared = {t.config["data"]["path"] for t in trials if t.plan.data_hash is None}
    unit = "GPU-hours" if device == "cuda" else "core-hours"
    lines = [
        f"trials    {num_asked} asked, {len(trials)} unique, {len(done)} done, {len(todo)} to do",
        f"tokens    {sum(t.plan.tokens for t in todo):.3g} to do, "
        f"{max(t.plan.tokens for t in trials):.3g} in the longest trial",
        f"compute   {flops:.3g} FLOPs to do",
        f"time      about {flops / speed / 3600:.3g} {unit} at {speed:.3g} FLOP/s ({source}), "
        f"longest trial {max(t.plan.flops for t in trials) / speed / 3600:.3g} hours",
    ]
    if unprepared:
        lines.append(
            f"data      {', '.join(sorted(unprepared))} is not prepared here: "
            "trials that ran on it elsewhere count as to do"
        )
    idle = sum(trial.plan.corrects_nothing for trial in trials)
    if idle:
        lines.append(
            f"warning   {idle} trials have a correction and no delay: "
            "they repeat the numbers of the trials without"
        )
    return "\n".join(lines)


def _measured(trial: Trial) -> float | None:
    """FLOP/s of a finished trial; None if it was too short to tell."""
    result = finished(trial)
    if not result or not result["tokens"]:
        return None
    per_token = trial.plan.flops / trial.plan.tokens
    return float(result["tokens_per_second"]) * per_token
