"""Keys that are younger than kept trials change neither their ids nor what they compare with."""

from typing import Any

import pytest

from analysis.table.rows import row
from sweeps.store.throughput import shape
from trainer.config.compose import compose
from trainer.config.identity import trial_id
from trainer.config.names import YOUNGER
from trainer.config.schema import validate

CHANGED = {
    "diagnostics": 5,
    "eval_tokens": 64,
    "eval_dtype": "bfloat16",
    "deterministic": False,
    "model.loss_chunk": 64,
    "pipeline.slack": True,
}
WORDS = ["pipeline=pipedream_2bw"]


def without(config: dict[str, Any], key: str, **changed: Any) -> dict[str, Any]:
    """The config of older code, which did not know the key; or with the key `changed`."""
    group, _, last = key.rpartition(".")
    if group:
        return {**config, group: without(config[group], last, **changed)}
    return {k: v for k, v in config.items() if k != key} | changed


def changed(config: dict[str, Any], key: str) -> dict[str, Any]:
    return without(config, key, **{key.rpartition(".")[2]: CHANGED[key]})


@pytest.mark.parametrize("key", YOUNGER)
def test_a_config_without_the_key_is_the_same_trial(key: str) -> None:
    config = compose(WORDS)
    older = without(config, key)
    assert trial_id(older, "d") == trial_id(config, "d")
    assert shape(older) == shape(config)
    assert row("t", older, {}, 0) == row("t", config, {}, 0)


@pytest.mark.parametrize("key", CHANGED)
def test_another_value_is_another_trial(key: str) -> None:
    config = compose(WORDS)
    assert trial_id(changed(config, key), "d") != trial_id(config, "d")


@pytest.mark.parametrize("key", ["eval_dtype", "deterministic", "model.loss_chunk"])
def test_trials_that_differ_in_it_are_not_compared(key: str) -> None:
    config = compose(WORDS)
    one, other = (row("t", c, {}, 0) for c in (config, changed(config, key)))
    assert one["point"] != other["point"]


def test_a_config_of_before_can_be_run() -> None:
    config = compose(WORDS)
    older = config
    for key in ("eval_dtype", "deterministic", "model.loss_chunk", "pipeline.slack"):
        older = without(older, key)
    assert older != config
    assert validate(older) == config
