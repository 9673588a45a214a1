"""The look-ahead corrects where nothing is late, as Error Feedback does elsewhere."""

from __future__ import annotations

import torch

from bench.look_ahead import LookAhead, config_of


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


def test_the_rest_is_the_synchronous_trial_of_the_sweep() -> None:
    config = config_of(("muon", 3, 9), "results")
    assert config["pipeline"]["_target_"] == "trainer.schedules.sync"
    assert config["correction"]["coefficient"] == 3
    assert (config["optimizer"]["lr"], config["optimizer"]["weight_decay"]) == (0.002, 1)
    assert (config["num_updates"], config["seed"]) == (1600, 9)
