"""What earlier versions could run and this one cannot: its trials are still read and compared."""

from collections.abc import Mapping
from typing import Any

from pipegap.trainer.base.build import Node, is_own, label
from pipegap.trainer.base.errors import BadInput

CHOICES: Mapping[str, tuple[str, str]] = {
    "model=nanogpt": ("0.3.0", "0.2"),
    "optimizer=sophia": ("0.3.0", "0.2"),
    "scale=long": ("0.3.0", "0.2"),
}
"""Choice → the version that dropped it, and the last one that runs it."""
KEYS: Mapping[str, tuple[Any, str, str]] = {
    "shard_optimizer": (False, "0.3.0", "0.2"),
}
"""Key → the value at which a trial does what all trials do since it was dropped; and both versions.
With this value the key is read, and forgotten."""
COMMANDS = frozenset({"check", "forecast", "forecasts", "serve", "sharpness"})
"""Commands that 0.2 had and 0.3.0 has not."""


def refuse_dropped_choice(group: str, name: str) -> None:
    """Raises BadInput if this choice, by the name of its YAML, was dropped."""
    if (versions := CHOICES.get(f"{group}={name}")) is not None:
        raise _dropped(group, name, *versions)


def refuse_dropped_node(group: str, node: Node) -> None:
    """Raises BadInput for a recorded choice of ours that was dropped."""
    if is_own(str(node.get("_target_"))):
        refuse_dropped_choice(group, label(node))


def is_dropped(key: str, value: object) -> bool:
    """Whether a key of the config was dropped. Raises BadInput for a value that asks for it."""
    if key not in KEYS:
        return False
    usual, *versions = KEYS[key]
    if value != usual:
        raise _dropped(key, value, *versions)
    return True


def _dropped(key: str, value: object, since: str, last: str) -> BadInput:
    allowed = f"dropped in {since}; its trials are still read; stay with {last} to run it"
    return BadInput(key, value, allowed)
