"""One trial's config and result → its row of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from analysis.table.arms import arm_columns
from analysis.table.points import VERSIONS, flatten, point_columns
from analysis.table.schema import TRIAL
from trainer.base.status import Status
from trainer.config.names import YOUNGER, names
from trainer.folder.wellformed import OF_RESULT

Row = dict[str, Any]

LAST = 9e9
"""Seconds since 1970 of the last time that a column of nanoseconds can hold, about."""
SOURCE = "_source_"
"""Key beside those of a choice from outside the trainer: digest of the source that it ran."""


def row(name: str, config: Mapping[str, Any], result: Mapping[str, Any], written_ns: int) -> Row:
    """The row of the trial in the folder `name`, that folder's place aside; JSON can hold it.

    `result` is empty of an unfinished trial; else its file was last changed at `written_ns`, which
    counts for when the trial finished if the result does not say that itself, as older ones.
    """
    flat = dict(flatten({**YOUNGER, **config, "choices": {}}))
    flat |= {f"{group}.{SOURCE}": of for group, of in result.get("sources", {}).items()}
    return {
        "trial_id": name,
        "status": Status.UNFINISHED,
        "num_updates_asked": config["num_updates"],
        **{key: _cell(value) for key, value in flat.items() if _is_column(key)},
        **names(config),
        **{key: value for key, value in result.items() if key in OF_RESULT & TRIAL.keys()},
        **dict(flatten(result.get("versions", {}), f"{VERSIONS}.")),
        **arm_columns(config, result),
        **point_columns(flat, result.get("data_hash")),
        "finished_at": _finished_ns(result, written_ns) if result else None,
    }


def _is_column(key: str) -> bool:
    """Whether a key of a config is a column: no key may take the place of what a trial made."""
    return not key.endswith("._target_") and (key not in TRIAL or key in ("seed", "num_updates"))


def _cell(value: Any) -> Any:
    """A value as a column can hold and group it: a list is its text."""
    return json.dumps(value) if isinstance(value, list) else value


def _finished_ns(result: Mapping[str, Any], written_ns: int) -> int:
    said = result.get("finished_at")
    return round(said * 1e9) if isinstance(said, float) and 0 < said < LAST else written_ns
