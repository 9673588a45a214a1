"""Overrides that a sweep prefers: added to all of its trials, or to none.

The first command of a sweep decides, by the machine and by its trials. The sweep's record then
holds the overrides that were added among its words, and every later command keeps to the record.

In one process, microbatches of a model in one stage only divide the memory of a batch. Fewer of
them give the same gradients, up to the order of a sum, and the host has fewer kernels to launch.
Between stages they are a part of the schedule: of its versions, of its bubble.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from sweeps.plan.devices import counted_seconds, device_of
from sweeps.plan.sizes import CONTEXT, in_bytes, peak
from sweeps.plan.tried import SIZES
from sweeps.request.expand import GridPoint, Trial
from sweeps.request.schema import Sweep
from trainer.base.build import label
from trainer.base.compiler import require_compiler
from trainer.base.errors import BadInput
from trainer.config.combinations import require_graphs
from trainer.store.records import records

MICROBATCHES = "pipeline.num_microbatches"
MOST_TIME = 0.95
"""The share of the time above which a sweep keeps its own microbatches."""
MOST_MEMORY = 0.9
"""The share of a device's memory that may be planned with: blocks of memory leave holes."""


def recorded(words: Sequence[str], results: Path, label: str) -> bool | None:
    """Return whether the record of a sweep has all of these words; None without a record."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a report warns of damaged records
        found = [record for record in records(results) if record.label == label]
    return {*words} <= {*found[0].words} if found else None


def require_all_compiled(trials: Iterable[Trial]) -> None:
    """Raise BadInput for an update that would be compiled, but not here or not all of it."""
    compiled = [trial.config for trial in trials if trial.config["compile"] == "update"]
    if compiled:
        require_compiler()
    for config in compiled:
        require_graphs(config)


def gain_of_microbatches(
    sweep: Sweep, own: Sequence[GridPoint], preferred: Sequence[GridPoint], gpus_per_trial: float
) -> str:
    """Return in words what the plan says for the preferred microbatches, point by point.

    Raises BadInput unless every trial runs in one process and one stage, fits the memory of its
    device, and all trials together take less time.
    """
    before, after = (
        [trial for point in points for trial in point.trials(sweep.seeds[:1])]
        for points in (own, preferred)
    )
    for trial in after:
        _require_one_stage(trial)
    for key in SIZES:
        if key in sweep.tune or (sweep.search is not None and key in sweep.search.space):
            raise BadInput(key, "chosen by results", "must be known, as it decides the memory")
    times = [sum(counted_seconds(t.config, t.plan) for t in trials) for trials in (before, after)]
    share, device = times[1] / times[0], device_of(after[0].config)
    number = after[0].config["pipeline"]["num_microbatches"]
    if share > MOST_TIME:
        allowed = f"must take at most {MOST_TIME} of the time: {share:.2f} by the rates of "
        raise BadInput(MICROBATCHES, number, allowed + device.name)
    needed = _memory(after, gpus_per_trial)
    if needed > MOST_MEMORY * device.memory:
        allowed = f"must fit {in_bytes(device.memory)} of {device.name}: {in_bytes(needed)}"
        raise BadInput(MICROBATCHES, number, allowed)
    return f"{share:.2f} of the time by the rates of {device.name}, in {in_bytes(needed)}"


def _require_one_stage(trial: Trial) -> None:
    config, stages = trial.config, len(trial.plan.layers_by_stage)
    if trial.plan.num_processes > 1 or stages > 1:
        allowed = "must be one stage in one process: else microbatches are part of the schedule"
        raise BadInput("pipeline", f"{label(config['pipeline'])} of {stages} stages", allowed)
    if "num_experts" in config["model"]:
        allowed = "must be without experts, which are balanced within a microbatch"
        raise BadInput("model", label(config["model"]), allowed)


def _memory(trials: Sequence[Trial], gpus_per_trial: float) -> float:
    """Return the bytes of a device that one of the trials needs, with those that share it."""
    of_trial = peak(trials)
    if of_trial is None:
        allowed = "must have a model that runs without numbers"
        raise BadInput(MICROBATCHES, "memory not known", allowed)
    return int(1 / gpus_per_trial) * (of_trial + CONTEXT)
