"""The time that a plan counts is near what was measured (bench/README.md)."""

from collections.abc import Sequence

import pytest

from pipegap.sweeps.plan.devices import core, known_devices, of_update_and_forward
from pipegap.trainer.config.compose import compose
from tests.support.steps import words_of_scale
from tests.support.zen_4 import ZEN_4

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
    ("core", "few_updates", ("optimizer=muon",), 16_990),  # of a Zen 4: shares are fits to these
    ("core", "few_updates", ("optimizer=soap",), 15_930),
    ("core", "tiny", (), 27_430),
    ("core", "tiny", ("optimizer=muon",), 16_820),
    ("core", "tiny", ("optimizer=soap",), 12_850),
    ("core", "few_updates", (UPDATE,), 19_010),
    ("core", "few_updates", (UPDATE, BF16), 37_050),
    ("core", "tiny", (UPDATE,), 56_690),
    ("core", "tiny", (UPDATE, *EF), 56_510),
    ("core", "tiny", (UPDATE, "optimizer=muon"), 30_490),
    ("core", "tiny", (UPDATE, "optimizer=soap"), 24_890),
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
    of_core = core(ZEN_4, config["compile"])
    update, forward = of_update_and_forward(config, 1, {**known_devices(), "core": of_core}[device])
    return tokens / update, tokens / forward


@pytest.mark.parametrize(("device", "scale", "words", "measured"), TRAINED)
def test_training(device: str, scale: str, words: tuple[str, ...], measured: float) -> None:
    assert 0.8 < counted(device, scale, words)[0] / measured < 1.22


@pytest.mark.parametrize(("device", "scale", "words", "measured"), EVALUATED)
def test_evaluation(device: str, scale: str, words: tuple[str, ...], measured: float) -> None:
    assert 0.8 < counted(device, scale, words)[1] / measured < 1.2
