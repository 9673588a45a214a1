"""The time that a plan counts is near what was measured (bench/README.md)."""

from collections.abc import Sequence

import pytest

from pipegap.sweeps.plan.devices import known_devices, of_update_and_forward
from pipegap.trainer.config.compose import compose
from tests.support.steps import words_of_scale

EAGER, FOUR = "compile=false", "pipeline.num_microbatches=4"
EF = ("pipeline=pipedream_2bw", "correction=error_feedback")
UPDATE, BF16 = "compile=update", "dtype=bfloat16"
TRAINED: Sequence[tuple[str, str, tuple[str, ...], float]] = [
    ("H100", "135m", (), 259_517),  # fitted to it
    ("H100", "135m", (EAGER,), 134_738),
    ("H100", "135m", (FOUR,), 307_549),
    ("H100", "360m", (), 155_483),
    ("H200", "135m", (), 327_917),
    ("H200", "135m", (EAGER,), 164_314),
    ("H200", "135m", (*EF, FOUR), 352_962),
    ("core", "few_updates", (), 18_910),
    ("core", "few_updates", (BF16,), 36_312),
    ("core", "tiny", (), 19_394),
    ("compiled_core", "few_updates", (UPDATE,), 40_386),  # these three are fits
    ("compiled_core", "few_updates", (UPDATE, BF16), 69_660),
    ("compiled_core", "tiny", (UPDATE,), 104_918),
]
"""Device, scale, words that come after those of the scale, and the tokens/s of one GPU or core."""
EVALUATED: Sequence[tuple[str, str, tuple[str, ...], float]] = [
    ("H100", "135m", (), 773_913),
    ("H100", "135m", ("eval_dtype=float32",), 109_124),
    ("H200", "135m", (), 964_939),
]


def counted(device: str, scale: str, words: Sequence[str]) -> tuple[float, float]:
    """Tokens/s of an update, and of a forward, that a plan counts with."""
    one = ("device=cpu", *words, "num_updates=1", "tokens_per_parameter=null")
    config = compose(words_of_scale(scale, *one))
    tokens = config["batch_size"] * config["seq_len"]
    update, forward = of_update_and_forward(config, 1, known_devices()[device])
    return tokens / update, tokens / forward


@pytest.mark.parametrize(("device", "scale", "words", "measured"), TRAINED)
def test_training(device: str, scale: str, words: tuple[str, ...], measured: float) -> None:
    assert 0.8 < counted(device, scale, words)[0] / measured < 1.2


@pytest.mark.parametrize(("device", "scale", "words", "measured"), EVALUATED)
def test_evaluation(device: str, scale: str, words: tuple[str, ...], measured: float) -> None:
    assert 0.8 < counted(device, scale, words)[1] / measured < 1.2
