"""What sweeps will cost, before they run: trials, tokens, FLOPs, hours, storage; and which gap
their seeds detect."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.table.text import aligned
from sweeps.plan.devices import device_of, occupied, unit
from sweeps.plan.round import Round
from sweeps.plan.sizes import sizes, storage
from sweeps.plan.sweep_plan import SweepPlan
from sweeps.request.expand import Trial, unique
from trainer.base.cli import duration
from trainer.config.names import data_place

if TYPE_CHECKING:
    from analysis.statistics.gaps import Spread

NODE = 8
"""GPUs that a plan counts with where this machine has none."""


HALF_WIDTH = 0.01
"""Nats per token: a plan says how many seeds give this precision, as small as the gaps of robust
optimizers."""


@dataclass(frozen=True)
class Cost:
    """What trials take that have still to run."""

    unit: str
    total: float
    """Seconds of one unit (a core or a GPU), all ranks together."""
    longest: float
    """Seconds of the longest trial."""

    def clock(self, num_units: int) -> float:
        """Return the seconds by the clock on so many units, if they are never idle."""
        return max(self.total / num_units, self.longest)


class PricedSweeps:
    """The trials of a round with their prices."""

    def __init__(self, now: Round) -> None:
        self._request, self._sweeps, self._prices = now.request, now.sweeps, now.prices
        self.trials, self.todo = now.planned, now.todo
        self._amounts, self._seconds = dict[str, float](), dict[str, float]()
        for trial in self.todo:
            amount = occupied(trial, now.request.gpus_per_trial)
            self._amounts[trial.plan.trial_id] = amount
            self._seconds[trial.plan.trial_id] = self._prices.seconds(trial, amount)

    def costs(self, todo: Sequence[Trial]) -> list[Cost]:
        """Return what these trials take, on cores and on GPUs."""
        costs = []
        for name in dict.fromkeys(map(unit, todo)):
            ids = [trial.plan.trial_id for trial in todo if unit(trial) == name]
            total = sum(self._seconds[trial_id] * self._amounts[trial_id] for trial_id in ids)
            costs.append(Cost(name, total, max(self._seconds[trial_id] for trial_id in ids)))
        return costs

    def lines(self) -> Iterator[str]:
        """Yield the plan: what is asked for, what is done, what the rest will cost."""
        num_planned = sum(len(sweep.planned) for sweep in self._sweeps)
        num_done = len(self.trials) - len(self.todo)
        counts = f"{len(self.trials)} unique, {num_done} done, {len(self.todo)} to do"
        yield f"trials    {num_planned} asked, {counts}"
        yield from self._table()
        yield (
            f"tokens    {sum(t.plan.tokens for t in self.todo):.3g} to train on, all trials "
            f"together; {max(t.plan.tokens for t in self.trials):.3g} in the longest trial"
        )
        flops = sum(trial.plan.flops for trial in self.todo)
        yield f"compute   {flops:.3g} floating-point operations (FLOPs) to do"
        if self.todo:
            yield self._time()
        yield from sizes(self.trials, self._request.gpus_per_trial)
        yield storage(self.trials, self.todo)
        yield from _warnings(self.trials)

    def _table(self) -> Iterator[str]:
        """Yield one row per sweep; `shared` are trials that a row above has too."""
        rows, seen = [], set[str]()
        for sweep in self._sweeps:
            own = unique(sweep.planned)
            new = [trial for trial in own if trial.plan.trial_id not in seen]
            seen |= {trial.plan.trial_id for trial in new}
            rows.append(self._row(sweep.label, own, new))
        if len(rows) > 1:
            planned = [trial for sweep in self._sweeps for trial in unique(sweep.planned)]
            rows.append(self._row("together", planned, self.trials))
        places = ", ".join(dict.fromkeys(f"on {self._where(t)}" for t in self.trials))
        yield from aligned(
            [("sweep", "trials", "shared", "done", "to do", places), *rows], str.rjust
        )

    def _row(self, label: str, own: Sequence[Trial], new: Sequence[Trial]) -> tuple[str, ...]:
        todo = [trial for trial in new if trial.plan.trial_id in self._seconds]
        counts = len(own), len(own) - len(new), len(new) - len(todo), len(todo)
        clock = sum(cost.clock(self._num_units(cost.unit)) for cost in self.costs(todo))
        return (label, *(f"{count:,}" for count in counts), duration(clock) if todo else "-")

    def _num_units(self, name: str) -> int:
        """Return the GPUs that the plan counts with, or the cores that this process may use."""
        if name != "GPU":
            return len(os.sched_getaffinity(0))
        import torch

        return self._request.gpus or torch.cuda.device_count() or NODE

    def _where(self, trial: Trial) -> str:
        number = self._num_units(unit(trial))
        return f"{number} {unit(trial)}{'s' * (number > 1)}"

    def _time(self) -> str:
        """Return the line on what all of it takes, and what the estimate rests on."""
        costs = self.costs(self.todo)
        total = " and ".join(f"{duration(cost.total)} of one {cost.unit}" for cost in costs)
        longest = max(cost.longest for cost in costs)
        assumed = [t for t in self.todo if self._prices.measured_seconds(t) is None]
        sources = (
            f"{len(self.todo) - len(assumed)} of {len(self.todo)} trials by the time that finished "
            "ones of their shape took"
        )
        if assumed:
            rates = " and ".join(dict.fromkeys(device_of(t.config).name for t in assumed))
            counted = f"by counted FLOPs and bytes, at the rates assumed of {rates}"
            sources += f"; {len(assumed)} {counted}"
        return (
            f"time      {total}, longest trial {duration(longest)}, start and evaluation included "
            f"({sources})"
        )


def summary(now: Round) -> str:
    """Return the lines of a plan: what the sweeps cost, and which gap their seeds detect."""
    request, lines = now.request, [*PricedSweeps(now).lines()]
    for sweep in now.sweeps:
        told = [*_preferred(sweep), *sweep.estimate, *(sweep.remarks if request.dry_run else [])]
        if len(now.sweeps) == 1:
            lines += [*_precision(request.results, sweep), *told]
        else:
            lines += [f"{sweep.label}: {' '.join(line.split())}" for line in told]
    return "\n".join(lines)


def _preferred(sweep: SweepPlan) -> Iterator[str]:
    """Yield the line on what the sweep prefers, if it prefers anything."""
    if sweep.added:
        yield f"added     {' '.join(sweep.added)}{sweep.gain and f' ({sweep.gain})'}"
    if sweep.not_added:
        yield sweep.not_added


def _precision(results: Path, sweep: SweepPlan) -> Iterator[str]:
    """Yield the line of a plan on the gap that the sweep's seeds detect.

    In nats per token, by the spread of its pairs in the store; in units of the spread without any.
    """
    n = len(sweep.sweep.seeds)
    if n < 2:
        yield "power     1 seed gives no interval: no gap can be told from chance"
        return
    from analysis.statistics.intervals import detectable_gap, seeds_needed  # scipy is slow

    measured: Mapping[str, Spread] = {}
    if (results / "trials").is_dir():
        from analysis.statistics.gaps import spreads  # pandas is slow too

        measured = spreads(results, sweep.compared)
    in_sd = (
        f"power     {n} seeds show a mean gap of {detectable_gap(1, n):.3g} standard deviations "
        "(sd) of the paired gaps in 80 % of cases"
    )
    if not measured:
        yield (
            f"{in_sd}; none is measured here yet "
            f"(an interval of ± half a sd needs {seeds_needed(1, 0.5)} seeds)"
        )
        return
    optimizers = [
        f"{optimizer} {detectable_gap(spread.sd, n):.2g} (sd {spread.sd:.2g} of {spread.num_pairs} "
        f"pairs; {seeds_needed(spread.sd, HALF_WIDTH)} seeds for ±{HALF_WIDTH:g})"
        for optimizer, spread in measured.items()
    ]
    yield f"{in_sd}; by what is measured here, in nats per token: {', '.join(optimizers)}"


def _warnings(trials: Sequence[Trial]) -> Iterator[str]:
    unprepared = {data_place(t.config) for t in trials if t.plan.data_hash is None}
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
