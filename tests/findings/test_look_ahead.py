"""The look-ahead corrects where nothing is late, as Error Feedback does elsewhere."""

from pathlib import Path

import pytest
import torch

from findings.overshoot import look_ahead
from findings.overshoot.look_ahead import OPTIMIZERS, LookAhead, config_of
from pipegap.analysis import load
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.plan import plan_trial

PUBLISHED = Path(look_ahead.__file__).parent / "trials_tiny.csv"


def test_an_update_that_is_not_late_is_corrected() -> None:
    generator = torch.Generator().manual_seed(0)
    correction = LookAhead(10, [0], coefficient=3.0, lag=1)
    weight, earlier = torch.zeros(4, 3), None
    for _ in range(4):
        update = torch.randn(4, 3, generator=generator)
        before = weight.clone()
        weight.sub_(update)
        correction.apply([weight], [update.clone()], [0])  # which it keeps
        expected = before - update
        if earlier is not None:
            expected = expected - 3.0 * (update - earlier)
        torch.testing.assert_close(weight, expected)
        earlier = update


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_rest_is_the_synchronous_trial_of_the_sweep(optimizer: str) -> None:
    config = config_of((optimizer, 3, 9), "results")
    assert config["correction"]["coefficient"] == 3
    plain = config | {"correction": compose(["correction=none"])["correction"]}
    trials = load(PUBLISHED).query("arm == 'sync' and seed == 9")
    (published,) = trials.loc[trials["optimizer"] == optimizer, "trial_id"]
    assert plan_trial(plain).trial_id == published
