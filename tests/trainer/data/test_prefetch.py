"""Batches read ahead are the batches, whatever order they are asked for in."""

from threading import Event, get_ident

import pytest
import torch
from torch import Tensor

from pipegap.trainer.data.batches import Prefetched

CPU = torch.device("cpu")
WAIT = 30.0


class Source:
    """Notes which batches are read and by whom; those after `last` cannot be read."""

    def __init__(self, last: int = 100) -> None:
        self.done = [Event() for _ in range(last + 2)]
        self.threads: set[int] = set()
        self._last = last

    def __call__(self, batch: int) -> Tensor:
        self.threads.add(get_ident())
        self.done[batch].set()
        if batch > self._last:
            raise OSError(f"no batch {batch}")
        return torch.full((2, 3), batch)


def prefetched(source: Source) -> Prefetched:
    """Without a GPU there is nothing to pin."""
    return Prefetched(source, CPU, pin=lambda batch: batch)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [5, 5, 6, 2, 3, 50, 49]])
def test_each_is_the_one_that_was_asked_for(order: list[int]) -> None:
    batches = prefetched(Source())
    for number in order:
        assert torch.equal(batches(number), torch.full((2, 3), number))


def test_the_next_one_is_read_by_another_thread_before_it_is_asked_for() -> None:
    source = Source()
    batches = prefetched(source)
    batches(7)
    assert source.done[8].wait(WAIT)
    assert not source.done[9].is_set()
    batches(8)
    assert source.done[9].wait(WAIT)
    [reader] = source.threads
    assert reader != get_ident()


def test_an_error_is_raised_when_its_batch_is_asked_for() -> None:
    source = Source(last=3)
    batches = prefetched(source)
    assert int(batches(3)[0, 0]) == 3
    assert source.done[4].wait(WAIT)
    with pytest.raises(OSError, match="no batch 4"):
        batches(4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible to torch")
def test_pinned_copies_arrive_whole() -> None:
    source = torch.arange(64 * 1025 * 20).view(20, 64, 1025)
    batches = Prefetched(source.__getitem__, torch.device("cuda"))
    for number in range(19):
        found = batches(number)
        assert found.is_cuda
        assert torch.equal(found.cpu(), source[number])
