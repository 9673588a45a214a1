"""`dtype=auto`: resolved where the config is made, by what the processor can do."""

import pytest
import torch

from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id

FAST = {"avx512_f": True, "avx512_bf16": True}


@pytest.mark.parametrize(
    ("capabilities", "words", "expected"),
    [
        (FAST, (), "bfloat16"),
        ({"amx_bf16": True}, (), "bfloat16"),
        ({"avx512_f": True, "avx512_bf16": False}, (), "float32"),
        ({}, (), "float32"),
        (None, (), "float32"),  # a torch that cannot tell
        ({}, ("device=cuda",), "bfloat16"),
        (FAST, ("model=tiny_moe",), "float32"),  # experts are slow in bf16 on a CPU
        (FAST, ("model=tiny_moe", "device=cuda"), "bfloat16"),
    ],
)
def test_a_trial_has_the_dtype_that_its_processor_is_fast_in(
    capabilities: dict[str, bool] | None,
    words: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    config = compose(["dtype=auto", *words])
    assert config["dtype"] == expected
    assert trial_id(config, "d") == trial_id(compose([f"dtype={expected}", *words]), "d")
