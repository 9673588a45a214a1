"""One trial's config and result → its row of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.arms import arm, base_arm, family
from analysis.points import flatten, point
from analysis.schema import TRIAL
from trainer.build import label

Row = dict[str, Any]


def row(name: str, config: Mapping[str, Any], result: Mapping[str, Any], written_ns: int) -> Row:
    """The row of the trial in the folder `name`, that folder's place aside; JSON can hold it.

    `result` is empty of an unfinished trial; else it was written at `written_ns`.
    """
    flat = dict(flatten(config))
    return {
        "trial_id": name,
        "status": "unfinished",
        "num_updates_asked": config["num_updates"],
        **{key: value for key, value in flat.items() if not key.endswith("._target_")},
        **{key: label(node) for key, node in config.items() if _is_choice(node)},
        **{key: value for key, value in result.items() if key in TRIAL},
        **dict(flatten(result.get("versions", {}), "versions.")),
        "arm": arm(config, result),
        "base_arm": base_arm(config, result),
        "family": family(config, result),
        "point": point(flat, result.get("data_hash")),
        "finished_at": written_ns if result else None,
    }


def _is_choice(node: object) -> bool:
    return isinstance(node, dict) and "_target_" in node
