"""Data parallelism on a slow link: a delay of one update hides the sum of gradients.

    python -m examples.overlap.all_reduce   # two processes on a CPU, by gloo

It is for slow links between sites only. Within a site a sum hides behind its own batch's backward:
to give that of a 256-GPU run a stream of its own won .06 % of a step, less than what runs differ by
(NVIDIA/Megatron-LM 6973), and a delay costs loss.

A sum begins after a batch's backward and must have arrived when the optimizer steps its gradient:
at once, but after the next backward by `DelayedOptimizer(keep="gradients")`. The link is slow by
decree: a sum takes `--link` seconds at least. Three runs of the same batches:

- blocking: no delay, each sum is waited for at once;
- overlapped: a delay of one update, with Error Feedback;
- late and blocking: the overlapped run, but each sum is waited for at once: the same losses.

A `clip_norm` or a correction of gradients would see the local ones: the hook comes after it.
"""

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from pipegap.trainer.delayed import DelayedOptimizer

RANKS, ROWS, WIDTH = 2, 256, 512


class Sums:
    """The gradients of `weights`, summed over all ranks: begun and taken batch by batch."""

    def __init__(self, weights: Sequence[nn.Parameter], link: float) -> None:
        self._weights, self._link = weights, link
        self._running: deque[tuple[Tensor, dist.Work, float]] = deque()  # with its arrival
        self.waited = 0.0  # seconds

    def begin(self) -> None:
        """Begins the sum of a batch's gradients, after its backward."""
        flat = torch.cat([weight.grad.flatten() for weight in self._weights])
        work = dist.all_reduce(flat, async_op=True)
        self._running.append((flat, work, time.monotonic() + self._link))

    def take(self, *_: Any) -> None:
        """Waits for the oldest sum and gives the weights its mean: a hook before a step."""
        flat, work, arrival = self._running.popleft()
        start = time.monotonic()
        work.wait()
        time.sleep(max(0.0, arrival - time.monotonic()))  # as a slow link would take
        self.waited += time.monotonic() - start
        parts = (flat / RANKS).split([weight.numel() for weight in self._weights])
        for weight, part in zip(self._weights, parts, strict=True):
            weight.grad.copy_(part.view_as(weight))


class Run(NamedTuple):
    """Mean loss of each batch over the ranks; seconds in all, and of these waiting for sums."""

    losses: list[float]
    seconds: float
    waited: float


def train(delay: int, link: float, updates: int, *, at_once: bool = False) -> Run:
    """One run on this rank's rows; `at_once` waits for each sum before `step` instead of in it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    adamw = torch.optim.AdamW(model.parameters(), lr=0.002)
    sums = Sums([*model.parameters()], link)
    if not at_once:
        adamw.register_step_pre_hook(sums.take)
    optimizer = DelayedOptimizer(adamw, delay, keep="gradients", num_updates=updates)
    losses, start = [], time.monotonic()
    for number in range(updates):
        generator = torch.Generator().manual_seed(number * RANKS + dist.get_rank())
        inputs = torch.randn(ROWS, WIDTH, generator=generator)
        loss = mse_loss(model(inputs), inputs[:, :8].sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        sums.begin()  # before `step`, which with a delay takes the sum of the batch before
        if at_once:
            sums.take()
        optimizer.step()
        losses.append(loss.detach())
    optimizer.finish()
    seconds = time.monotonic() - start
    means = torch.stack(losses)
    dist.all_reduce(means)
    return Run((means / RANKS).tolist(), seconds, sums.waited)


def compare(rank: int, meeting: str, words: argparse.Namespace) -> None:
    """The three runs; rank 0 prints a line for each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    runs = {
        "blocking": train(0, words.link, words.updates),
        "overlapped": train(1, words.link, words.updates),
        "late and blocking": train(1, words.link, words.updates, at_once=True),
    }
    if rank == 0:
        for name, (losses, seconds, waited) in runs.items():
            print(f"{name:17} {seconds:6.2f} s, waited {waited:5.2f} s, last loss {losses[-1]:.5f}")
        is_same = runs["overlapped"].losses == runs["late and blocking"].losses
        print(f"the losses of both late runs are {'equal' if is_same else 'NOT equal'} to the bit")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--link", type=float, default=0.05, help="seconds that a sum takes at least"
    )
    parser.add_argument("--updates", type=int, default=40)
    with tempfile.TemporaryDirectory() as folder:
        arguments = f"file://{folder}/meeting", parser.parse_args()
        torch.multiprocessing.spawn(compare, arguments, nprocs=RANKS)
