"""A look at the first GPU of a sweep, and the first updates of its largest trial.

They run where the sweep's trials will run, in processes of their own, before any of these begins.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pipegap.sweeps.cluster.driver import require_resources
from pipegap.sweeps.cluster.gang import run_gang_on_ray
from pipegap.sweeps.cluster.session import Session
from pipegap.sweeps.plan.devices import bundles
from pipegap.sweeps.plan.pricing import CONTEXT, in_bytes, peak, while_it_runs
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.errors import Unavailable, one_line
from pipegap.trainer.base.resources import Machine, look, require_device
from pipegap.trainer.base.scratch import scratch
from pipegap.trainer.ranks.spawn import PRELOAD
from pipegap.trainer.ranks.supervisor import AskedToStop
from pipegap.trainer.rehearsal import UPDATES, Config, Rehearsed, begin, resume

ASK_EVERY = 0.5
"""Seconds between two looks whether a signal asks to stop."""
WITHOUT = "(first_trial=false begins the sweep without it)"

SIGNS: Mapping[str, str] = {
    "out of memory": "take more pipeline.num_microbatches, or model.activation_checkpointing=true",
    "No space left": "make room where results= lies",
    "NCCL": "look at NCCL's own words with NCCL_DEBUG=INFO",
}
"""A part of an error's text → what to change."""


class _Asked(Exception):
    """A signal asks to stop."""


def try_first(session: Session, todo: Sequence[Trial], wanted: bool | None) -> None:
    """Trains the first updates of the largest trial to do.

    With `wanted` None only where a trial takes GPUs. Raises Unavailable in one line if the updates
    fail.
    """
    on_gpus = [trial for trial in todo if trial.config["device"] != "cpu"]
    if bool(on_gpus) if wanted is None else wanted:
        for line in _try(session, on_gpus or todo):
            print(line, flush=True)


def _try(session: Session, todo: Sequence[Trial]) -> Iterator[str]:
    """Yield lines: what the device is like, what to change, what became of the first updates.

    The lines end early once a signal asks to stop. Raises Unavailable, in one line that says what
    to change, if the first updates fail or do not repeat to the bit, and BadInput if the cluster is
    too small for the trial.
    """
    trial, started = largest(todo), time.monotonic()
    results, needed = Path(trial.config["results"]), bundles(trial, session.gpus_per_trial)
    require_resources(needed)
    group = placement_group([bundle for bundle in needed if bundle])
    start = partial(_Process, group, session.asked_to_stop)
    # The process that supervises a gang takes nothing: its ranks take the bundles. Two processes
    # that share what a trial takes: the second one imports what it needs while the first one works.
    first, second = (start(needed[0], share=2) for _ in range(2))
    looking = first if len(needed) == 1 else start(needed[-1])
    try:
        with scratch(results, ".first-trial-") as folder:
            machine: Machine = looking.ask(_look, trial.config["device"], results)
            if looking is not first:
                looking.end()
            num_gpus = ray.cluster_resources().get("GPU", 0)
            yield found(machine, num_gpus, session.store.name)
            on_gpu = int(1 / needed[-1].get("GPU", 1.0)) * peak([trial])
            for change in changes(machine, todo, on_gpu):
                yield f"change    {change}"
            yield f"first     {UPDATES} updates of {trial.name}, straight through and with a stop"
            first.ask(_begin, trial.config, folder)
            first.end()
            rehearsed: Rehearsed = second.ask(_resume, trial.config, folder)
            yield _verdict(rehearsed, trial, time.monotonic() - started)
    except _Asked:
        return
    finally:
        remove_placement_group(group)


class _Works:
    """What runs in a process of Ray's; it imports what a trial needs before it is asked."""

    def __init__(self) -> None:
        for name in PRELOAD:
            import_module(name)

    def run(self, function: Callable[..., object], *arguments: object) -> object:
        return function(*arguments)


class _Process:
    """A new process that has a share of these resources of the group, until it is ended."""

    def __init__(
        self,
        group: PlacementGroup,
        asked_to_stop: AskedToStop,
        resources: Mapping[str, float],
        share: int = 1,
    ) -> None:
        self._asked_to_stop = asked_to_stop
        self._actor: Any = (
            ray.remote(_Works)
            .options(
                num_cpus=resources.get("CPU", 0) / share,
                num_gpus=resources.get("GPU", 0) / share,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            )
            .remote()
        )

    def ask(self, function: Callable[..., object], *arguments: object) -> Any:
        """Return what the function returns.

        Raises _Asked once a signal asks to stop, and Unavailable if the function raises or the
        process dies.
        """
        answer = self._actor.run.remote(function, *arguments)
        while not ray.wait([answer], timeout=ASK_EVERY)[0]:
            if self._asked_to_stop():
                self.end()
                raise _Asked
        try:
            return ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            why = cause(str(error.cause))
        except ray.exceptions.RayError as error:
            why = cause(str(error))
        raise Unavailable(f"first trial: {one_line(why)} {WITHOUT}")

    def end(self) -> None:
        """Ends the process: its resources are free."""
        ray.kill(self._actor)


def _look(device: str, results: Path) -> Machine:
    return look(require_device(device), results)


def _begin(config: Config, folder: Path) -> None:
    try:
        begin(config, folder, run_gang_on_ray)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _resume(config: Config, folder: Path) -> Rehearsed:
    """Resumes, and deletes the folder: it may lie on another machine than the driver's."""
    try:
        return resume(config, folder, run_gang_on_ray)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _verdict(rehearsed: Rehearsed, trial: Trial, seconds: float) -> str:
    """Return the line on a first trial that ran; raises Unavailable if its two ends differ."""
    if rehearsed.difference is not None:
        raise Unavailable(
            f"first trial: a stop and a resume change {rehearsed.difference}. Something in it is "
            f"not deterministic: say deterministic=false, or find it by {trial.name} {WITHOUT}"
        )
    stop = f"stopped after {rehearsed.stopped_after} and resumed"
    if rehearsed.stopped_after is None:
        stop = "too short to be stopped"
    same = "the same bits" if trial.config["deterministic"] else "bits not compared"
    return (
        f"first     {rehearsed.status}; {stop}: {same}; {rehearsed.tokens_per_second:,.0f} "
        f"tokens/s, {in_bytes(rehearsed.peak_bytes)} at the peak; {duration(seconds)} in all"
    )


def found(machine: Machine, num_gpus: float, store: str) -> str:
    """Return the line on a machine; `num_gpus` are those of the whole cluster."""
    free = f"{in_bytes(machine.free)} free of {in_bytes(machine.total)}"
    return (
        f"machine   {machine.host}: {machine.device} with {free}; {num_gpus:g} GPUs in the "
        f"cluster; torch {machine.torch}, CUDA {machine.cuda}; {in_bytes(machine.disk)} free at "
        f"{store}"
    )


def changes(machine: Machine, todo: Sequence[Trial], needed: int) -> Iterator[str]:
    """Yield what to change; `needed` are the bytes of its device that a trial takes."""
    if needed + CONTEXT > machine.free:
        yield (
            f"free memory: {in_bytes(needed)} are needed beside {in_bytes(CONTEXT)} of libraries. "
            "End other processes, or take more pipeline.num_microbatches"
        )
    written = sum(trial.plan.kept_bytes for trial in todo) + max(map(while_it_runs, todo))
    if written > machine.disk:
        yield f"make room: the sweep writes {in_bytes(written)}; or choose another results="


def cause(message: str) -> str:
    """Return what failed in one line, and what to change, from the text of an error."""
    last = (message.strip().splitlines() or ["no message"])[-1]
    advice = next((advice for sign, advice in SIGNS.items() if sign in message), None)
    return last if advice is None else f"{last}: {advice}"


def largest(trials: Sequence[Trial]) -> Trial:
    """Return the trial that needs most memory on a rank; of equals, one that corrects a delay."""
    return max(trials, key=lambda t: (t.plan.memory_bytes + t.plan.loss_bytes, t.plan.is_delayed))
