"""What sweeps will cost, before they run: trials, tokens, FLOPs, hours, storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.plan.bundles import occupied, unit
from sweeps.request.command_line import Request
from sweeps.request.expand import Trial
from sweeps.store.results import finished
from sweeps.store.throughput import Throughput

ASSUMED_FLOPS = {"GPU": 400e12, "core": 50e9}
"""FLOP/s that a trial sustains on one GPU (40 % of an H100's dense bf16) or one CPU core."""


def price(asked: Request, trials: Sequence[Trial], num_asked: int) -> Iterator[str]:
    """Lines of a plan: what is asked for, what is done, what the rest will cost.

    `trials`: each once; `num_asked`: how many trials the sweeps ask for, repeated ones included.
    """
    todo = [trial for trial in trials if finished(trial) is None]
    num_done = len(trials) - len(todo)
    yield f"trials    {num_asked} asked, {len(trials)} unique, {num_done} done, {len(todo)} to do"
    yield (
        f"tokens    {sum(t.plan.tokens for t in todo):.3g} to do, "
        f"{max(t.plan.tokens for t in trials):.3g} in the longest trial"
    )
    yield f"compute   {sum(t.plan.flops for t in todo):.3g} FLOPs to do"
    yield _time(asked, trials, todo, measured(asked.results, trials))
    yield _storage(trials, todo)
    yield from _warnings(trials)


def measured(store: Path, trials: Sequence[Trial]) -> Throughput:
    """Speeds of the finished trials; for shapes without one, those of others in the store."""
    found = Throughput()
    for trial in trials:
        if (result := finished(trial)) is not None:
            found.add(trial.config, result)
    found.add_from(store, (trial.config for trial in trials))
    return found


def _time(
    asked: Request, trials: Sequence[Trial], todo: Sequence[Trial], throughput: Throughput
) -> str:
    """GPU-hours or core-hours, all ranks together, and what the estimate rests on."""
    amounts = {trial.plan.trial_id: occupied(trial, asked.gpus_per_trial) for trial in trials}
    speeds = {trial.plan.trial_id: throughput.of(trial.config) for trial in trials}
    hours = {
        key: _hours(trial, amounts[key], speeds[key])
        for trial in trials
        for key in [trial.plan.trial_id]
    }
    spent = dict.fromkeys((unit(trial) for trial in trials), 0.0)
    for trial in todo:
        spent[unit(trial)] += hours[trial.plan.trial_id] * amounts[trial.plan.trial_id]
    total = " and ".join(f"{number:.3g} {name}-hours" for name, number in spent.items())
    assumed = [trial for trial in todo if speeds[trial.plan.trial_id] is None]
    rates = {name: f"{ASSUMED_FLOPS[name]:.3g} FLOP/s per {name}" for name in map(unit, assumed)}
    sources = [
        f"{len(todo) - len(assumed)} of {len(todo)} trials at the measured speed of finished ones "
        "of their shape"
    ]
    sources += [f"{len(assumed)} only assumed, at {', '.join(rates.values())}"] if assumed else []
    return (
        f"time      about {total} ({', '.join(sources)}), "
        f"longest trial {max(hours.values()):.3g} hours; evaluation comes on top"
    )


def _hours(trial: Trial, amount: float, speed: float | None) -> float:
    """Hours of training by the clock. `speed`: tokens per second, or None if it is unknown."""
    if speed is not None:
        return trial.plan.tokens / speed / 3600
    return trial.plan.flops / (ASSUMED_FLOPS[unit(trial)] * amount) / 3600


def _storage(trials: Sequence[Trial], todo: Sequence[Trial]) -> str:
    """The line on storage. A running trial has two checkpoints while it writes the second one."""
    running = max((2 * trial.plan.checkpoint_bytes for trial in todo), default=0)
    kept = sum(trial.plan.kept_bytes for trial in trials)
    while_it_runs = (
        f", and up to {_bytes(running)} for each that runs (two checkpoints, estimated from its "
        "parameters)"
    )
    return f"storage   about {_bytes(kept)} kept of all trials{while_it_runs if todo else ''}"


def _bytes(number: float) -> str:
    for name in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {name}"
        number /= 1000
    return f"{number:.3g} TB"


def _warnings(trials: Sequence[Trial]) -> Iterator[str]:
    unprepared = {t.config["data"]["path"] for t in trials if t.plan.data_hash is None}
    if unprepared:
        yield (
            f"data      {', '.join(sorted(unprepared))} is not prepared here: "
            "trials that ran on it elsewhere count as to do"
        )
    idle = sum(trial.plan.corrects_nothing for trial in trials)
    if idle:
        yield (
            f"warning   {idle} trials have a correction and no delay: "
            "they repeat the numbers of the trials without"
        )
