"""What one call of `Schedule2BW.step` makes: the forwards and backwards of one rank, as data."""

from typing import Any, NamedTuple

from trainer.torch_pipelining.neighbours import BACKWARD, FORWARD


class Move(NamedTuple):
    """The forward or the backward of one microbatch of a batch."""

    kind: str
    batch: int
    microbatch: int


class Given(NamedTuple):
    """What a batch's forwards get, one item per microbatch, and what its loss gets beside."""

    args: list[Any]
    kwargs: list[Any]
    targets: list[Any] | None
    of_loss: dict[str, Any]
    keep_outputs: bool


def window(batch: int, num_microbatches: int, lead: int, waiting: int) -> list[Move]:
    """1F1B without an end: each forward, and the backward that became due `lead` before it.

    `waiting` microbatches of the batch before have yet to go backward: `lead`, or 0 after a drain.
    """
    passes, m = [], num_microbatches
    for i in range(m):
        passes.append(Move(FORWARD, batch, i))
        if i >= lead:
            passes.append(Move(BACKWARD, batch, i - lead))
        elif waiting:
            passes.append(Move(BACKWARD, batch - 1, m + i - lead))
    return passes


def rest(batch: int, num_microbatches: int, waiting: int) -> list[Move]:
    """The backwards that end the batch, at a drain."""
    return [Move(BACKWARD, batch, num_microbatches - n) for n in range(waiting, 0, -1)]
