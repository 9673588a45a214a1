"""One trial's config and result → its row of the table, with what its arm is called and made of.

The names of arms are labels for people and keys to group by. They are made here and never parsed:
whoever asks what an arm is made of reads the columns.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipegap.analysis.table.points import (
    BESIDE,
    SHARDS,
    VERSIONS,
    flatten,
    group_of,
    loop_point_columns,
    point_columns,
)
from pipegap.analysis.table.schema import TRIAL
from pipegap.trainer.base.build import label
from pipegap.trainer.base.status import Status
from pipegap.trainer.config.names import (
    COMPUTED_WITH,
    DEFINED,
    GROUPS,
    WORDS,
    YOUNGER,
    is_number,
    is_of_loop,
    names,
    own_words,
    trial_keys,
)
from pipegap.trainer.folder.wellformed import OF_RESULT

Row = dict[str, Any]
Config = Mapping[str, Any]

LAST = 9e9
"""Seconds since 1970 of the last time that a column of nanoseconds can hold, about."""
SOURCE = "_source_"
"""Key beside those of a choice from outside the trainer: digest of the source that it ran."""
SHORT = {
    "pipedream_2bw": "delay",
    "error_feedback": "ef",
    "error_feedback_gradient": "ef_gradient",
    "adaptive_error_feedback": "adaptive_ef",
    "matched_error_feedback": "matched_ef",
}
USUAL: Mapping[str, Config] = {
    "paci": {"recompute": False},
    "error_feedback": {"coefficient": 1, "lag": 1},
    "error_feedback_gradient": {"coefficient": 1},
    "adaptive_error_feedback": {"coefficient": 1, "decay": 0.9},
    "matched_error_feedback": {"coefficient": 1, "lag": 1},
    "taylor": {"decay": 0},
    "weight_prediction": {"horizon": 1},
    "learning_rate": {"anneal": 0.25},
    "ema_nesterov": {
        **{"look_ahead": 0.6, "decay": 0.99, "start": 0.16, "rest": 0.24, "coefficient": 0},
    },
}
"""The usual values of a choice, those of its YAML: the name of an arm leaves them out."""
WITHOUT_DELAY = ("ema_nesterov",)
"""Corrections that act where nothing is late, too."""
PRINCIPAL = ("coefficient", "delay")
"""Options that need no name: `constant_delay(3)`, `delay_ef(0.5)`, `delay_taylor(1000)`."""
OF_BOTH = ("seed", "num_updates")
"""Keys of a config that are columns although a result has them; no other takes the place of what a
trial made."""
TAKEN = frozenset((*TRIAL, *GROUPS, *trial_keys(), BESIDE, VERSIONS, WORDS))
"""Columns, or what they begin with, that mean something else than a word of a recorded loop."""
NO_WORDS = (SHARDS, "data.skip_bad_rows")
"""The same in the groups of choices: no table compares them."""
NOT_STALENESS = ("_target_", "num_stages", "num_microbatches", "slack")
PHASES = {"synchronous_start": "start", "synchronous_cooldown": "cooldown"}
"""Keys of the pipeline → the columns that hold them, and what the name of an arm calls them."""


def row(trial_id: str, config: Config, result: Config, written_ns: int) -> Row:
    """Return the row of a trial but for its place, as JSON can hold it.

    `result` is empty of an unfinished trial; else its file was last changed at `written_ns`, which
    counts for when the trial finished if the result does not say that itself, as older ones.
    """
    if is_of_loop(config):
        flat = _of_loop(config)
        point = loop_point_columns(flat, names(config))
    else:
        flat = dict(flatten({**YOUNGER, **config, "choices": {}}))
        digests = result.get("sources", {}).items()
        flat |= {f"{group}.{SOURCE}": digest for group, digest in digests}
        point = point_columns(flat, result.get("data_hash"))
    return {
        "trial_id": trial_id,
        "status": Status.UNFINISHED,
        "num_updates_asked": config["num_updates"],
        # A list is its text, which a column can hold and group.
        **{
            key: json.dumps(value) if isinstance(value, list) else value
            for key, value in flat.items()
            if not key.endswith("._target_") and (key not in TRIAL or key in OF_BOTH)
        },
        **names(config),
        **{key: value for key, value in result.items() if key in OF_RESULT & TRIAL.keys()},
        **dict(flatten(result.get("versions", {}), f"{VERSIONS}.")),
        **arm_columns(config, result),
        **point,
        "finished_at": _finished_ns(result, written_ns) if result else None,
    }


def _of_loop(config: Config) -> dict[str, Any]:
    """Return the leaves of a recorded loop's config by their columns, 1.0 as 1.

    A word that is called like a column of another meaning is `words.` and its name.
    """
    groups = {key: config[key] for key in DEFINED if key in config and key != "choices"}
    leaves = dict(flatten(groups))
    own = dict(flatten(own_words(config)))
    nameless = {key for key in own if group_of(key) in TAKEN}
    nameless |= {key for key in NO_WORDS if key in leaves}
    nameless |= {key for key in COMPUTED_WITH if not is_number(leaves.get(key, 0))}
    columns = {
        f"{WORDS}.{key}" if key in nameless else key: _as_one(value)
        for key, value in (leaves | own).items()
        if value is not None
    }
    return {"tokens_per_parameter": None, "clip_norm": None, **columns}


def _as_one(value: Any) -> Any:
    """Return a value in which a whole number is an int, as far as floats hold every int."""
    if isinstance(value, list):
        return [_as_one(part) for part in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def _finished_ns(result: Config, written_ns: int) -> int:
    seconds = result.get("finished_at")
    if isinstance(seconds, float) and 0 < seconds < LAST:
        return round(seconds * 1e9)
    return written_ns


def arm_columns(config: Config, result: Config) -> dict[str, Any]:
    """Return the columns of `schema.TRIAL` that name a trial's arm and say what it is made of.

    `delay` is None without a count; `coefficient` and `lag` are None of a correction without them.
    """
    pipeline = config["pipeline"]
    correction = {**USUAL.get(label(config["correction"]), {}), **config["correction"]}
    lag = correction.get("lag")
    of_family = {key: value for key, value in config["correction"].items() if key != "coefficient"}
    whole = {**pipeline, "synchronous_cooldown": 0}
    return {
        "arm": arm(config, result),
        "base_arm": arm({**config, "correction": {"_target_": "none"}}, result),
        "family": arm({**config, "correction": of_family}, result),
        "arm_without_cooldown": arm({**config, "pipeline": whole}, result),
        "schedule": label(pipeline),
        "method": label(config["correction"]),
        "delay": max(result.get("delays") or [None]),
        "coefficient": correction.get("coefficient"),
        "lag": None if lag is None else str(lag),
        **{name: pipeline.get(key) or 0 for key, name in PHASES.items()},
    }


def arm(config: Config, result: Config) -> str:
    """Return `sync` if every counted delay is 0 and nothing acts without one, else pipeline,
    correction and phases of `config`.

    2BW is `delay`: `delay`, `delay_ef`, `delay_ef(0.5)`, `delay_ef_gradient`, `pipedream`,
    `constant_delay(3)_ef(lag=delay)`, `delay+start(0.1)`. A trial without a count
    (unfinished, failed) is named by its config.
    """
    looks_ahead = label(config["correction"]) in WITHOUT_DELAY
    if _is_sync(config, result) and not looks_ahead:
        return "sync"
    correction = _named(config["correction"])
    suffix = "" if correction == "none" else f"_{correction}"
    pipeline = config["pipeline"]
    phases = (f"+{name}({pipeline[key]})" for key, name in PHASES.items() if pipeline.get(key))
    return _named(pipeline) + suffix + "".join(phases)


def _is_sync(config: Config, result: Config) -> bool:
    """Return whether no delay was counted. A trial that diverged in its synchronous start had no
    time to be delayed."""
    delays = result.get("delays") or [None]
    cut_short = result.get("status") == Status.DIVERGED and config["pipeline"].get(
        "synchronous_start"
    )
    return all(delay == 0 for delay in delays) and not cut_short


def _named(choice: Config) -> str:
    name = label(choice)
    usual = USUAL.get(name, {})
    options = [
        _number(value) if key in PRINCIPAL else f"{key}={_number(value)}"
        for key, value in choice.items()
        if key not in NOT_STALENESS and key not in PHASES and usual.get(key) != value
    ]
    return SHORT.get(name, name) + (f"({','.join(options)})" if options else "")


def _number(value: Any) -> str:
    """Return a float as people write it, in full: 1000.0 is 1000."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
