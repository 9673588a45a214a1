"""Asks Ray Tune's OptunaSearch for settings, and tells it what became of them.

Tune would ask it from a run of its own; a plan asks it again from the start, with the same seed and
with the losses that the store has, and gets the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.base.errors import BadInput

METRIC = "loss"
DIGITS = 4
"""Significant digits of a proposed number: a setting is written in full on a command line."""

Space = Mapping[str, tuple[float, float, bool] | Sequence[Any]]
"""Key → low, high and whether the scale is logarithmic; or the choices."""
Values = dict[str, Any]


class Sampler:
    """Optuna's TPE over `space`: the same answers give the same next question."""

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import optuna
            from ray.tune.search.optuna import OptunaSearch
        except ImportError:
            allowed = "needs the package optuna: pip install 'pipegap[search]'"
            raise BadInput("search", "optuna", allowed) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it prints on each study
        self._choices = {key: axis for key, axis in space.items() if not isinstance(axis, tuple)}
        drawn: dict[str, optuna.distributions.BaseDistribution] = {
            key: optuna.distributions.FloatDistribution(axis[0], axis[1], log=axis[2])
            if isinstance(axis, tuple)
            else optuna.distributions.CategoricalDistribution(axis)
            for key, axis in space.items()
        }
        self._search = OptunaSearch(drawn, metric=METRIC, mode="min", seed=seed)
        self._num_asked = 0

    def ask(self, number: int) -> list[tuple[str, Values]]:
        """So many settings, each with the name by which its loss is told."""
        names = [str(self._num_asked + index) for index in range(number)]
        self._num_asked += number
        return [(name, self._rounded(self._search.suggest(name))) for name in names]

    def tell(self, name: str, loss: float) -> None:
        """The loss at a setting that was asked for; infinite if it diverged."""
        self._search.on_trial_complete(name, {METRIC: loss})

    def _rounded(self, values: Values | None) -> Values:
        return {
            key: value if key in self._choices else float(f"{value:.{DIGITS}g}")
            for key, value in (values or {}).items()
        }
