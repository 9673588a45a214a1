"""The peak of an update that a plan counts, beside what `bench.gpu` measured on an H100, and at 2b
on an H200."""

import pytest

from pipegap.sweeps.request.files import scale_file
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.memory import peak_bytes

compose = Composer()
DELAY = ("pipeline=pipedream_2bw",)
EF = (*DELAY, "correction=error_feedback")
TWO = (*EF, "compile=false", "batch_size=8", "pipeline.num_microbatches=2")
MEASURED = [
    ("135m", ("compile=false",), 32.6),
    ("135m", (), 18.5),
    ("135m", DELAY, 18.7),
    ("135m", EF, 19.3),
    ("135m", (*EF, "pipeline.num_stages=4"), 40.7),
    ("135m", ("optimizer=muon",), 18.0),
    ("135m", (*EF, "optimizer=muon"), 18.8),
    ("135m", (*EF, "optimizer=soap"), 21.7),
    ("360m", (), 43.0),
    ("360m", (*EF, "optimizer=muon"), 44.0),
    ("2b", TWO, 55.89),
    ("2b", (*TWO, "optimizer=muon"), 63.24),
]
"""GB at the peak of an update, bench/README.md."""


@pytest.mark.parametrize(("scale", "words", "gigabytes"), MEASURED)
def test_a_plan_counts_the_memory_that_a_gpu_used(
    scale: str, words: tuple[str, ...], gigabytes: float
) -> None:
    config = compose([*scale_file(scale), *words, "device=cpu"])
    assert peak_bytes(config, 100) == pytest.approx(1e9 * gigabytes, rel=0.06)


def test_a_comparison_is_counted() -> None:
    """The fresh update and a copy of the weights; Error Feedback needs the update in any case."""
    sets = 2 * 4 * 1_915_784_192
    for optimizer in ("muon", "adamw"):
        config = compose([*scale_file("2b"), *TWO, f"optimizer={optimizer}", "device=cpu"])
        added = peak_bytes({**config, "diagnostics": 10}, 100) - peak_bytes(config, 100)
        assert added == pytest.approx(sets, rel=0.06)


def test_a_true_rank_keeps_less_than_all_stages_and_the_first_one_most_microbatches() -> None:
    four = compose([*scale_file("135m"), *EF, "pipeline.num_stages=4", "device=cpu"])
    of_rank = peak_bytes({**four, "runner": "pipelined"}, 100)
    assert of_rank < peak_bytes(four, 100) / 2
    assert peak_bytes({**four, "runner": "pipelined", "num_replicas": 2}, 100) < of_rank


def test_recomputed_layers_keep_their_inputs() -> None:
    words = [*scale_file("135m"), "device=cpu", "model.loss_chunk=1024"]
    whole, recomputed = (
        peak_bytes(compose([*words, f"model.activation_checkpointing={word}"]), 100)
        for word in ("false", "true")
    )
    inputs = 30 * 22 * 1024 * 576 * 2
    assert 2e9 + inputs < recomputed < whole - 10e9 + inputs
