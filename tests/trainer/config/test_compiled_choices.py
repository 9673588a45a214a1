"""What torch cannot compile is refused before a trial runs."""

from pathlib import Path

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.plan import plan_trial
from tests.support import hybrid, moe, small

HALVES = ("zero_bubble_h1", "zero_bubble_v", "dualpipe_v")


@pytest.mark.parametrize("family", [moe.WORDS, hybrid.WORDS], ids=["moe", "hybrid"])
@pytest.mark.parametrize("key", ["dtype", "eval_dtype"])
def test_experts_in_fp32(tmp_path: Path, family: tuple[str, ...], key: str) -> None:
    words = [*family, "compile=true", "dtype=bfloat16", "eval_dtype=bfloat16"]
    plan_trial(small.config(tmp_path, *words))
    with pytest.raises(BadInput, match=f"{key}=float32.*bfloat16 with experts and compile=true"):
        small.config(tmp_path, *words, f"{key}=float32")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("model=micro_moe", "model=qwen3_moe: must have no experts, since 0.3.0, with compile=upd"),
        ("runner=pipelined", "runner=pipelined: must be emulated with compile=update"),
        ("device=cuda", "device=cuda: must be cpu with compile=update"),
        ("diagnostics=2", "diagnostics=2: must be null with compile=update"),
        ("correction=weight_prediction", "correction=weight_prediction: must not read ahead"),
        ("pipeline=paci", "compile=update: must be false with pipeline=paci"),
    ],
)
def test_an_update_that_graphs_do_not_make(tmp_path: Path, word: str, says: str) -> None:
    words = (word, "compile=update", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
    with pytest.raises(BadInput, match=says):
        plan_trial(small.config(tmp_path, *words))


@pytest.mark.parametrize("value", ["1", "null", "Layers", "graph"])
def test_a_word_that_is_no_way_to_compile(tmp_path: Path, value: str) -> None:
    with pytest.raises(BadInput, match=r"compile=.*must be false, layers \(or true\) or update"):
        small.config(tmp_path, f"compile={value}")


@pytest.mark.parametrize("pipeline", HALVES)
def test_backwards_in_halves(tmp_path: Path, pipeline: str) -> None:
    words = [f"pipeline={pipeline}", "pipeline.num_stages=2", "pipeline.num_microbatches=4"]
    config = small.config(tmp_path, *words, "model.num_layers=4", "compile=true", "batch_size=4")
    with pytest.raises(BadInput, match=r"compile=True.*splits backwards"):
        plan_trial(config)


FUSED = (
    *("model=tiny_hybrid", "model.fused_delta_rule=true"),
    *("device=cuda", "dtype=bfloat16", "deterministic=false"),
)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("device=cpu", "device=cpu: must be a GPU"),
        ("dtype=float32", "dtype=float32: must be bfloat16"),
        ("deterministic=true", "deterministic=True: must be false"),
        ("model.chunk_size=8", r"chunk_size=8: must be one of \(16, 32, 64\)"),
        ("model.key_head_size=264", "key_head_size=264: must be at most 256"),
    ],
)
def test_a_delta_rule_that_fused_kernels_do_not_have(tmp_path: Path, word: str, says: str) -> None:
    plan_trial(small.config(tmp_path, *FUSED))
    with pytest.raises(BadInput, match=f"{says}.* with model.fused_delta_rule=true"):
        plan_trial(small.config(tmp_path, *FUSED, word))
