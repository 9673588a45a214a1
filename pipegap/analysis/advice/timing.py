"""How much faster 2BW is than each rival, and the times of operations from traces."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, inf, isfinite, log, nan
from pathlib import Path
from statistics import fmean, mean, median, variance
from typing import Any, NamedTuple

from pipegap.analysis.advice.speed import (
    CHUNKS,
    NEARLY,
    SLOWEST,
    TWO_BUFFERED,
    Costs,
    Speed,
    TwoSteps,
    equal_stages,
    flushed_speeds,
    simulated_beyond,
    slowest,
    speed,
)
from pipegap.analysis.statistics.pairs import CONFIDENCE
from pipegap.trainer.base.errors import BadInput

# How much faster 2BW is than each rival, simulated or measured; what a step's time is made of,
# and what stands in the way of a gain.

LITTLE = 0.05
"""The share of a step below which 2BW can win little: the token tax of AdamW with Error Feedback
in the README takes as much."""
SHORTEST, LONGEST = 1e-9, 1e15
"""The limits of the times of a step or a stage, in any unit: quotients of times beyond them may be
no numbers."""
LEAST = 0.0005
"""Smaller shares are left out of the text: they would round to nothing."""
HOST = 0.8
"""The share of a step that a rank's kernels must fill, else its host is too slow: without kernels
for the other fifth it loses as much as to the bubble of m = 4 (p − 1) microbatches."""
APART = 0.5
"""How far stages must overlap on the way from one at a time to what SLOWEST allows. Half way a step
loses (m − 1) (p − 1) / (2 m p) to what keeps them apart, more than to its bubble, all that 2BW
wins, if (m − 1) (m − 2) > 2 p."""


class Ratio(NamedTuple):
    """How many batches 2BW makes in the time of one of a rival."""

    value: float
    low: float
    """The lower end of the 95 % interval: in the same time 2BW makes at least so many times the
    updates. 0 where 2BW's own time is only known to be no shorter than simulated."""
    high: float
    """Infinite where 2BW's time was measured, and the rival's is no shorter than simulated."""

    @property
    def ends(self) -> tuple[float, float]:
        """`low` and `high`, and `value` in the place of an end that is not known."""
        return self.low or self.value, self.high if isfinite(self.high) else self.value

    @property
    def text(self) -> str:
        """`1.438`, `≤ 1.438` or `≥ 1.438`."""
        if not self.low:
            return f"≤ {self.high:.3f}"
        return f"{'' if isfinite(self.high) else '≥ '}{self.value:.3f}"


def ratio(rival_times: Sequence[float], own_times: Sequence[float]) -> Ratio:
    """The ratio of two mean times, with Welch's interval of the difference of their logarithms.

    A single time is taken as exact.
    """
    rival_mean, own_mean = (fmean(map(log, times)) for times in (rival_times, own_times))
    return _with_interval(rival_mean - own_mean, [(rival_times, 1.0), (own_times, -1.0)])


def _with_interval(value: float, samples: Iterable[tuple[Sequence[float], float]]) -> Ratio:
    """The ratio of the logarithm `value`, which has a derivative by the mean logarithm of the times
    of each of the `samples`."""
    # Variance of the mean, and degrees of freedom, of each sample that has several times.
    parts = [
        (derivative**2 * variance(map(log, times)) / len(times), len(times) - 1)
        for times, derivative in samples
        if len(times) > 1
    ]
    total = sum(part for part, _ in parts)
    if not total:
        return Ratio(*[exp(value)] * 3)
    from scipy import stats  # slow to load

    freedom = total**2 / sum(part**2 / n for part, n in parts)  # Welch and Satterthwaite
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * total**0.5
    return Ratio(exp(value), exp(value - half), exp(value + half))


@dataclass(frozen=True)
class Timing:
    """The times of a batch of 2BW and of its rivals; all in the unit of the costs."""

    costs: Costs
    num_microbatches: int
    two_buffered: Speed
    """2BW, simulated, with what a step was measured to take beyond that: it is no faster."""
    rivals: Mapping[str, Speed]
    measured: Mapping[str, Sequence[float]]
    """Times of a step of any rival."""
    own_times: Sequence[float]
    """Those of 2BW, beside costs `with_step_time`; none if not measured."""
    most: float
    """Of how many microbatches a rank may keep activations."""
    two_steps: Mapping[str, TwoSteps] = field(default_factory=dict)
    """Times of a step at two numbers of microbatches, of which one is `num_microbatches`."""

    def is_measured(self, name: str) -> bool:
        """Whether a step of this rival was measured."""
        return name in self.measured or name == self.costs.step_of

    @property
    def least_time(self) -> float:
        """The time than which 2BW is no faster: what two steps cost beyond their work may all be
        bubble, whatever the simulation says of it."""
        if steps := self.two_steps.get(self.costs.step_of):
            return self.num_microbatches * steps.work + self.costs.update
        return self.two_buffered.batch_time

    @property
    def ratios(self) -> dict[str, Ratio]:
        """For each rival."""
        times = self.own_times or [self.two_buffered.batch_time]
        # A measured time has what no simulation knows: against a simulated one it is a bound.
        bound = {"high": inf} if self.own_times else {"low": 0.0}
        # `own_times` come with costs of a measured step: that pipeline is as slow as measured too.
        tied = {*self.measured, self.costs.step_of or SLOWEST}
        bounded = {*self.rivals} - tied if self.own_times else self.measured
        ratios = {
            name: ratio(self.measured.get(name, [at.batch_time]), times)._replace(
                **bound if name in bounded else {}
            )
            for name, at in self.rivals.items()
        }
        if not self.own_times and (steps := self.two_steps.get(self.costs.step_of)):
            measured = (name for name in ratios if self.is_measured(name))
            ratios |= {
                name: ratios[name]._replace(high=self._without_bubble(name, steps).high)
                for name in measured
            }
        return ratios

    def _without_bubble(self, name: str, steps: TwoSteps) -> Ratio:
        """The ratio of a measured rival's time to `least_time`, with the interval of the times."""
        rival_times = self.measured.get(name) or steps.times[self.num_microbatches]
        (least, short), (most, long) = steps.means.items()
        share = self.num_microbatches * steps.work / self.least_time  # an update is exact
        derivatives = {least: share * short / (long - short), most: -share * long / (long - short)}
        samples = [(steps.times[num], derivative) for num, derivative in derivatives.items()]
        if name == self.costs.step_of:  # one sample on both sides
            samples = [
                (steps.times[num], derivative + (num == self.num_microbatches))
                for num, derivative in derivatives.items()
            ]
        else:
            samples.append((rival_times, 1.0))
        return _with_interval(fmean(map(log, rival_times)) - log(self.least_time), samples)

    @property
    def faster(self) -> list[str]:
        """Those measured to be faster than 2BW, or than it could be; the fastest first."""
        rivals = {*self.measured, SLOWEST} if self.own_times else self.measured
        faster = [name for name in rivals if self.ratios[name].high < 1 - NEARLY]
        return sorted(faster, key=lambda name: self.rivals[name].batch_time)

    @property
    def limits(self) -> Iterator[str]:
        """What stands in the way of a gain whatever the losses are; said first."""
        for name in self.faster:
            rival_time, time = self.rivals[name].batch_time, self.least_time
            whose = f"2BW takes {time:.4g} even without a bubble"
            if self.own_times:
                whose = f"2BW takes {fmean(self.own_times):.4g}"
            yield f"stay with {name}: its step takes {rival_time:.4g}, {whose}"
        overlap, allowed = self.costs.overlap, self._overlap
        if overlap - 1 < APART * (allowed - 1):  # False where it is not known
            yield (
                f"stages overlap {overlap:.1f} times, where {SLOWEST} lets them overlap "
                f"{allowed:.1f} times: this is the limit, not the bubble, and no delay lifts it"
            )
        for rank, share in enumerate(self.costs.busy):
            if share < HOST:
                idle = f"no kernel runs for {1 - share:.0%} of a step"
                yield f"rank {rank}: its host is the limit: {idle}"

    @property
    def _overlap(self) -> float:
        """How many stages SLOWEST lets compute at a time, on the mean."""
        alone = replace(self.costs, communication=0.0, overhead=0.0, update=0.0)
        return self.num_microbatches * sum(alone.work) / slowest(alone, self.num_microbatches)

    @property
    def shares(self) -> Iterator[str]:
        """What two steps cost beyond their work, what a step of SLOWEST is made of on the slowest
        stage, and what of it 2BW can win."""
        yield from (self._beyond(name, steps) for name, steps in self.two_steps.items())
        if self.costs == equal_stages(len(self.costs.forward)):
            return
        step = slowest(self.costs, self.num_microbatches)
        still = replace(self.costs, communication=0.0, overhead=0.0)
        compute = self.num_microbatches * max(still.work)
        # Simulated without messages and host: what is longer than compute and update is bubble.
        quick = slowest(still, self.num_microbatches)
        messages = step - quick - self.costs.overhead
        parts = {
            "compute": compute,
            "update": self.costs.update,
            "bubble": quick - compute - self.costs.update,
            "messages": messages,
            "the rest (host)": self.costs.overhead,
        }
        shares_text = ", ".join(
            f"{part / step:.1%} {name}" for name, part in parts.items() if part > LEAST * step
        )
        whose = "a step" if self.costs.step_of in ("", SLOWEST) else "a simulated step"
        yield f"{whose} of {SLOWEST} is {shares_text}"
        gains = {name: at.value if self.own_times else at.high for name, at in self.ratios.items()}
        wins = {name: 1 - 1 / gain for name, gain in gains.items() if gain > 1}
        least = {name: "" if isfinite(at.high) else "at least " for name, at in self.ratios.items()}
        words = ", ".join(f"{least[k]}{share:.1%} of a step of {k}" for k, share in wins.items())
        how = "wins, as measured," if self.own_times else "can win at most"
        yield f"2BW {how} {words or 'nothing'}"
        if wins and max(wins.values()) < LITTLE:
            yield "  that is little: the bubble is not the bottleneck of this pipeline"
        elif little := [name for name, share in wins.items() if share < LITTLE]:
            yield f"  against {', '.join(little)} that is little"

    def _beyond(self, name: str, steps: TwoSteps) -> str:
        """What a step costs beyond its work, and which part of that may be bubble."""
        work, beyond = steps.work, max(0.0, steps.beyond)
        text = f"a step of {name} costs {beyond / work:.2f} microbatches beyond its work"
        base = self.costs if self.costs.are_known else equal_stages(len(self.costs.forward))
        update = self.costs.update * max(base.work) / work
        base = replace(base, update=update, overhead=0.0)
        simulated = simulated_beyond(name, base, [*steps.times], self.rivals[name].num_chunks)
        if simulated is None:
            return text
        step = steps.means[self.num_microbatches]
        hidden = [
            max(0.0, min(part * work, beyond) - self.costs.update) / step
            for part in (simulated, beyond / work)
        ]
        text += f", {simulated:.2f} as simulated: a schedule without a bubble hides {hidden[0]:.1%}"
        more = f", and {hidden[1]:.1%} if all the rest is bubble too"
        return text + (f" of it{more}" if hidden[1] - hidden[0] > LEAST else " of it at most")


def timing(
    costs: Costs,
    num_microbatches: int,
    activations: float | None = None,
    chunks: int = CHUNKS,
    measured: Mapping[str, Sequence[float]] | None = None,
    own_times: Sequence[float] = (),
    two_steps: Mapping[str, TwoSteps] | None = None,
) -> Timing:
    """Simulate 2BW and its rivals; a measured time replaces that of a rival of the same name, and
    what other measured ones keep is not known. Of `two_steps` those with `num_microbatches` count
    as measured. Raises BadInput for a time that is none."""
    two_steps = two_steps or {}
    # The costs have the step of SLOWEST, with or without a second one.
    of_two_steps = {k: at.times[num_microbatches] for k, at in two_steps.items() if k != SLOWEST}
    measured = {**(measured or {}), **of_two_steps}
    given_times = {"time_2bw": own_times, "costs": costs.work}
    for key, of_key in {**measured, **given_times}.items():
        if not all(SHORTEST <= time <= LONGEST for time in of_key):
            allowed = f"must be times from {SHORTEST:g} to {LONGEST:g}"
            raise BadInput(key, ",".join(f"{time:g}" for time in of_key), allowed)
    for name, steps in two_steps.items():
        if not steps.work > 0:
            means = ",".join(f"{time:g}@{num}" for num, time in steps.means.items())
            raise BadInput(f"rival.{name}", means, "must take longer with more microbatches")
    two_buffered = speed(TWO_BUFFERED, costs, num_microbatches)
    most = two_buffered.activations if activations is None else activations
    rivals = flushed_speeds(costs, num_microbatches, most, chunks)
    for name, times in measured.items():
        rival = rivals.get(name, Speed(inf, nan, 1))  # a name that no schedule of ours has
        rivals[name] = replace(rival, batch_time=exp(fmean(map(log, times))))
    return Timing(
        costs, num_microbatches, two_buffered, rivals, measured, tuple(own_times), most, two_steps
    )


# Times of the operations of a pipeline from traces: the one of a trial, or those of torch's
# profiler, one per rank.

FORWARD, BACKWARD, UPDATE = "F", ("B", "I", "W"), "U"
"""Kinds of operations in a trace of ours; a backward in halves has two."""
STEP, OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
"""How torch's profiler names a step, and an update."""
KERNEL, COPIES, OPERATION = "kernel", ("gpu_memcpy", "gpu_memset"), "cpu_op"
"""Categories of its events: on a GPU, and on a host without one."""
ON_HOST, ON_GPU = "user_annotation", "gpu_user_annotation"
"""Categories of the events of steps and updates, by the clock of the host and of the GPU."""
MESSAGES = re.compile("nccl|gloo|c10d|record_param_comms", re.IGNORECASE)
"""Found in the names of events that send, or wait for another rank, and compute nothing."""
Event = Mapping[str, Any]
Span = tuple[float, float]


def traced_costs(path: Path, num_stages: int, num_microbatches: int) -> Costs:
    """Return the mean times of a trace.json (`trainer.tracing.trace`), or of the traces of torch's
    profiler in a folder, one file per rank; in microseconds.

    A rank with several stages of the model takes their sum; an update takes as long as on the
    slowest rank. The profiler's ranks take the time of their kernels, a backward two forwards.
    Raises BadInput unless these are traces of one rank per stage asked about.
    """
    files = [path]
    if path.is_dir():  # by the numbers in their names: rank10 comes after rank2
        numbers = {file: [*map(int, re.findall(r"\d+", file.name))] for file in path.glob("*.json")}
        files = sorted(numbers, key=lambda file: numbers[file])
    try:
        events = [_events(file) for file in files]
        is_ours = len(events) == 1 and any(event["cat"] == FORWARD for event in events[0])
        costs = _ours(events[0]) if is_ours else _profiled(events, num_microbatches)
        if not all(costs.work):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        what = "must be the trace.json of a true pipeline's trial, or a folder of traces of steps"
        raise BadInput("trace", path, f"{what} by torch's profiler, one per rank") from None
    if len(costs.forward) != num_stages:
        raise BadInput("stages", num_stages, f"must be {len(costs.forward)}, the ranks in {path}")
    return costs


def _events(path: Path) -> list[Event]:
    """Return the events that take time; raises for another file as `traced_costs` expects."""
    trace_events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in trace_events if event["ph"] == "X" and "cat" in event]
    if not all(0 <= event["dur"] <= LONGEST and abs(event["ts"]) <= LONGEST for event in events):
        raise ValueError
    return events


def _ours(events: Iterable[Event]) -> Costs:
    """Return the costs of a trial's own trace, by its first replica."""
    times: defaultdict[tuple[int, int, str], list[float]] = defaultdict(list)
    ends: defaultdict[int, float] = defaultdict(float)
    for event in events:
        # pid is the replica; of the two rows of a rank, the even one has its operations.
        if event["pid"] == 0 and event["tid"] % 2 == 0:
            place = event["tid"] // 2, int(event["args"]["stage"])
            times[*place, str(event["cat"])].append(float(event["dur"]))
            if event["cat"] == UPDATE:
                batch = int(event["args"]["batch"])
                ends[batch] = max(ends[batch], event["ts"] + event["dur"])
    by_rank: defaultdict[tuple[int, str], float] = defaultdict(float)
    for (rank, _, kind), values in times.items():
        by_rank[rank, kind] += mean(values)
    ranks = sorted({rank for rank, _, kind in times if kind == FORWARD})
    steps = [later - earlier for earlier, later in pairwise(ends[batch] for batch in sorted(ends))]
    passes = sum(sum(of) for (*_, kind), of in times.items() if kind in (FORWARD, *BACKWARD))
    return Costs(
        tuple(by_rank[rank, FORWARD] for rank in ranks),
        tuple(sum(by_rank[rank, kind] for kind in BACKWARD) for rank in ranks),
        max(by_rank[rank, UPDATE] for rank in ranks),
        overlap=passes / len(ends) / median(steps) if steps and min(steps) > 0 else nan,
    )


def _profiled(events: Sequence[Sequence[Event]], num_microbatches: int) -> Costs:
    """Return the costs of traces of torch's profiler, one per rank.

    On a GPU what waits for another rank is a kernel too: where none runs, the host is late.
    """
    works, updates, steps, busy = [], [], [], []
    for of_rank in events:
        host_events = [event for event in of_rank if event["cat"] == ON_HOST]
        spans = [_span(event) for event in host_events if event["name"].startswith(STEP)]
        begin, end = min(spans)[0], max(spans)[1]
        inside = [event for event in of_rank if begin <= event["ts"] < end]
        on_gpu = any(event["cat"] == KERNEL for event in inside)
        kind, clock = (KERNEL, ON_GPU) if on_gpu else (OPERATION, ON_HOST)
        computing = [e for e in inside if e["cat"] == kind and not MESSAGES.search(e["name"])]
        of_update = [e for e in inside if e["cat"] == clock and e["name"].startswith(OPTIMIZER)]
        updating = sum(_covered(computing, *_span(event)) for event in of_update)
        works.append((_covered(computing, begin, end) - updating) / len(spans))
        updates.append(updating / len(spans))
        steps.append((end - begin) / len(spans))
        kernels = [event for event in inside if event["cat"] in (KERNEL, *COPIES)]
        busy.append(_covered(kernels, begin, end) / (end - begin) if on_gpu else nan)
    forward = tuple(work / num_microbatches / 3 for work in works)  # a backward takes two of it
    return Costs(
        forward,
        tuple(2 * time for time in forward),
        max(updates),
        overlap=sum(works) / (mean(steps) - max(updates)),
        busy=tuple(busy),
    )


def _span(event: Event) -> Span:
    return float(event["ts"]), float(event["ts"] + event["dur"])


def _covered(events: Iterable[Event], begin: float, end: float) -> float:
    """Return for how long of [begin, end] one of the events runs at least."""
    covered, at = 0.0, begin
    for first, last in sorted(map(_span, events)):  # by start: `at` is where the union ends
        covered += max(0.0, min(last, end) - max(first, at))
        at = max(at, last)
    return covered
