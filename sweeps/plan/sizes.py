"""The lines of a plan on its models and files: parameters, memory of a rank, cuts, storage."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput, some
from pipegap.trainer.config.memory import peak_bytes
from pipegap.trainer.config.names import names
from pipegap.trainer.config.plan import Plan, which_optimizer
from pipegap.trainer.models.recipe import Recipe

EVEN = 0.8
"""The share of the speed-up of p equal ranks below which a plan says how the model is cut."""
NO_MEMORY = {"seed", "choices", "num_updates", "tokens_per_parameter", "lr_schedule", "data"}
"""Keys that do not change the memory of an update."""
CONTEXT = 1e9
"""Bytes of a GPU that its context and libraries take beside a trial (bench/README.md)."""
MOST_RANKS, NEARLY = 64, 0.99
"""Ranks that a plan tries; the share of the best speed-up that is as good as it."""


def sizes(trials: Sequence[Trial], gpus_per_trial: float) -> Iterator[str]:
    """Yield parameters of the distinct models, the memory of a rank, and cuts that scale badly."""
    distinct = {(t.plan.num_parameters, t.plan.num_active_parameters): t for t in trials}
    models = [
        f"{names(trial.config)['model']} {_parameters(trial.plan)}, {_most(trial.config)}"
        for trial in distinct.values()
    ]
    yield f"models    {some(models)}"
    yield _memory(trials, gpus_per_trial)
    yield from dict.fromkeys(cut for trial in trials if (cut := _uneven_cut(trial.plan)))


def _memory(trials: Sequence[Trial], gpus_per_trial: float) -> str:
    """Return the line on the memory of a rank. To count activations takes seconds, as torch imports
    its compiler for it; a CPU's memory is rarely short."""
    states = in_bytes(max(trial.plan.memory_bytes for trial in trials))
    most = peak([trial for trial in trials if trial.config["device"] != "cpu"])
    if most is None:
        loss = in_bytes(max(trial.plan.loss_bytes for trial in trials))
        return (
            f"memory    {states} weights and states per rank, and {loss} in the loss of a "
            "microbatch; other activations aside"
        )
    sharing = int(1 / gpus_per_trial)
    of_gpu = f"; {sharing} trials share a GPU: {in_bytes(sharing * most)} of it" * (sharing > 1)
    line = f"memory    up to {in_bytes(most)} per rank in an update, of it {states} weights and"
    return f"{line} states{of_gpu}"


def peak(trials: Sequence[Trial]) -> int | None:
    """Return the most memory that an update of these trials needs; None if that is not known."""
    peaks = (peak_bytes(trial.config, trial.plan.num_updates) for trial in _of_each_size(trials))
    try:
        return max(peaks, default=None)
    except (NotImplementedError, RuntimeError):  # a model of one's own that reads numbers
        return None


def _of_each_size(trials: Sequence[Trial]) -> Iterable[Trial]:
    """Return one trial of each kind that may need another amount of memory."""
    kinds: dict[str, Trial] = {}
    for trial in trials:
        config = {**trial.config, **which_optimizer(trial.config)}
        kinds[json.dumps({k: v for k, v in config.items() if k not in NO_MEMORY})] = trial
    return kinds.values()


def storage(trials: Sequence[Trial], todo: Sequence[Trial]) -> str:
    """Return the line on storage, and on the host's memory, which holds a checkpoint of one process
    on a GPU while it is written."""
    kept = f"about {in_bytes(sum(trial.plan.kept_bytes for trial in trials))} kept of all trials"
    if not todo:
        return f"storage   {kept}"
    copied = copied_to_host(todo)
    in_host = f"; {in_bytes(copied)} of the host's memory while one is written" * bool(copied)
    return (
        f"storage   {kept}, and up to {in_bytes(max(map(while_it_runs, todo)))} for each that runs "
        f"(two checkpoints, estimated from its parameters; a third while ranks write){in_host}"
    )


def copied_to_host(todo: Sequence[Trial]) -> int:
    """Return the most bytes of the host's memory that one of the trials takes for a checkpoint.

    A trial in one process on a GPU copies its whole state there, and writes it in the background.
    """
    copied = (
        trial.plan.checkpoint_bytes
        for trial in todo
        if trial.config["device"] != "cpu" and trial.config["runner"] == "emulated"
    )
    return max(copied, default=0)


def while_it_runs(trial: Trial) -> int:
    """Return the bytes of disk that a running trial takes at most.

    It has a checkpoint and one that is written; of a true pipeline also what the ranks have sent.
    """
    return (2 + (trial.config["runner"] != "emulated")) * trial.plan.checkpoint_bytes


def in_bytes(number: float) -> str:
    """Return a number of bytes with three digits, in the unit that suits it."""
    for name in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {name}"
        number /= 1000
    return f"{number:.3g} TB"


def _parameters(plan: Plan) -> str:
    words = f"{plan.num_parameters:,} parameters"
    if plan.num_active_parameters == plan.num_parameters:
        return words
    return f"{words}, {plan.num_active_parameters:,} active per token"


def _most(config: Mapping[str, Any]) -> str:
    """Return the speed-up that no number of ranks exceeds, with a stage for each rank."""
    model: Recipe = build(config["model"])
    speed_ups: dict[int, float] = {}
    with suppress(BadInput):  # more stages than layers
        for p in range(1, MOST_RANKS + 1):
            split = model.split(p, config["seq_len"])
            speed_ups[p] = _over_slowest(model.work(split, config["seq_len"]))
    most = max(speed_ups.values())
    enough = next(p for p, speed_up in speed_ups.items() if speed_up > NEARLY * most)
    return f"{most:.3g} times as fast on {enough} ranks as on one, and on more no faster"


def _over_slowest(work: Sequence[float]) -> float:
    """Return how much faster than one rank several ranks are at most: all work over the slowest."""
    return sum(work) / max(work)


def _uneven_cut(plan: Plan) -> str | None:
    """Return the line on how the model is cut; None if the ranks are nearly equal."""
    work, layers = plan.work_by_rank, plan.layers_by_stage
    speed_up = _over_slowest(work)
    if speed_up >= EVEN * len(work):
        return None
    line = (
        f"split     stages of {', '.join(map(str, layers))} layers: {len(work)} ranks are at most "
        f"{speed_up:.3g} times as fast as one"
    )
    is_head_alone = len(work) == len(layers) and work[-1] == max(work) and layers[-1] == 0
    return line + "; so are more: the head alone is the slowest" * is_head_alone
