"""Runs the ranks of a gang as Ray actors, each in a bundle of the trial's placement group."""

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pipegap.trainer.base.errors import GangFailed, first_line
from pipegap.trainer.ranks.spawn import START_UP, Cause, Liveness, Parent, exit_message, supervise

Address = tuple[str, int]


class RankActor:
    """One rank. Other methods are called while `run` lasts, which is as long as the trial."""

    def __init__(self, index: int) -> None:
        self._index, self._stop = index, [0]
        # Each rank writes its own entry, as where all ranks of a gang share one array. The first
        # beat lies ahead: the rank has START_UP seconds until its first progress.
        self._beats = [monotonic() + START_UP] * (index + 1)
        self._store: Any = None

    def open_store(self) -> Address:
        """Open the store by which the ranks find each other; return its host and port.

        It listens on the address that Ray itself listens on.
        """
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
            master_listen_fd=listener.detach(),  # of a bound socket: nobody can take its port
        )
        return host, port

    def run(
        self, program: Callable[..., None], arguments: Sequence[object], address: Address
    ) -> Iterator[object]:
        """Yields the messages of the rank, its exit message last."""
        import torch.distributed as dist

        from pipegap.trainer.ranks.groups import Heartbeat
        from pipegap.trainer.ranks.spawn import listen_on, stay_on_loopback

        os.environ["LOCAL_RANK"] = "0"  # Ray shows a rank its own GPU alone
        # Ray listens on loopback where a driver has a cluster of its own: so must the ranks.
        host, port = address
        if host.startswith("127."):
            stay_on_loopback()
        else:
            listen_on(ray.util.get_node_ip_address())
        messages: SimpleQueue[object] = SimpleQueue()
        end = object()

        def work() -> None:
            store = self._store or dist.TCPStore(host, port, is_master=False)
            heartbeat = Heartbeat(self._beats, self._index, self._stop)
            run = partial(program, store, heartbeat, messages.put, *arguments)
            messages.put(exit_message(self._index, run))
            messages.put(end)

        # In a thread: Ray pulls the messages one by one, and the rank waits for nobody to do so.
        threading.Thread(target=work, daemon=True).start()
        while (message := messages.get()) is not end:
            yield message

    def liveness(self) -> tuple[float, bool]:
        """Return the seconds since the rank made progress, and whether it waits for another."""
        beat = self._beats[self._index]  # a negative time: the rank waits for another one
        return monotonic() - abs(beat), beat < 0

    def ask_to_stop(self) -> None:
        """Asks the rank to stop at its next drain."""
        self._stop[0] = 1


def run_gang_on_ray(
    program: Callable[..., None], arguments: Sequence[object], num_ranks: int, parent: Parent
) -> None:
    """Runs a gang in the placement group of this task, one bundle per rank: see `Launch`."""
    group = get_current_placement_group()
    assert group is not None, "Tune runs a trial in its group"
    nodes: dict[int, str] = ray.util.placement_group_table(group)["bundles_to_node_id"]
    # The supervisor's bundle is empty, so Ray leaves it out: the group has the ranks' alone.
    order = by_node([nodes[bundle] for bundle in range(num_ranks)])
    actors = [_start(group, bundle, index) for index, bundle in enumerate(order)]
    try:
        address = _address_of(actors[0])
        streams = [
            actor.run.options(num_returns="streaming").remote(program, arguments, address)
            for actor in actors
        ]
        supervise(RayRanks(actors, streams), num_ranks, parent)
    finally:
        # An actor whose rank hangs in a collective does not end by itself.
        for actor in actors:
            ray.kill(actor)


def _address_of(first: Any) -> Address:
    """Where rank 0 has opened the store. Raises GangFailed if it dies, or takes too long."""
    try:
        return ray.get(first.open_store.remote(), timeout=START_UP)
    except ray.exceptions.RayError as error:
        raise GangFailed(f"rank 0 died while it started: {first_line(error)}") from None


def by_node(nodes: Sequence[str]) -> list[int]:
    """Return the bundles, whose nodes are given, so that those of a node come one after the other.

    Neighbours in the pipeline then share a node where they can. Ray packs bundles on few nodes, but
    of many equal ones it keeps no order (C++'s std::sort, which is not stable from 17 on).
    """
    return sorted(range(len(nodes)), key=lambda bundle: nodes.index(nodes[bundle]))


def _start(group: PlacementGroup, number: int, index: int) -> Any:
    bundle = group.bundle_specs[number]
    return (
        ray.remote(RankActor)
        .options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,  # `liveness` and `ask_to_stop` while `run` lasts
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        )
        .remote(index)
    )


class RayRanks:
    """The actors of a gang, and the streams of their messages, one per actor."""

    def __init__(self, actors: Sequence[Any], streams: Sequence[Any]) -> None:
        self._actors = actors
        self._running: dict[Any, int] = dict(zip(streams, range(len(streams)), strict=True))
        self._asked = False
        self._answers: dict[Any, int] = {}
        self._liveness = [(monotonic() + START_UP, False)] * len(actors)
        self._answered = [monotonic() + START_UP] * len(actors)

    def receive(self, timeout: float) -> Iterable[tuple[int, object]]:
        """See `Ranks`."""
        ready: list[Any] = ray.wait([*self._running], num_returns=1, timeout=timeout)[0]
        for stream in ready:
            index = self._running[stream]
            try:
                message: object = ray.get(next(stream))
            except StopIteration:
                del self._running[stream]
                continue
            except ray.exceptions.RayError as error:
                del self._running[stream]
                message = Cause(0, monotonic(), f"rank {index} died: {error}")
            yield index, message

    def liveness(self) -> list[Liveness]:
        """See `Ranks`. An actor that does not answer is silent."""
        unasked = set(range(len(self._actors))) - set(self._answers.values())
        self._answers |= {self._actors[index].liveness.remote(): index for index in unasked}
        ready, _ = ray.wait([*self._answers], num_returns=len(self._answers), timeout=0)
        time_now = monotonic()
        for answer in ready:
            index = self._answers.pop(answer)
            try:
                idle, waits = ray.get(answer)
            except ray.exceptions.RayError:
                continue  # it died: `receive` says so
            self._liveness[index], self._answered[index] = (time_now - idle, waits), time_now
        return [
            Liveness(time_now - beat, time_now - answered, waits)
            for (beat, waits), answered in zip(self._liveness, self._answered, strict=True)
        ]

    def ask_to_stop(self) -> None:
        """See `Ranks`."""
        if not self._asked:
            self._asked = True
            for actor in self._actors:
                actor.ask_to_stop.remote()
