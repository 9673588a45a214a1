"""Choices, keys and addresses of earlier versions, by which their trials keep their ids and are
read."""

from collections.abc import Mapping
from typing import Any

from pipegap.trainer.base.errors import BadInput

CHOICES: Mapping[str, tuple[str, str]] = {
    "model=nanogpt": ("0.3.0", "0.2"),
    "optimizer=sophia": ("0.3.0", "0.2"),
    "scale=long": ("0.3.0", "0.2"),
}
"""Choice → the version that dropped it, and the last one that runs it."""
KEYS: Mapping[str, tuple[Any, str, str]] = {"shard_optimizer": (False, "0.3.0", "0.2")}
"""Key → the value at which a trial does what all trials do since the key was dropped, the version
that dropped it, and the last one that has it. With this value the key is read, and left out."""
COMMANDS = frozenset({"check", "forecast", "forecasts", "serve", "sharpness"})
"""Commands that 0.2 had and 0.3.0 has not."""


YOUNGER: Mapping[str, Any] = {
    "code": None,
    "diagnostics": None,
    "eval_tokens": None,
    "eval_dtype": "float32",
    "deterministic": True,
    "from_pretrained": None,
    "save_last": 0,
    **{key: usual for key, (usual, *_) in KEYS.items()},
    "model.loss_chunk": None,
    "model.fused_delta_rule": False,
    "optimizer.orthogonalisation": "newton_schulz",
    "optimizer.cautious_decay": False,
    "pipeline.slack": False,
    "pipeline.recompute": False,
    "data.end_of_document": None,
}
"""Key → the value at which a trial does what trials did before the key existed."""
LOOKED_AHEAD = ("ema_nesterov",)
"""Corrections of ours that act without a delay too, for results that do not record it."""
_HOMES: Mapping[str, tuple[str, ...]] = {
    "trainer.corrections.compensation": (
        *("learning_rate.LearningRate", "taylor.Taylor", "weight_prediction.WeightPrediction"),
    ),
    "trainer.corrections.error_feedback": (
        "adaptive_error_feedback.AdaptiveErrorFeedback",
        "error_feedback_gradient.GradientErrorFeedback",
        "matched_error_feedback.MatchedErrorFeedback",
    ),
    "trainer.optimizers.averaging": ("schedule_free_adamw",),
    "trainer.optimizers.dion": ("dion", "dion2.dion2", "dion2.dion3"),
    "trainer.optimizers.entrywise": (
        *("adamw", "adan", "ademamix", "adopt", "lion", "mars", "nadamw", "sgd", "sgdw"),
        "signum",
    ),
    "trainer.optimizers.kronecker": (
        *("kron", "shampoo", "soap", "basis_rotation.basis_rotation", "kl_soap.kl_soap"),
    ),
    "trainer.optimizers.muon": ("adamuon", "muon", "normuon", "scion"),
    "trainer.optimizers.orthogonal": ("nanochat.nanochat",),
    "trainer.schedules.recipes": (
        *("constant_delay", "gpipe", "interleaved_1f1b", "pipedream", "pipedream_2bw", "sync"),
        "zero_bubble_h1",
    ),
}
"""Module → the functions and classes that it holds today, by the addresses, below the module's
package, at which they were first published: `adamw` in the package itself, `dion2.dion2` in a
module of it."""
MOVED = {
    f"{module.rpartition('.')[0]}.{name}": f"{module}.{name.rpartition('.')[2]}"
    for module, names in _HOMES.items()
    for name in names
}
"""Address under which a choice was first published → where its function lives, both in our package.

Ids of trials hash the published address, and YAMLs give the address where the function lives. A
new choice needs no entry.
"""


def refuse_dropped_choice(group: str, name: str) -> None:
    """Raises BadInput if the choice whose YAML had this name was dropped."""
    if (versions := CHOICES.get(f"{group}={name}")) is not None:
        raise _dropped(group, name, *versions)


def is_dropped(key: str, value: object) -> bool:
    """Whether a key of the config was dropped. Raises BadInput for a value that still needs it."""
    if key not in KEYS:
        return False
    usual, *versions = KEYS[key]
    if value != usual:
        raise _dropped(key, value, *versions)
    return True


def _dropped(key: str, value: object, since: str, last: str) -> BadInput:
    allowed = f"dropped in {since}; its trials are still read; stay with {last} to run it"
    return BadInput(key, value, allowed)
