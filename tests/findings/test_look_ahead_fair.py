"""The page on look-ahead judges by its rule, with both synchronous arms."""

import numpy as np
import pandas as pd
import pytest

from findings.look_ahead_fair.__main__ import DELAYED, SYNC, verdict
from findings.study import losses


def of_gaps(noise: float, **gaps: float) -> pd.DataFrame:
    """Sixteen seeds of every arm, this far above sync; others 0.04."""
    rng = np.random.default_rng(0)
    sync = 2 + 0.05 * rng.standard_normal(16)
    columns = {
        arm: sync + gaps.get(arm.partition("(")[0], 0.04) + noise * rng.standard_normal(16)
        for arm in (*SYNC, *DELAYED)
    }
    return pd.DataFrame({**columns, "sync": sync})


@pytest.mark.parametrize(
    ("noise", "look", "arm", "word"),
    [
        (0.001, 0.01, 0.002, "**reaches it**"),
        (0.001, 0.01, 0.03, "**stays behind**"),
        (0.001, -0.02, 0.002, "**stays behind**"),  # the arm that looks ahead
        (0.001, -0.02, -0.015, "**reaches it**"),  # to within a fifth of the delay's gap
        (0.03, 0.01, 0.02, "not enough data"),
    ],
)
def test_the_better_synchronous_arm_decides(
    noise: float, look: float, arm: float, word: str
) -> None:
    of = of_gaps(noise, delay=0.04, sync_ema_nesterov=look, delay_ef=arm)
    assert verdict(of, "delay_ef") == word


def test_a_seed_counts_where_all_arms_ended() -> None:
    rows = [
        {"optimizer": "muon", "seed": seed, "arm": arm, "final_val_loss": 2.0}
        for seed in (200, 201)
        for arm in (*SYNC, *DELAYED)
    ]
    [of] = losses(pd.DataFrame(rows[:-1])).values()
    assert [*of.index] == [200]
