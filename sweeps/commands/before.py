"""The first updates of a trial, tried before others begin."""

from collections.abc import Callable, Sequence

from sweeps.request.expand import Trial
from sweeps.store.results import finished


def try_first(
    todo: Sequence[Trial],
    planned: Sequence[Trial],
    wanted: bool | None,
    gpus_per_trial: float,
    where: str,
    asked_to_stop: Callable[[], bool],
) -> None:
    """Trains the first updates of the largest trial to do, unless some planned trial has ended.

    With `wanted` None only where a trial takes GPUs. `where` names the store. Raises Unavailable in
    one line if the updates fail.
    """
    on_gpus = [trial for trial in todo if trial.config["device"] != "cpu"]
    is_wanted = bool(on_gpus) if wanted is None else wanted
    if not is_wanted or any(finished(trial) is not None for trial in planned):
        return
    from sweeps.cluster import first_trial  # Ray is slow

    for line in first_trial.try_first(on_gpus or todo, gpus_per_trial, where, asked_to_stop):
        print(line, flush=True)
