"""What machines that work together must share: the store and the data, under the same paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import yaml

from sweeps.request.command_line import Request
from sweeps.request.overrides import overrides
from sweeps.store.store import SweepStore
from trainer.base.errors import BadInput
from trainer.base.places import CONF

PATHS = ("data.path", "data.shards", "resume_from")
"""Keys of a trial that name files outside its folder."""

ANSWER_WITHIN = 60.0
"""Seconds that a node has to answer."""


def require_shared(asked: Request) -> None:
    """Raises BadInput for a relative path: a job runs in a copy of the code, on another machine."""
    _require_absolute("results", str(asked.results))
    paths = [(key, path) for key, path in _words(asked) if key in PATHS]
    for key, path in paths:
        _require_absolute(key, path)
    given = dict(_words(asked))
    needed = ["data.path", *(key for key in PATHS if key in _keys_of_data(given.get("data", "")))]
    for key in needed:
        if key not in given:
            raise BadInput(key, "", _ALLOWED)


_ALLOWED = "must be given as an absolute path, on storage that all nodes share"


def _require_absolute(key: str, path: str) -> None:
    if not os.path.isabs(path):
        raise BadInput(key, path, _ALLOWED)


def _keys_of_data(choice: str) -> set[str]:
    """The keys of a choice of data of conf/; none of another one."""
    path = CONF / "data" / f"{choice}.yaml"
    found = yaml.safe_load(path.read_text()) if choice and path.is_file() else {}
    return {f"data.{key}" for key in found}


def _words(asked: Request) -> Iterator[tuple[str, str]]:
    """Every key that a sweep sets anywhere, with its value."""
    for sweep in asked.sweeps.values():
        swept = [
            word
            for key, values in sweep.grid.items()
            for value in values
            for word in overrides(key, value)
        ]
        for word in [*sweep.base, *swept, *(w for arm in sweep.arms.values() for w in arm)]:
            key, _, value = word.partition("=")
            yield key, value


def require_seen_by_nodes(store: SweepStore) -> None:
    """Raises BadInput if a node does not see the store, or another one under its name.

    Every other node must see what the driver has made, and fail to create it exclusively. Nodes
    that join later are not checked.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] != here]
    if not others:
        return
    task: Any = ray.remote(_sees)
    with store.probe() as sees:
        answers = {
            node["NodeManagerAddress"]: task.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(sees)
            for node in others
        }
        for address, answer in answers.items():
            with suppress(ray.exceptions.RayError):  # the node has left, or is busy
                if not ray.get(answer, timeout=ANSWER_WITHIN):
                    allowed = "must be storage that all nodes share: node"
                    raise BadInput("results", store.name, f"{allowed} {address} does not see it")


def _sees(sees: Callable[[], bool]) -> bool:
    """Whether this node sees what the driver made."""
    return sees()
