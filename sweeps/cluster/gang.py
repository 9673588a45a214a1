"""Runs the ranks of a gang as Ray actors, each in its bundle of the trial's placement group."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from queue import SimpleQueue
from time import monotonic
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.watch import START_UP, AskedToStop, Cause, Vital, last_words, watch

Address = tuple[str, int]


class RankActor:
    """One rank. Its methods are called side by side: `run` lasts as long as the trial."""

    def __init__(self, index: int) -> None:
        self._index, self._stop = index, [0]
        self._beats = [monotonic() + START_UP] * (index + 1)
        self._store: Any = None

    def invite(self) -> Address:
        """Opens the store at which the ranks meet, on the address that Ray itself listens on."""
        import torch.distributed as dist

        host = ray.util.get_node_ip_address()
        listener = socket.create_server((host, 0))
        port: int = listener.getsockname()[1]
        self._store = dist.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=START_UP),
            master_listen_fd=listener.detach(),
        )
        return host, port

    def run(
        self, program: Callable[..., None], arguments: Sequence[object], address: Address
    ) -> Iterator[object]:
        """Yields what the rank tells, its last words at the end."""
        import torch.distributed as dist

        from trainer.gang import Pulse
        from trainer.spawn import stay_on_loopback

        os.environ["LOCAL_RANK"] = "0"  # Ray shows a rank its own GPU alone
        host, port = address
        if host.startswith("127."):
            stay_on_loopback()
        told: SimpleQueue[object] = SimpleQueue()
        over = object()

        def work() -> None:
            store = self._store or dist.TCPStore(host, port, is_master=False)
            pulse = Pulse(self._beats, self._index, self._stop)
            told.put(last_words(self._index, lambda: program(store, pulse, told.put, *arguments)))
            told.put(over)

        threading.Thread(target=work, daemon=True).start()
        while (word := told.get()) is not over:
            yield word

    def vital(self) -> tuple[float, bool]:
        """Seconds since the rank got on; whether it waits for another."""
        beat = self._beats[self._index]
        return monotonic() - abs(beat), beat < 0

    def ask_to_stop(self) -> None:
        """The rank stops when it can."""
        self._stop[0] = 1


def run_gang_on_ray(
    program: Callable[..., None],
    arguments: Sequence[object],
    num_ranks: int,
    hear: Callable[[Any], None],
    timeout: float,
    asked_to_stop: AskedToStop,
) -> None:
    """Runs a gang in the placement group of this task, a bundle a rank: see `Launch`."""
    group = get_current_placement_group()
    assert group is not None, "Tune runs a trial in its group"
    actors = [_start(group, index) for index in range(num_ranks)]
    try:
        address = ray.get(actors[0].invite.remote(), timeout=START_UP)
        words = [
            actor.run.options(num_returns="streaming").remote(program, arguments, address)
            for actor in actors
        ]
        watch(RayRanks(actors, words), num_ranks, hear, timeout, asked_to_stop)
    finally:
        for actor in actors:
            ray.kill(actor)


def _start(group: PlacementGroup, index: int) -> Any:
    bundle = group.bundle_specs[index]
    return (
        ray.remote(RankActor)
        .options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        )
        .remote(index)
    )


class RayRanks:
    """The actors of a gang, and what they tell."""

    def __init__(self, actors: Sequence[Any], words: Sequence[Any]) -> None:
        self._actors = actors
        self._running: dict[Any, int] = dict(zip(words, range(len(words)), strict=True))
        self._asked = False
        self._answers: dict[Any, int] = {}
        self._vitals = [(monotonic() + START_UP, False)] * len(actors)
        self._heard = [monotonic() + START_UP] * len(actors)

    def told(self, patience: float) -> Iterable[tuple[int, object]]:
        """See `Ranks`."""
        ready: list[Any] = ray.wait([*self._running], num_returns=1, timeout=patience)[0]
        for words in ready:
            index = self._running[words]
            try:
                word: object = ray.get(next(words))
            except StopIteration:
                del self._running[words]
                continue
            except ray.exceptions.RayError as error:
                del self._running[words]
                word = Cause(0, monotonic(), f"rank {index} died: {error}")
            yield index, word

    def vitals(self) -> list[Vital]:
        """See `Ranks`. An actor that does not answer is not awake."""
        silent = set(range(len(self._actors))) - set(self._answers.values())
        self._answers |= {self._actors[index].vital.remote(): index for index in silent}
        ready, _ = ray.wait([*self._answers], num_returns=len(self._answers), timeout=0)
        now = monotonic()
        for answer in ready:
            index = self._answers.pop(answer)
            try:
                idle, waits = ray.get(answer)
            except ray.exceptions.RayError:
                continue  # it died, which is heard of in `told`
            self._vitals[index], self._heard[index] = (now - idle, waits), now
        return [
            Vital(now - beat, now - heard, waits)
            for (beat, waits), heard in zip(self._vitals, self._heard, strict=True)
        ]

    def ask_to_stop(self) -> None:
        """See `Ranks`."""
        if not self._asked:
            self._asked = True
            for actor in self._actors:
                actor.ask_to_stop.remote()
