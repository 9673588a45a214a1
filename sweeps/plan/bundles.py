"""What a trial occupies of a cluster: cores and GPUs."""

from __future__ import annotations

from sweeps.request.expand import Trial


def bundles(trial: Trial, gpus_per_trial: float) -> list[dict[str, float]]:
    """The placement group of a trial: its process and, for a gang, one bundle per rank.

    The process that supervises a gang takes nothing. A rank has a whole GPU: two ranks on one would
    wait for each other.
    """
    cpus = {"CPU": float(trial.config["num_threads"])}
    on_gpus = trial.config["device"] != "cpu"
    if trial.config["runner"] == "emulated":
        return [{**cpus, "GPU": gpus_per_trial} if on_gpus else cpus]
    return [{}, *[{**cpus, "GPU": 1.0} if on_gpus else cpus] * trial.plan.num_processes]


def unit(trial: Trial) -> str:
    """The resource that the price of the trial counts: GPU or core."""
    return "core" if trial.config["device"] == "cpu" else "GPU"


def occupied(trial: Trial, gpus_per_trial: float) -> float:
    """How many units the trial occupies, all ranks together."""
    resource = {"core": "CPU", "GPU": "GPU"}[unit(trial)]
    return sum(bundle.get(resource, 0.0) for bundle in bundles(trial, gpus_per_trial))
