"""Learning-rate schedules: update t of T → factor on the peak learning rate.

All warm up linearly by (t + 1) / num_warmup, so that no update has a learning rate of zero.
"""

import math
from collections.abc import Callable
from typing import Annotated

from annotated_types import Interval

Factor = Callable[[int], float]
Share = Annotated[float, Interval(ge=0, le=1)]


def _with_warmup(num_updates: int, warmup: float, decay: Callable[[float], float]) -> Factor:
    """A linear warm-up, then `decay`.

    `decay` maps the progress after the warm-up (0 at its first update, 1 at the last) to a factor.
    """
    num_warmup = round(warmup * num_updates)
    # − 1: the last update is num_updates − 1, and its factor is the final one.
    num_decay = max(1, num_updates - num_warmup - 1)

    def factor(update: int) -> float:
        if update < num_warmup:
            return (update + 1) / num_warmup
        return decay(min(1.0, (update - num_warmup) / num_decay))

    return factor


def cosine(num_updates: int, *, warmup: Share, final: Share) -> Factor:
    """Half a cosine from 1 to `final` (the paper: warm-up 10 %, final 10 %)."""
    return _with_warmup(
        num_updates, warmup, lambda x: final + (1 - final) * (1 + math.cos(math.pi * x)) / 2
    )


def linear(num_updates: int, *, warmup: Share, final: Share) -> Factor:
    """A straight line from 1 to `final`."""
    return _with_warmup(num_updates, warmup, lambda x: 1 - (1 - final) * x)


def wsd(num_updates: int, *, warmup: Share, decay: Share, final: Share) -> Factor:
    """Warm-up, stable, decay (MiniCPM, arXiv 2404.06395): the last `decay` share is linear."""

    def stable_then_linear(x: float) -> float:
        return 1 - (1 - final) * max(0.0, (x - (1 - decay)) / decay) if decay else 1.0

    return _with_warmup(num_updates, warmup, stable_then_linear)


def constant(num_updates: int, *, warmup: Share) -> Factor:
    """1 after warm-up."""
    return _with_warmup(num_updates, warmup, lambda x: 1.0)


def inverse_sqrt(num_updates: int, *, warmup: Share) -> Factor:
    """sqrt(num_warmup / (t + 1)) after warm-up (Vaswani et al. 2017, section 5.3)."""
    num_warmup = max(1, round(warmup * num_updates))
    # The two curves meet at t + 1 = num_warmup, where both are 1.
    return lambda update: min((update + 1) / num_warmup, math.sqrt(num_warmup / (update + 1)))
