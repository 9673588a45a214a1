"""Keys that are younger than kept trials change neither their ids nor what they compare with."""

from __future__ import annotations

import pytest

from analysis.table.rows import row
from trainer.config.compose import compose
from trainer.config.identity import trial_id
from trainer.config.schema import validate
from trainer.config.younger import YOUNGER

CHANGED = {"diagnostics": 5, "eval_tokens": 64, "eval_dtype": "bfloat16", "deterministic": False}


@pytest.mark.parametrize("key", YOUNGER)
def test_a_config_without_the_key_is_the_same_trial(key: str) -> None:
    config = compose([])
    older = {k: v for k, v in config.items() if k != key}
    assert trial_id(older, "d") == trial_id(config, "d")
    assert row("t", older, {}, 0) == row("t", config, {}, 0)


@pytest.mark.parametrize("key", YOUNGER)
def test_another_value_is_another_trial(key: str) -> None:
    config = compose([])
    assert trial_id({**config, key: CHANGED[key]}, "d") != trial_id(config, "d")


@pytest.mark.parametrize("key", ["eval_dtype", "deterministic"])
def test_trials_that_differ_in_it_are_not_compared(key: str) -> None:
    config = compose([])
    one, other = (row("t", c, {}, 0) for c in (config, {**config, key: CHANGED[key]}))
    assert one["point"] != other["point"]


def test_a_config_of_before_can_be_run() -> None:
    config = compose([])
    older = {k: v for k, v in config.items() if k not in ("eval_dtype", "deterministic")}
    assert validate(older) == config
