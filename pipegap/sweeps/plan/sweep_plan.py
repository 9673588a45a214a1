"""The plan of each sweep of a request, by the results that the store has, and its label there."""

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, count
from typing import Any

from pipegap.sweeps.plan import choosing
from pipegap.sweeps.plan.choosing import Choice, check_reach, choose
from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.expand import Expected, GridPoint, Trial, points, unique
from pipegap.sweeps.request.schema import Sweep
from pipegap.trainer.base.build import published
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.schema import validate
from pipegap.trainer.store.records import Record, asked_by, of_sweep
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.store.store import SweepStore

# The label of a sweep in its store: every request has its own, and so its own record and report.
#
# A label is NAME-SCALE, and for further requests of the same sweep NAME-SCALE-2, -3, …. Trials
# are shared all the same: a sweep with one more seed runs that seed alone.

RULES = {"seeds", "tune", "shared", "search", "early_stop", "advice"}
"""Keys of a sweep that ask for trials beside those of its points."""
LATER = {"tuning"}
"""Keys of that kind that are younger than the hashes in stores. While they have their default they
are left out of the hash, which so stays that of the store."""


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as one request asks for it, beside the other requests that its store has of it."""

    name: str
    """The sweep's name, without the scale."""
    scale: str
    digest: str
    """A hash of what decides its trials; empty while its data is not prepared, since ids of trials
    depend on the data."""
    words: frozenset[str]
    """The words of the command line that ask for trials."""
    records: Sequence[Record]
    """The records of all requests of this sweep at this scale."""

    @classmethod
    def of(cls, request: Request, label: str, swept: Sequence[GridPoint]) -> "SweepRequest":
        """Return the request for the sweep `label`, NAME-SCALE, with these points."""
        name, words = label.removesuffix(f"-{request.scale}"), asked_by(request.words)
        records = of_sweep(request.results, name, request.scale)
        return cls(name, request.scale, _hash(request.sweeps[label], swept), words, records)

    @property
    def record(self) -> Record | None:
        """The record of this request, if there is one."""
        return next(filter(self._is_of, self.records), None)

    def _is_of(self, record: Record) -> bool:
        if record.request and self.digest:
            return record.request == self.digest
        return record.asked == self.words  # a record of before 0.3, or data that is not prepared

    @property
    def label(self) -> str:
        """The label of its record, or else the first label that is free."""
        if self.record is not None:
            return self.record.label
        labels_taken = {record.label for record in self.records}
        first = f"{self.name}-{self.scale}"
        labels = chain([first], (f"{first}-{number}" for number in count(2)))
        return next(label for label in labels if label not in labels_taken)

    @property
    def others(self) -> str:
        """The other requests, each by its label and words; empty if there are none."""
        other_records = [record for record in self.records if not self._is_of(record)]
        return "; ".join(f"{r.label} is {shlex.join(r.given)}" for r in other_records)


def _hash(sweep: Sweep, swept: Sequence[GridPoint]) -> str:
    # One seed tells the configs apart; the seeds themselves are among `rules`.
    trials = [trial for point in swept for trial in point.trials(sweep.seeds[:1])]
    if any(trial.plan.data_hash is None for trial in trials):
        return ""
    ids = sorted(trial.trial_id for trial in trials)
    rules = sweep.model_dump(include=RULES) | sweep.model_dump(include=LATER, exclude_defaults=True)
    whole = json.dumps([ids, rules], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


# The plans, and a round of them: those of all sweeps of a request, by the same results.
#
# With `early_stop: {margin: m}` the sync arm is trained to its end at the first seed, at every
# point. A point whose loss ends more than m nats per token above the lowest, or that diverged, is
# not run further, at any seed: the arms of a pair are never stopped independently. Losses are
# compared within the same model, data, context and optimizer, so that no optimizer is left out
# because another one is better. The store alone decides: a sweep that was killed decides the same
# when it resumes.
#
# A sweep with a question also trains longer runs. In the time in which a synchronous pipeline
# makes T updates, PipeDream-2BW makes more. What it gains is shown by delayed runs of that many
# updates, against sync's runs of T. They are as long as the slowest pipeline allows, 1F1B: for
# what the others allow, the advice interpolates. It compares these runs; the sweep's report does
# not.

NEARLY = 1e-6
"""Updates: the rounding error of a simulated ratio."""


@dataclass(frozen=True)
class JudgedPoint:
    """A point, and whether early stopping leaves it out."""

    choice: Choice
    settled: bool
    first: Sequence[Trial] = ()
    """The sync trial of the first seed, which decides. Empty without early stopping, until tuning
    is settled, and if it left the point out."""
    stopped: str | None = None
    """Why the point does not run further; None if it does, or may."""

    @property
    def arms(self) -> Sequence[Trial]:
        """The trials of all arms and seeds; none if the point is stopped."""
        return [] if self.stopped else self.choice.arms

    @property
    def runnable(self) -> list[Trial]:
        """The trials that can run now."""
        return [*self.choice.choosing, *self.first, *(self.arms if self.settled else [])]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known."""
        judged = self.first if self.stopped else []  # else it is among the arms
        return [*self.choice.choosing, *judged, *self.arms]


@dataclass(frozen=True)
class SweepPlan:
    """The points of one sweep, as far as they are decided. Sweeps may share trials."""

    label: str
    sweep: Sweep
    points: list[JudgedPoint]
    request: SweepRequest

    @property
    def runnable(self) -> list[Trial]:
        """The trials that can run now."""
        longer = [trial for point in self.points if point.settled for trial in self._longer(point)]
        return [*(trial for point in self.points for trial in point.runnable), *longer]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known."""
        longer = [trial for point in self.points for trial in self._longer(point)]
        return [*(trial for point in self.points for trial in point.planned), *longer]

    @cached_property
    def distinct(self) -> list[Trial]:
        """Each of them once, the longest first."""
        return unique(self.planned)

    def _longer(self, point: JudgedPoint) -> list[Trial]:
        """Return the longer runs at a point; none without a question or where 2BW gains no time."""
        question = self.sweep.advice
        if question is None:
            return []
        factor = speed_up(question.stages, question.microbatches)
        trials = [trial for trial in point.arms if trial.arm in question.arms and factor > 1]
        return [_lengthened(trial, factor, point.choice) for trial in trials]

    @property
    def choices(self) -> list[Choice]:
        """The points with the settings that were tried there."""
        return [point.choice for point in self.points]

    @property
    def settled(self) -> bool:
        """Whether nothing is left to choose or to judge."""
        return all(point.settled for point in self.points)

    @property
    def compared(self) -> set[str]:
        """Ids of the trials in the report: the arms of settled points."""
        settled = [point for point in self.points if point.settled]
        return {trial.plan.trial_id for point in settled for trial in point.arms}

    @property
    def estimate(self) -> list[str]:
        """Lines on what a plan cannot know yet."""
        lines, num_open = [*choosing.estimate(self.sweep, self.choices)], 0
        if self.sweep.early_stop is not None:
            num_open = sum(not point.settled for point in self.points)
        if num_open:
            of_all = f"{num_open} of {len(self.points)} points"
            lines.append(f"stop      {of_all} are not judged yet: all arms are priced")
        return lines

    @property
    def remarks(self) -> list[str]:
        """Lines on what was chosen and what was left out, and why."""
        return [*choosing.remarks(self.sweep, self.choices), *_left_out(self.sweep, self.points)]

    def refreshed(self, snapshot: Snapshot) -> "SweepPlan":
        """Return the plan by the results that were seen."""
        if self.settled:
            return self
        choices = choose(self.sweep, self.choices, snapshot)
        return replace(self, points=judge(self.sweep, choices, snapshot))


@dataclass(frozen=True)
class Round:
    """What is planned, done and to do, by the results of one `snapshot`."""

    request: Request
    store: SweepStore
    snapshot: Snapshot
    sweeps: Sequence[SweepPlan]

    @classmethod
    def first(cls, request: Request, store: SweepStore) -> "Round":
        """Return the round of now; raises BadInput for what can be known to be wrong."""
        store.pull()
        snapshot = Snapshot()
        return cls(request, store, snapshot, plan_sweeps(request, snapshot))

    def again(self) -> "Round":
        """Return the round of now, after this one. Raises StoreAway."""
        self.store.pull()
        snapshot = self.snapshot.again()
        sweeps = [sweep.refreshed(snapshot) for sweep in self.sweeps]
        return replace(self, snapshot=snapshot, sweeps=sweeps)

    @property
    def title(self) -> str:
        """The labels of its sweeps, for people."""
        return ", ".join(sweep.label for sweep in self.sweeps)

    @cached_property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known, each once, the longest first."""
        return all_planned(self.sweeps)

    @cached_property
    def todo(self) -> list[Trial]:
        """The planned trials that have to run."""
        return [trial for trial in self.planned if self.snapshot.finished(trial) is None]

    @property
    def runnable(self) -> list[Trial]:
        """Those of them that can run now."""
        ids = {trial.trial_id for sweep in self.sweeps for trial in sweep.runnable}
        return [trial for trial in self.todo if trial.trial_id in ids]

    @cached_property
    def expected(self) -> Expected:
        """What each planned trial takes, and the compiler before those to do."""
        from pipegap.sweeps.plan.devices import expected  # torch is slow

        request = self.request
        return expected(
            request.results, self.planned, self.todo, self.snapshot, request.gpus_per_trial
        )


def plan_sweeps(request: Request, snapshot: Snapshot | None = None) -> list[SweepPlan]:
    """Return one plan per sweep, by the results that were seen, or that the store has now; raises
    BadInput for everything that can be known to be wrong."""
    compose = Composer(request.if_there)
    snapshot_now = snapshot or Snapshot()
    return [_plan_sweep(name, request, compose, snapshot_now) for name in request.sweeps]


def _plan_sweep(name: str, request: Request, compose: Composer, snapshot: Snapshot) -> SweepPlan:
    """Return the plan of the sweep `name`, NAME-SCALE, with the label that it has in the store."""
    sweep = request.sweeps[name]
    swept = points(sweep, request.results, compose)
    check_reach(sweep, swept)
    request_of_sweep = SweepRequest.of(request, name, swept)
    label = request_of_sweep.label
    choices = choose(sweep, [Choice(replace(point, sweep=label)) for point in swept], snapshot)
    return SweepPlan(label, sweep, judge(sweep, choices, snapshot), request_of_sweep)


def all_planned(sweeps: Iterable[SweepPlan]) -> list[Trial]:
    """Return the planned trials of all sweeps, each once, the longest first."""
    return unique(trial for sweep in sweeps for trial in sweep.planned)


@cache
def speed_up(stages: int, microbatches: int) -> float:
    """Return how many batches 2BW makes in the time of one of 1F1B, if their stages are equal."""
    from pipegap.analysis.advice import speed

    return speed.speed_up(speed.equal_stages(stages), microbatches)


def _lengthened(trial: Trial, factor: float, choice: Choice) -> Trial:
    num_updates = math.ceil(trial.plan.num_updates * factor - NEARLY)  # 200.0000001 is 200
    length = {"num_updates": num_updates, "tokens_per_parameter": None}
    config = validate({**trial.config, **length})
    setting = f"{trial.setting} num_updates={num_updates}".strip()
    return Trial(trial.arm, config, choice.point.plan(config), setting, trial.sweeps)


def judge(sweep: Sweep, choices: Sequence[Choice], snapshot: Snapshot) -> list[JudgedPoint]:
    """Return every point of the sweep, judged by the results that the store has.

    Nothing is decided of a group while a point of it has to run.
    """
    if sweep.early_stop is None:
        return [JudgedPoint(choice, choice.settled) for choice in choices]
    firsts = [_first(choice) for choice in choices]
    groups: dict[str, list[float | None]] = {}
    for choice, first in zip(choices, firsts, strict=True):
        losses = [snapshot.final_loss(trial) for trial in first] if choice.settled else [None]
        groups.setdefault(_group(choice), []).extend(losses)
    judged = []
    for choice, first in zip(choices, firsts, strict=True):
        group = groups[_group(choice)]
        losses_there = [loss for loss in group if loss is not None]
        settled, why = len(losses_there) == len(group), None
        if settled and first and (loss := snapshot.final_loss(first[0])) is not None:
            why = _why(loss, min(losses_there), sweep.early_stop.margin)
        judged.append(JudgedPoint(choice, settled, first, why))
    return judged


def _first(choice: Choice) -> Sequence[Trial]:
    """Return the sync trial of the first seed, once the choice is settled."""
    sync = [trial for trial in choice.arms if trial.arm == "sync"]
    return sync[:1] if choice.settled else []


def _group(choice: Choice) -> str:
    """Return optimizer, model, data and context as text: points of equal text are compared."""
    config: Mapping[str, Any] = choice.point.configs["sync"]
    comparable = [config[key] for key in ("model", "data", "seq_len")]
    return json.dumps([published(config["optimizer"]["_target_"]), *comparable], sort_keys=True)


def _why(loss: float, best: float, margin: float) -> str | None:
    """Return why a point with the loss `loss` is left out; None if it is not."""
    if loss == math.inf:
        return "its sync arm diverged"
    if loss > best + margin:
        return f"its sync arm ended at {loss:.4f}, the best at {best:.4f}"
    return None


def _left_out(sweep: Sweep, points: Sequence[JudgedPoint]) -> list[str]:
    """Return the rule, then one line per point that is left out; nothing without early stopping."""
    if sweep.early_stop is None:
        return []
    return [
        f"early stop: a point is left out, in every arm, if its sync arm at seed {sweep.seeds[0]} "
        f"diverges or ends more than {sweep.early_stop.margin:g} nats above the best point of its "
        "optimizer, model and data",
        *(
            f"{' '.join(point.choice.point.overrides)} is left out: {point.stopped}"
            for point in points
            if point.stopped
        ),
    ]
