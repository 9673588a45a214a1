"""Corrections of conf/correction/ as linear filters around the optimizer, or why they are none.

The filters stand where the hooks of `trainer.corrections.none.NoCorrection` stand: before the
optimizer (`gradient`), after it (`apply`), and where the weights are read (`ahead`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.theory.filters import SAME, Filter, change, late
from trainer.base.build import Node, published
from trainer.base.errors import BadInput

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Hooks:
    """A delay and what is done about it.

    `read`: weights W → those at which the gradient is taken, delay included. `gradient`: raw
    gradients → what the optimizer gets. `applied`: updates u → W(t) − W(t+1).
    """

    read: Filter
    gradient: Filter = SAME
    applied: Filter = SAME


def hooks(node: Node, delay: int) -> Hooks:
    """The filters of a correction with its settings, under a delay in updates.

    Raises BadInput for a correction that is not linear, with the reason.
    """
    address = published(node["_target_"])
    if address not in LINEAR:
        name = address.rpartition(".")[2]
        raise BadInput("correction", name, NOT_LINEAR.get(address, UNKNOWN))
    return (
        LINEAR[address](node, delay) if delay else Hooks(SAME)
    )  # fresh gradients are not corrected


def _error_feedback(settings: Settings, delay: int) -> Hooks:
    """u_t + λ (u_t − u_{t−lag})."""
    lag = delay if settings["lag"] == "delay" else 1
    return Hooks(late(delay), applied=SAME + settings["coefficient"] * change(lag))


def _matched_error_feedback(settings: Settings, delay: int) -> Hooks:
    """u_t + λ τ (u_t − u_{t−lag})."""
    return _error_feedback({**settings, "coefficient": settings["coefficient"] * delay}, delay)


def _gradient_error_feedback(settings: Settings, delay: int) -> Hooks:
    """g_t + λ (g_t − g_{t−1})."""
    return Hooks(late(delay), gradient=SAME + settings["coefficient"] * change())


def _weight_prediction(settings: Settings, delay: int) -> Hooks:
    """W(v) − h τ u_{v−1}, and u_{v−1} is W(v−1) − W(v)."""
    return Hooks(late(delay) * (SAME + settings["horizon"] * delay * change()))


def _taylor(settings: Settings, delay: int) -> Hooks:
    """g + λ D (W(t) − W(version)) with D held at the curvature: λ is the share that is undone."""
    share = settings["coefficient"]
    return Hooks((1 - share) * late(delay) + share * SAME)


_HERE = "trainer.corrections"
LINEAR: Mapping[str, Callable[[Settings, int], Hooks]] = {
    f"{_HERE}.none.NoCorrection": lambda settings, delay: Hooks(late(delay)),
    f"{_HERE}.error_feedback.ErrorFeedback": _error_feedback,
    f"{_HERE}.matched_error_feedback.MatchedErrorFeedback": _matched_error_feedback,
    f"{_HERE}.error_feedback_gradient.GradientErrorFeedback": _gradient_error_feedback,
    f"{_HERE}.weight_prediction.WeightPrediction": _weight_prediction,
    f"{_HERE}.taylor.Taylor": _taylor,
}
"""Published address of a correction → its filters under a positive delay."""

UNKNOWN = "is not covered by the theory"
NOT_LINEAR: Mapping[str, str] = {
    f"{_HERE}.adaptive_error_feedback.AdaptiveErrorFeedback": (
        "is not linear: its coefficient follows the updates"
    ),
    f"{_HERE}.learning_rate.LearningRate": (
        "has no fixed recursion: its factor changes during the run"
    ),
}
"""Published address → why there are no such filters, where the reason is known."""
STRENGTHS = ("coefficient", "horizon")
"""The settings that say how much is done about the delay; a correction has at most one of them."""
