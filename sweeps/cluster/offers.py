"""Hands the trials of a driver's queue to Tune, one whenever a slot may be free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.tune.search import Searcher

from sweeps.cluster.queue import TrialQueue
from trainer.base.status import Status

Payload = Mapping[str, Any]
Bundles = list[dict[str, float]]


class Offers(Searcher):
    """Suggests the trials of `queue`: see Tune's `Searcher`.

    `payload` makes of an id what Tune hands to a worker. No more trials are suggested than Ray has
    slots for, and one. Tune's run ends when none runs here and the queue has none for now.
    """

    def __init__(
        self,
        queue: TrialQueue,
        payload: Callable[[str], Payload],
        num_slots: Callable[[], int],
        asked_to_stop: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._queue, self._payload = queue, payload
        self._num_slots, self._asked_to_stop = num_slots, asked_to_stop
        self._live: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles it for a restore that we never make."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing, likewise: the store alone says what is done."""

    def suggest(self, trial_id: str) -> Any:
        """Called by Tune for a new trial, which it names `trial_id`."""
        if self._asked_to_stop():
            return Searcher.FINISHED
        if len(self._live) > self._num_slots():
            return None
        chosen = self._queue.next()
        if chosen is not None:
            self._live[trial_id] = chosen
            return {"trial": self._payload(chosen)}
        return None if self._live or self._queue.has_turns else Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called by Tune when a trial has ended, for the last time if it failed."""
        chosen = self._live.pop(trial_id)
        if result is not None and result.get("status") == Status.ELSEWHERE and not error:
            self._queue.put_back(chosen)


def num_slots(bundles: Bundles) -> int:
    """How many trials with these bundles the cluster has room for, now that it has its nodes."""
    available = ray.cluster_resources()
    needed: dict[str, float] = {}
    for bundle in bundles:
        for resource, amount in bundle.items():
            needed[resource] = needed.get(resource, 0.0) + amount
    return min(
        (int(available.get(key, 0.0) / amount) for key, amount in needed.items() if amount),
        default=1,
    )
