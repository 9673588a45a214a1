"""Models whose update takes milliseconds, as words, and trainers of them on random tokens."""

from typing import Any

from pipegap.trainer.executors.emulated import Emulated
from tests.support.steps import executor, resolved

DENSE = (
    *("model=nano", "model.num_layers=1", "model.hidden_size=16", "model.intermediate_size=24"),
    *("model.vocab_size=30", "batch_size=4", "seq_len=8"),
)


def config(*words: str) -> dict[str, Any]:
    """The resolved config of these words; of several with one key the last one counts."""
    return resolved([*{word.partition("=")[0]: word for word in words}.values()])


def trainer(*words: str) -> Emulated:
    """All stages with that config."""
    return executor(config(*words))
