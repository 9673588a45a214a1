"""The state of a gang's model: on the recording rank it takes a disk, and hardly any memory."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from pipegap.trainer.parts import build_pipelined
from pipegap.trainer.ranks.groups import Gang
from tests.support.ranks import Send, on_ranks, prepare

PAGE = 4096


@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_recording_rank_never_has_the_whole_state_in_memory(tmp_path: Path, p: int) -> None:
    """The most memory that it takes is a part of one rank's share, and nothing of p."""
    told: list[dict[str, int]] = []
    on_ranks(_measured, (str(tmp_path), p), told.append, num_stages=p)
    [of] = told
    assert of["whole"] > 60e6
    assert of["most"] < 0.25 * of["whole"], of
    assert of["same"], "and it is the state of the weights that it was taken of"
    assert not [*tmp_path.iterdir()], "the files have no names"


def _measured(gang: Gang, send: Send, folder: str, p: int) -> None:
    words = f"pipeline.num_stages={p}", f"results={folder}", "num_updates=1000"
    config, parts = prepare(p, "pipedream_2bw", *words)
    executor = build_pipelined(config, parts, gang)
    executor.run(0, 2, lambda update: None)
    gang.barrier()
    with _peak_of_anonymous_memory() as most:
        state = executor.state()
    if not gang.records:
        return
    tensors = [value for of in state.values() for value in _tensors(of)]
    mine = super(type(executor), executor).state()
    send(
        {
            "whole": sum(tensor.nbytes for tensor in tensors),
            "most": most[0],
            "same": all(
                torch.equal(ours, theirs)
                for name in mine
                for ours, theirs in zip(_tensors(mine[name]), _tensors(state[name]), strict=True)
            ),
        }
    )


def _tensors(node: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(node) if isinstance(leaf, torch.Tensor)]


@contextmanager
def _peak_of_anonymous_memory() -> Iterator[list[int]]:
    """Yields a list; at exit its entry says how many bytes were taken that no file holds."""
    first, ended, most = _anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not ended.is_set():
            most[0] = max(most[0], _anonymous() - first)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
        most[0] = max(most[0], _anonymous() - first)
    finally:
        ended.set()
        watcher.join()


def _anonymous() -> int:
    _, resident, of_files, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(of_files)) * PAGE
