"""The first updates of a sweep's largest trial.

They run where the sweep's trials will run, in processes of their own, before any of these begins.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pipegap.sweeps.cluster.connection import Session
from pipegap.sweeps.cluster.gang import run_gang_on_ray
from pipegap.sweeps.plan.devices import bundles, require_room
from pipegap.sweeps.plan.pricing import in_bytes
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.children import scratch
from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.errors import Unavailable, one_line
from pipegap.trainer.ranks.spawn import PRELOAD, AskedToStop
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


def try_first(session: Session, todo: Sequence[Trial], is_wanted: bool | None) -> None:
    """Trains the first updates of the largest trial to do, and says what became of them.

    If `is_wanted` is None, it does so only if a trial takes GPUs. Ends once a signal asks to stop.
    Raises Unavailable, in one line that says what to change, if the updates fail or do not repeat
    to the bit, and BadInput if the cluster is too small for the trial.
    """
    on_gpus = [trial for trial in todo if trial.config["device"] != "cpu"]
    if not (on_gpus if is_wanted is None else is_wanted):
        return
    trial, started = largest(on_gpus or todo), time.monotonic()
    needed = bundles(trial, session.gpus_per_trial)
    require_room(needed, ray.cluster_resources())
    print(
        f"first     {UPDATES} updates of {trial.name}, straight through and with a stop", flush=True
    )
    group = placement_group([bundle for bundle in needed if bundle])
    # The process that supervises a gang takes nothing: its ranks take the bundles. Two processes
    # share what a trial takes: the second one imports what it needs while the first one works.
    first, second = (_Process(group, session.asked_to_stop, needed[0]) for _ in range(2))
    try:
        with scratch(Path(trial.config["results"]), ".first-trial-") as folder:
            first.ask(_begin, trial.config, folder)
            first.end()  # the second process resumes, as that of a killed trial does
            rehearsed: Rehearsed = second.ask(_resume, trial.config, folder)
            print(_verdict(rehearsed, trial, time.monotonic() - started), flush=True)
    except _Asked:
        return
    finally:
        remove_placement_group(group)


class _Works:
    """What runs in a process of Ray's. It imports the modules `names` before it is asked."""

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            import_module(name)

    def run(self, function: Callable[..., object], *arguments: object) -> object:
        return function(*arguments)


class _Process:
    """A new process that has half of these resources of the group, until it is ended."""

    def __init__(
        self, group: PlacementGroup, asked_to_stop: AskedToStop, resources: Mapping[str, float]
    ) -> None:
        self._asked_to_stop = asked_to_stop
        self._actor: Any = (
            ray.remote(_Works)
            .options(
                num_cpus=resources.get("CPU", 0) / 2,
                num_gpus=resources.get("GPU", 0) / 2,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            )
            .remote(PRELOAD)
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
        """Ends the process, which frees its resources."""
        ray.kill(self._actor)


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


def cause(message: str) -> str:
    """Return what failed in one line, and what to change, from the text of an error."""
    last = (message.strip().splitlines() or ["no message"])[-1]
    advice = next((advice for sign, advice in SIGNS.items() if sign in message), None)
    return last if advice is None else f"{last}: {advice}"


def largest(trials: Sequence[Trial]) -> Trial:
    """Return the trial that needs most memory on a rank; of equals, one that corrects a delay."""
    return max(trials, key=lambda t: (t.plan.memory_bytes + t.plan.loss_bytes, t.plan.is_delayed))
