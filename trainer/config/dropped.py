"""What earlier versions could run and this one cannot: its trials are still read and compared."""

from collections.abc import Mapping

from trainer.base.build import OWN, Node, label
from trainer.base.errors import BadInput

DROPPED: Mapping[str, tuple[str, str]] = {
    "optimizer=sophia": ("0.3.0", "0.2"),
}
"""Word → the version that dropped it, and the last one that runs it."""


def refuse_dropped(key: str, value: object) -> None:
    """Raises BadInput if this word, a choice by the name of its YAML or a key, was dropped."""
    if (versions := DROPPED.get(f"{key}={value}")) is not None:
        since, last = versions
        allowed = f"dropped in {since}; its trials are still read; stay with {last} to run it"
        raise BadInput(key, value, allowed)


def refuse_dropped_node(group: str, node: Node) -> None:
    """Raises BadInput for a recorded choice of ours that was dropped."""
    if str(node.get("_target_")).startswith(OWN):
        refuse_dropped(group, label(node))
