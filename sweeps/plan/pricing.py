"""What sweeps will cost, before they run: trials, tokens, FLOPs, hours, storage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeps.plan.bundles import occupied, unit
from sweeps.plan.devices import device_of
from sweeps.plan.sizes import in_bytes, sizes
from sweeps.plan.step_time import counted_seconds
from sweeps.plan.sweep_plan import SweepPlan, all_planned
from sweeps.request.command_line import Request
from sweeps.request.expand import Trial, unique
from sweeps.store.results import finished
from sweeps.store.throughput import Throughput
from trainer.base.durations import duration

ASSUMED_START = 0.35
"""Seconds that a trial takes besides (bench/README.md): to build its parts, to write its record."""
NODE = 8
"""GPUs that a plan counts with where this machine has none."""


@dataclass(frozen=True)
class Prices:
    """The seconds that trials take, start and evaluation included."""

    throughput: Throughput

    @classmethod
    def measured(cls, store: Path, trials: Sequence[Trial]) -> Prices:
        """By the finished trials; for shapes without one, by others of the store."""
        found = Throughput()
        for trial in trials:
            if (result := finished(trial)) is not None:
                found.add(trial.config, result)
        found.add_from(store, (trial.config for trial in trials))
        return cls(found)

    def measured_seconds(self, trial: Trial) -> float | None:
        """By trials of its shape; None if none of them has finished."""
        pace = self.throughput.of(trial.config)
        if pace is None:
            return None
        training = trial.plan.tokens / pace.tokens_per_second
        return training + trial.plan.num_evaluations * pace.seconds_per_evaluation

    def seconds(self, trial: Trial, amount: float) -> float:
        """The same, or else by its counted work; it occupies this `amount` of units."""
        measured = self.measured_seconds(trial)
        if measured is not None:
            return measured
        of_process = amount / trial.plan.num_processes
        return ASSUMED_START + counted_seconds(trial.config, trial.plan) / of_process


@dataclass(frozen=True)
class Cost:
    """What trials take that have still to run."""

    unit: str
    total: float
    """Seconds of one unit (a core or a GPU), all ranks together."""
    longest: float
    """Seconds of the longest trial."""

    def clock(self, num_units: int) -> float:
        """Seconds by the clock on so many units, if they are never idle."""
        return max(self.total / num_units, self.longest)


class Priced:
    """The trials of a request with their prices."""

    def __init__(self, asked: Request, sweeps: Sequence[SweepPlan]) -> None:
        self._asked, self._sweeps = asked, sweeps
        self.trials = all_planned(sweeps)
        self._todo = {t.plan.trial_id for t in self.trials if finished(t) is None}
        self._prices = Prices.measured(asked.results, self.trials)
        self._amounts = {t.plan.trial_id: occupied(t, asked.gpus_per_trial) for t in self.trials}
        self._seconds = {
            trial.plan.trial_id: self._prices.seconds(trial, self._amounts[trial.plan.trial_id])
            for trial in self.todo
        }

    @property
    def todo(self) -> list[Trial]:
        """Those that have to run."""
        return [trial for trial in self.trials if trial.plan.trial_id in self._todo]

    @property
    def costs(self) -> list[Cost]:
        """What these take, on cores and on GPUs."""
        return [*self._costs(self.todo)]

    def lines(self) -> Iterator[str]:
        """The plan: what is asked for, what is done, what the rest will cost."""
        todo = self.todo
        num_asked = sum(len(sweep.planned) for sweep in self._sweeps)
        num_done = len(self.trials) - len(todo)
        counts = f"{len(self.trials)} unique, {num_done} done, {len(todo)} to do"
        yield f"trials    {num_asked} asked, {counts}"
        yield from self._table()
        yield (
            f"tokens    {sum(t.plan.tokens for t in todo):.3g} to do, "
            f"{max(t.plan.tokens for t in self.trials):.3g} in the longest trial"
        )
        yield f"compute   {sum(t.plan.flops for t in todo):.3g} FLOPs to do"
        yield from self._time(todo)
        yield from sizes(self.trials)
        yield _storage(self.trials, todo)
        yield from _warnings(self.trials)

    def _table(self) -> Iterator[str]:
        """One row per sweep; `shared` are trials that a row above has too."""
        rows, seen = [], set[str]()
        for sweep in self._sweeps:
            own = unique(sweep.planned)
            new = [trial for trial in own if trial.plan.trial_id not in seen]
            seen |= {trial.plan.trial_id for trial in new}
            rows.append(self._row(sweep.label, own, new))
        if len(rows) > 1:
            asked = [trial for sweep in self._sweeps for trial in unique(sweep.planned)]
            rows.append(self._row("together", asked, self.trials))
        places = ", ".join(dict.fromkeys(f"on {self._where(t)}" for t in self.trials))
        yield from _aligned([("sweep", "trials", "shared", "done", "to do", places), *rows])

    def _row(self, label: str, own: Sequence[Trial], new: Sequence[Trial]) -> tuple[str, ...]:
        todo = [trial for trial in new if trial.plan.trial_id in self._todo]
        counts = len(own), len(own) - len(new), len(new) - len(todo), len(todo)
        clock = sum(cost.clock(self._num_units(cost.unit)) for cost in self._costs(todo))
        return (label, *(f"{count:,}" for count in counts), duration(clock) if todo else "-")

    def _costs(self, todo: Sequence[Trial]) -> Iterator[Cost]:
        """One per unit."""
        for name in dict.fromkeys(map(unit, todo)):
            mine = [t.plan.trial_id for t in todo if unit(t) == name]
            total = sum(self._seconds[key] * self._amounts[key] for key in mine)
            yield Cost(name, total, max(self._seconds[key] for key in mine))

    def _num_units(self, name: str) -> int:
        return num_gpus(self._asked) if name == "GPU" else num_cores()

    def _where(self, trial: Trial) -> str:
        number = self._num_units(unit(trial))
        return f"{number} {unit(trial)}{'s' * (number > 1)}"

    def _time(self, todo: Sequence[Trial]) -> Iterator[str]:
        """What all of it takes, and what the estimate rests on."""
        costs = self.costs
        total = " and ".join(f"{duration(cost.total)} of one {cost.unit}" for cost in costs)
        longest = max((cost.longest for cost in costs), default=0.0)
        assumed = [t for t in todo if self._prices.measured_seconds(t) is None]
        devices = dict.fromkeys(device_of(trial.config).name for trial in assumed)
        sources = [
            f"{len(todo) - len(assumed)} of {len(todo)} trials by the time that finished ones of "
            "their shape took"
        ]
        rates = " and ".join(devices)
        counted = f"by counted FLOPs and bytes, at the rates assumed of {rates}"
        sources += [f"{len(assumed)} {counted}"] * bool(assumed)
        if todo:
            yield (
                f"time      {total}, longest trial {duration(longest)}, start and evaluation "
                f"included ({'; '.join(sources)})"
            )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def num_gpus(asked: Request) -> int:
    """The GPUs that a plan counts with: those asked for, else of this machine, else of a node."""
    import torch

    return asked.gpus or torch.cuda.device_count() or NODE


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells])


def _storage(trials: Sequence[Trial], todo: Sequence[Trial]) -> str:
    """The line on storage. A running trial has two checkpoints while it writes the second one."""
    running = max((2 * trial.plan.checkpoint_bytes for trial in todo), default=0)
    kept = sum(trial.plan.kept_bytes for trial in trials)
    while_it_runs = (
        f", and up to {in_bytes(running)} for each that runs (two checkpoints, estimated from its "
        "parameters)"
    )
    return f"storage   about {in_bytes(kept)} kept of all trials{while_it_runs if todo else ''}"


def _warnings(trials: Sequence[Trial]) -> Iterator[str]:
    unprepared = {t.config["data"]["path"] for t in trials if t.plan.data_hash is None}
    if unprepared:
        yield (
            f"data      {', '.join(sorted(unprepared))} is not prepared here: trials that ran on "
            "it elsewhere count as to do, and evaluation is not counted"
        )
    idle = sum(trial.plan.corrects_nothing for trial in trials)
    if idle:
        yield (
            f"warning   {idle} trials have a correction and no delay: "
            "they repeat the numbers of the trials without"
        )
