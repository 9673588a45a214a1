"""How long a batch takes in the steady state of a pipeline, and how much a rank keeps meanwhile, by
simulating its schedule with costs that are assumed, given, or traced."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import exp, inf, isnan, log, nan
from statistics import fmean

from pipegap.trainer.base.build import locate
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import declared
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.proof import SETTLED, steady
from pipegap.trainer.schedules.recipes import pipedream_2bw, rival_of

CHUNKS = 4
"""Parts of the model per rank: the most that are assumed of a model whose layers are not known."""


def _rivals() -> dict[str, Sequence[Callable[..., Schedule]]]:
    """The synchronous pipelines that 2BW is compared with, in the order in which people met them,
    each in all of its forms: the schedules of conf/ that declare it (`recipes.rival`)."""
    recipes = (locate(choice.usual["_target_"]) for choice in declared("pipeline").values())
    pairs = [(rival, recipe) for recipe in recipes if (rival := rival_of(recipe)) is not None]
    return {
        rival.name: [partial(recipe, **form) for form in rival.forms]
        for rival, recipe in sorted(pairs, key=lambda pair: pair[0].paper)
    }


FLUSHED = _rivals()
SLOWEST = next(iter(FLUSHED))
"""1F1B: the others fill a part of its bubble."""
TWO_BUFFERED = partial(pipedream_2bw, synchronous_start=0, synchronous_cooldown=0)
NEARLY = 1e-9
"""The rounding error of a number of microbatches or of a ratio."""


@dataclass(frozen=True)
class Costs:
    """Times of one microbatch on each rank, in any unit: speed-ups are ratios.

    A rank with several parts of the model (chunks) takes equally long for each of them.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    """Where it is split into halves (ZB-H1, ZB-V, DualPipeV), each takes half of this."""
    update: float = 0.0
    communication: float = 0.0
    """Until a result arrives at another rank, which computes meanwhile."""
    overhead: float = 0.0
    """Of a batch, beyond what is simulated: no pipeline gains it."""
    are_known: bool = True
    """Whether the stages were measured, and are not assumed to be equal."""
    overlap: float = nan
    """How many ranks computed at a time, on the mean, where that was measured."""
    busy: tuple[float, ...] = ()
    """For each rank the share of a step in which a kernel ran, be it one that waits for a message;
    empty, or NaN, where that was not measured."""
    step_of: str = ""
    """The pipeline whose measured step these costs fill; empty if none was measured."""

    @property
    def work(self) -> tuple[float, ...]:
        """The time of a microbatch on each rank, forward and backward."""
        return tuple(f + b for f, b in zip(self.forward, self.backward, strict=True))


@dataclass(frozen=True)
class Speed:
    """A pipeline in its steady state."""

    batch_time: float
    """What one more batch adds to a long run, in the unit of the costs."""
    activations: float
    """Of how many microbatches the rank that keeps most has activations at a time, each counted
    for all of its rank's layers, and until its weight gradients are made."""
    num_chunks: int
    """Parts of the model per rank."""
    is_plain: bool = True
    """Whether a rank has one part of the model, whole backwards and no forward twice. What several
    parts add in messages, and halves of backwards in kernels, cotangents and recomputation, is not
    simulated: such a pipeline was measured at a third of the speed of a 1F1B that it should beat
    (marin-community/marin 9277)."""

    def fits(self, activations: float) -> bool:
        """Whether it keeps no more; what it keeps is not known of what was measured and ran."""
        return not self.activations > activations + NEARLY


@dataclass(frozen=True)
class TwoSteps:
    """Measured times of a step at two numbers m of microbatches: t(m) = m · work + beyond.

    Microbatches are of one size, so a step of twice as many has twice the tokens.
    """

    times: Mapping[int, Sequence[float]]
    """For both numbers the times of one step or of several."""

    @property
    def means(self) -> dict[int, float]:
        """Geometric means of the times, by ascending numbers of microbatches."""
        return {num: exp(fmean(map(log, of_num))) for num, of_num in sorted(self.times.items())}

    @property
    def work(self) -> float:
        """The time of one more microbatch: that of the slowest rank."""
        return line(self.means)[0]

    @property
    def beyond(self) -> float:
        """What a step costs beyond its work: b = 2 t(m) − t(2m). A schedule without a bubble hides
        the part of it that is bubble."""
        return line(self.means)[1]


def line(times: Mapping[int, float]) -> tuple[float, float]:
    """Slope and intercept of the line through two times, each by its number of microbatches."""
    (least, short), (most, long) = sorted(times.items())
    slope = (long - short) / (most - least)
    return slope, short - least * slope


def equal_stages(num_stages: int) -> Costs:
    """The costs assumed of unmeasured stages: all equal, the backward twice the forward."""
    return Costs((1.0,) * num_stages, (2.0,) * num_stages, are_known=False)


def flushed_speeds(
    costs: Costs, num_microbatches: int, activations: float = inf, chunks: int = CHUNKS
) -> dict[str, Speed]:
    """By name, the synchronous pipelines that can have so many microbatches, and that have `chunks`
    parts of the model per rank at most.

    Of the forms of a pipeline the fastest counts that keeps `activations` at most, or, where none
    keeps as few, the one that keeps least.
    """
    speeds = {}
    for name, forms in FLUSHED.items():
        rival_speeds = [*_speeds(forms, costs, num_microbatches, chunks)]
        fitting = [at for at in rival_speeds if at.fits(activations)]
        if fitting:
            # Rounded: of equally fast forms the first counts, not the luckier sum of floats.
            speeds[name] = min(fitting, key=lambda at: round(at.batch_time, 6))
        elif rival_speeds:
            speeds[name] = min(rival_speeds, key=lambda at: at.activations)
    return speeds


def _speeds(
    forms: Iterable[Callable[..., Schedule]], costs: Costs, num_microbatches: int, chunks: int
) -> Iterator[Speed]:
    for form in forms:
        try:
            schedule = form(
                SETTLED, num_stages=len(costs.forward), num_microbatches=num_microbatches
            )
        except BadInput:  # interleaved 1F1B needs a multiple of p, DualPipeV 2p or more
            continue
        if schedule.num_chunks <= chunks:
            yield speed(form, costs, num_microbatches)


def speed_up(costs: Costs, num_microbatches: int) -> float:
    """Batches of 2BW in the time of one of the SLOWEST.

    Raises BadInput where 2BW cannot run (m < p − 1).
    """
    two_buffered = speed(TWO_BUFFERED, costs, num_microbatches)
    return slowest(costs, num_microbatches) / two_buffered.batch_time


def with_step_time(costs: Costs, num_microbatches: int, step_time: float) -> Costs:
    """Return the costs of a pipeline of which a step of the SLOWEST takes `step_time`.

    What it takes beyond the simulated time no pipeline gains, and stages overlap less. Equal stages
    of which no time is known are as long as lets them fill it. Raises BadInput if the operations
    alone, or the messages, take longer.
    """
    costs = replace(costs, step_of=SLOWEST)
    if not costs.are_known:
        return _filling(costs, num_microbatches, step_time)
    simulated = slowest(costs, num_microbatches)
    if step_time < simulated * (1 - NEARLY):
        allowed = f"must be {simulated:g} or more: so long {SLOWEST} takes by the other times"
        raise BadInput("step_time", f"{step_time:g}", allowed)
    # The difference rounds to 0 where an update is far longer than all that overlaps.
    passes = max(step_time - costs.update, num_microbatches * max(costs.work))
    # Stage seconds of work per second of the step's passes.
    overlap = num_microbatches * sum(costs.work) / passes
    overlap = overlap if isnan(costs.overlap) else costs.overlap
    return replace(costs, overhead=step_time - simulated, overlap=overlap)


def _scaled(costs: Costs, factors: Sequence[float]) -> Costs:
    """The costs with each rank's passes longer by its factor."""
    forward, backward = (
        tuple(factor * time for factor, time in zip(factors, side, strict=True))
        for side in (costs.forward, costs.backward)
    )
    return replace(costs, forward=forward, backward=backward)


def with_two_steps(
    costs: Costs, num_microbatches: int, name: str, steps: TwoSteps, chunks: int = CHUNKS
) -> Costs:
    """Return the costs of a pipeline `name` of which steps take `steps`: its slowest rank takes the
    work of a microbatch, and other ranks are to it as in `costs`.

    What a step costs beyond work and simulated bubble no pipeline gains. Where it costs less, ranks
    that were assumed to be equal are not: the last one is the slowest, and the others do as much
    less as leaves such a bubble. Raises BadInput where `costs` leave none, for a step that costs no
    more than its update beyond its work, and for messages: those of a microbatch are in its time.
    """
    key = "step_time" if name == SLOWEST else f"rival.{name}"
    steps_text = ",".join(f"{time:g}@{num}" for num, time in steps.means.items())
    if costs.communication:
        allowed = f"must not stand beside {key}={steps_text}, which has it"
        raise BadInput("communication", f"{costs.communication:g}", allowed)
    num_ranks, most = len(costs.forward), max(costs.work)
    if not (steps.work > 0 and steps.beyond > costs.update):
        allowed = "must be of steps that take longer with more microbatches, but not in proportion"
        raise BadInput(key, steps_text, f"{allowed}: pipelines have a bubble")
    costs = _scaled(replace(costs, step_of=name), (steps.work / most,) * num_ranks)
    simulated = flushed_speeds(costs, num_microbatches, chunks=chunks)[name].batch_time
    bubble = simulated - num_microbatches * steps.work - costs.update
    excess = steps.beyond - costs.update - bubble
    if excess >= -NEARLY * simulated:
        return replace(costs, overhead=max(0.0, excess))
    if costs.are_known:
        allowed = f"must cost {steps.beyond - excess:g} or more beyond its work by the other times"
        raise BadInput(key, steps_text, f"{allowed}, and costs {steps.beyond:g}")
    return _scaled(costs, (1 + excess / bubble,) * (num_ranks - 1) + (1.0,))


def simulated_beyond(
    name: str, costs: Costs, numbers: Sequence[int], num_chunks: int
) -> float | None:
    """What a simulated step costs beyond its work, as `TwoSteps` has it of a measured one, in
    microbatches of the slowest rank; None if no pipeline `name` can have such `numbers` of them."""
    forms = FLUSHED.get(name, ())
    speeds = {
        num: [at for at in _speeds(forms, costs, num, num_chunks) if at.num_chunks == num_chunks]
        for num in numbers
    }
    if not all(speeds.values()):
        return None
    _, beyond = line({num: first.batch_time for num, [first, *_] in speeds.items()})
    return beyond / max(costs.work)


def slowest(costs: Costs, num_microbatches: int) -> float:
    """The time of a batch of the SLOWEST."""
    [schedule] = FLUSHED[SLOWEST]
    return speed(schedule, costs, num_microbatches).batch_time


def _filling(costs: Costs, num_microbatches: int, step_time: float) -> Costs:
    """Equal stages of such a length that a step takes `step_time`, by the rule of false position:
    the time is convex in the length, so that each guess is too short."""

    def stages(length: float) -> Costs:
        return _scaled(costs, (length,) * len(costs.forward))

    # `high`: stages that fill the step alone, without updates and messages.
    low, high = 0.0, step_time / slowest(equal_stages(len(costs.forward)), num_microbatches)
    at_low, at_high = (slowest(stages(length), num_microbatches) for length in (low, high))
    if at_low >= step_time:
        allowed = f"must be above {at_low:g}: so long {SLOWEST} takes for updates and messages"
        raise BadInput("step_time", f"{step_time:g}", allowed)
    for _ in range(50):  # far more guesses than it takes
        if step_time - at_low <= NEARLY * step_time:
            break
        low += (step_time - at_low) * (high - low) / (at_high - at_low)
        at_low = slowest(stages(low), num_microbatches)
    return replace(stages(low), overhead=max(0.0, step_time - at_low))


def fastest(speeds: Mapping[str, Speed], activations: float) -> str:
    """The fastest of those that keep `activations` at most, as all do that were measured; of
    equally fast ones the first. Raises BadInput if there is none."""
    fitting = [name for name, at in speeds.items() if at.fits(activations)]
    if not fitting:
        least = min(at.activations for at in speeds.values())
        raise BadInput("activations", f"{activations:g}", f"must be {least:g} or more")
    return min(fitting, key=lambda name: round(speeds[name].batch_time, 6))


@lru_cache(maxsize=4_096)  # a report asks for the same ones again and again
def speed(schedule: Callable[..., Schedule], costs: Costs, num_microbatches: int) -> Speed:
    """The speed of a pipeline with one rank per stage of `costs`; raises BadInput as `schedule`."""
    ranks = len(costs.forward)
    settled = schedule(SETTLED, num_stages=ranks, num_microbatches=num_microbatches)
    by_rank = [
        {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2, "U": costs.update}
        for forward, backward in zip(costs.forward, costs.backward, strict=True)
    ]
    by_chunk = [  # operations are of one chunk each
        {kind: time / settled.num_chunks for kind, time in times.items()} for times in by_rank
    ]
    batch_time, start = steady(settled, by_chunk, costs.communication)
    peak = max(start.peak_activations(rank) for rank in range(ranks))
    return Speed(
        batch_time + costs.overhead,
        peak / settled.num_chunks,
        settled.num_chunks,
        settled.num_chunks == 1 and not settled.splits_backward and not settled.recomputes,
    )
