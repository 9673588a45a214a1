"""`dtype=auto`: resolved where the config is made, by what the processor can do."""

from __future__ import annotations

import pytest
import torch

from trainer.config.compose import compose
from trainer.config.identity import trial_id


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": True}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"avx512_f": True, "avx512_bf16": False}, "float32"),
        ({}, "float32"),
    ],
)
def test_a_trial_has_the_dtype_that_its_processor_is_fast_in(
    capabilities: dict[str, bool], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    config = compose(["dtype=auto"])
    assert config["dtype"] == expected
    assert trial_id(config, "d") == trial_id(compose([f"dtype={expected}"]), "d")


def test_a_torch_that_cannot_tell_trains_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert compose(["dtype=auto"])["dtype"] == "float32"


def test_gpus_have_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert compose(["dtype=auto", "device=cuda"])["dtype"] == "bfloat16"


@pytest.mark.parametrize(("device", "expected"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_experts_are_slow_in_bf16_on_a_cpu(
    device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    config = compose(["dtype=auto", "model=tiny_moe", f"device={device}"])
    assert config["dtype"] == expected
