"""The sharpness of a synchronous run beside the edges of stability."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.table.text import markdown, markdown_row
from analysis.theory.linear import linear
from analysis.theory.recursion import SAME, Hooks, Loop, late
from analysis.theory.stability import largest_stable
from trainer.base.build import Node

if TYPE_CHECKING:
    from trainer.sharpness import Sharpness  # torch is slow to import


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


def beside_limits(
    optimizer: Node, measured: "Iterable[Sharpness]", delay: int
) -> Iterator[Standing]:
    """Each measurement with the limits of the optimizer as it stands then.

    Raises BadInput for an optimizer that is not linear.
    """
    linear(optimizer)  # refuses before anything is trained
    for sharpness in measured:
        filtered = linear(optimizer, sharpness.num_updates)
        sync, delayed = (
            largest_stable(Loop(filtered, hooks)) for hooks in (Hooks(SAME), Hooks(late(delay)))
        )
        yield Standing(
            sharpness.num_updates, sharpness.train_loss, sharpness.lr, sharpness.k, sync, delayed
        )


def standing_head(delay: int) -> str:
    """The head of a Markdown table of `standing_row`s."""
    heads = ("updates", "train loss", "lr", "k", "of sync's limit", f"of that of delay {delay}")
    return markdown(heads)


def standing_row(standing: Standing) -> str:
    """The row of a measurement."""
    cells = [f"{standing.num_updates:,}", f"{standing.train_loss:.3f}", f"{standing.lr:.3g}"]
    shares = [f"{share:.2f}" for share in (standing.k, standing.of_sync, standing.of_delayed)]
    return markdown_row([*cells, *shares])


def where_it_stands(standings: Sequence[Standing], delay: int) -> str:
    """Where the run stands, in words."""
    if not standings:
        return "the run diverged before it was measured"
    most = max(standings, key=lambda standing: standing.of_delayed)
    at = f"your run sits at {most.of_delayed:.2f} of the limit of a delay of {delay}"
    where = f"{at} at its sharpest (after {most.num_updates:,} updates)"
    if most.of_delayed <= 1:
        return f"{where}: within it, the delay acts on the noise alone"
    return (
        f"warning: {where}: a delayed run cannot train there, and has to stay where it is flatter"
    )
