"""Measured sharpness of a synchronous run beside the edges of stability: where does it stand?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.table.text import markdown, markdown_row
from analysis.theory.corrections import Hooks
from analysis.theory.filters import SAME, late
from analysis.theory.optimizers import linear
from analysis.theory.recursion import Loop
from analysis.theory.stability import largest_stable
from trainer.base.build import Node

if TYPE_CHECKING:
    from trainer.sharpness.measure import Sharpness  # torch is slow to import


class Standing(NamedTuple):
    """k = learning rate x curvature after `num_updates` updates, and the largest stable k there."""

    num_updates: int
    train_loss: float
    lr: float
    k: float
    sync: float
    delayed: float

    @property
    def of_sync(self) -> float:
        """k as a share of sync's limit."""
        return self.k / self.sync

    @property
    def of_delayed(self) -> float:
        """k as a share of the limit under the delay."""
        return self.k / self.delayed

    def plain(self) -> dict[str, Any]:
        """Its fields and both shares."""
        return {**self._asdict(), "of_sync": self.of_sync, "of_delayed": self.of_delayed}


def beside_limits(optimizer: Node, found: Iterable[Sharpness], delay: int) -> Iterator[Standing]:
    """Each measurement with the limits of the optimizer as it stands then.

    Raises BadInput for an optimizer that is not linear.
    """
    linear(optimizer)  # refuses before anything is trained
    for one in found:
        filtered = linear(optimizer, one.num_updates)
        sync, delayed = (
            largest_stable(Loop(filtered, hooks)) for hooks in (Hooks(SAME), Hooks(late(delay)))
        )
        yield Standing(one.num_updates, one.train_loss, one.lr, one.k, sync, delayed)


def head(delay: int) -> str:
    """The head of the table of `line`s."""
    heads = ("updates", "train loss", "lr", "k", "of sync's limit", f"of that of delay {delay}")
    return markdown(heads)


def line(one: Standing) -> str:
    """A row of it."""
    cells = [f"{one.num_updates:,}", f"{one.train_loss:.3f}", f"{one.lr:.3g}"]
    shares = [f"{share:.2f}" for share in (one.k, one.of_sync, one.of_delayed)]
    return markdown_row([*cells, *shares])


def verdict(found: Sequence[Standing], delay: int) -> str:
    """Where the run stands, in words."""
    if not found:
        return "the run diverged before it was measured"
    most = max(found, key=lambda one: one.of_delayed)
    at = f"your run sits at {most.of_delayed:.2f} of the limit of a delay of {delay}"
    where = f"{at} at its sharpest (after {most.num_updates:,} updates)"
    if most.of_delayed <= 1:
        return f"{where}: within it, the delay acts on the noise alone"
    return (
        f"warning: {where}: a delayed run cannot train there, and has to stay where it is flatter"
    )
