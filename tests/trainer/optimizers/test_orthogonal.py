"""The polynomials of Polar Express are the best ones, and nanochat without its parts is Muon."""

import numpy as np
import pytest
import torch
from torch import nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.optimizers.orthogonal import POLAR_EXPRESS
from tests.support.every_optimizer import maker

CUSHION, SAFETY = 0.02, 1.02


def test_polar_express_is_minimax() -> None:
    """By alternation (Chebyshev): an odd quintic whose error takes its largest size at four points
    of an interval with changing sign is closer to a constant there than any other.

    The constant is such that the smallest and the largest singular value end as far from 1.
    """
    low, high = 1e-3, 1.0
    for step, tabled in enumerate(POLAR_EXPRESS):
        safety = 1.0 if step == len(POLAR_EXPRESS) - 1 else SAFETY
        a, b, c = (factor * safety ** (2 * i + 1) for i, factor in enumerate(tabled))
        turns = np.sort(np.sqrt(np.roots([5 * c, 3 * b, a]).real))
        begin = max(low, CUSHION * high)
        assert begin < turns[0] < turns[1] < high
        x = np.array([begin, *turns, high])
        least, most, least_too, most_too = a * x + b * x**3 + c * x**5
        assert least_too == pytest.approx(least, rel=1e-10)
        assert most_too == pytest.approx(most, rel=1e-10)
        assert most > least
        assert a * low + b * low**3 + c * low**5 + most_too == pytest.approx(2, rel=1e-10)
        low = sum(factor * low ** (2 * i + 1) for i, factor in enumerate(tabled))
        high = 2 - low


def test_more_steps_than_polynomials_are_refused() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    for name in ("muon", "nanochat"):
        made = maker(name, orthogonalisation="polar_express", newton_schulz_steps=6)
        with pytest.raises(BadInput, match=r"newton_schulz_steps=6: must be at most 5"):
            made([("matrix", weight)])
