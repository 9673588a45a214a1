"""What a trial occupies of a cluster."""

from __future__ import annotations

from sweeps.expand import Trial


def bundles(trial: Trial, gpus_per_trial: float) -> list[dict[str, float]]:
    """What the trial occupies: its process, and each rank of a gang.

    The process that watches a gang takes nothing. Ranks have whole GPUs: two on one would wait for
    each other.
    """
    cpus = {"CPU": float(trial.config["num_threads"])}
    on_gpus = trial.config["device"] != "cpu"
    if trial.config["runner"] == "emulated":
        return [{**cpus, "GPU": gpus_per_trial} if on_gpus else cpus]
    return [{}, *[{**cpus, "GPU": 1.0} if on_gpus else cpus] * trial.plan.num_processes]


def unit(trial: Trial) -> str:
    """What is paid for while the trial runs: GPU or core."""
    return "core" if trial.config["device"] == "cpu" else "GPU"


def occupied(trial: Trial, gpus_per_trial: float) -> float:
    """How many of these it occupies, all ranks together."""
    resource = {"core": "CPU", "GPU": "GPU"}[unit(trial)]
    return sum(bundle.get(resource, 0.0) for bundle in bundles(trial, gpus_per_trial))
