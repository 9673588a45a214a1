"""The time that a plan counts is near what was measured, here and elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipegap.sweeps.plan.devices import known_devices, of_update_and_forward
from pipegap.trainer.config.compose import compose
from tests.support.steps import words_of_scale

MEASURED = Path(__file__).with_name("measured_rates.yaml").read_text()
ROWS: Sequence[Mapping[str, Any]] = yaml.safe_load(MEASURED)
PUBLISHED = (
    *("model=smollm2_135m", "data=fineweb"),
    *("dtype=bfloat16", "eval_dtype=bfloat16", "compile=true"),
)
SHAPE = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "vocab_size")
ONE_UPDATE = ("num_updates=1", "tokens_per_parameter=null")


def words_of(row: Mapping[str, Any]) -> list[str]:
    """The words of a trial in a row's setting, on one GPU or core."""
    more = (*row.get("words", ()), *ONE_UPDATE)
    if "scale" in row:
        return words_of_scale(row["scale"], "device=cpu", *more)
    shape = dict(zip(SHAPE, row["llama"], strict=True))
    keys = {"num_kv_heads": shape["num_heads"], **shape}
    words = (*PUBLISHED, *(f"model.{key}={value}" for key, value in keys.items()), *more)
    return [*{word.partition("=")[0]: word for word in words}.values()]


def counted(row: Mapping[str, Any]) -> float:
    """Tokens/s that a plan counts with."""
    config = compose(words_of(row))
    device = replace(known_devices()[row.get("device", "H100")], **row.get("more", {}))
    of_update, of_forward = of_update_and_forward(config, 1, device)
    seconds = of_forward if row.get("evaluates") else of_update
    return config["batch_size"] * config["seq_len"] / seconds


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_counted_is_near_what_was_measured(row: Mapping[str, Any]) -> None:
    """As near as bench/README.md says."""
    assert 0.8 < counted(row) / row["measured"] < 1.2
