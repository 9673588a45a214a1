"""One trial's config and result → its row of the table, with what its arm is called and made of.

The names of arms are keys to group by, and labels for people. They are made here of all values that
make an arm, and never parsed: whoever asks what an arm is made of reads the columns.
"""

import json
from collections.abc import Mapping
from keyword import iskeyword
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
from pipegap.trainer.base.build import is_own
from pipegap.trainer.base.errors import Status
from pipegap.trainer.base.former import LOOKED_AHEAD, YOUNGER
from pipegap.trainer.config.identity import (
    COMPUTED_WITH,
    DEFINED,
    GROUPS,
    WORDS,
    declared,
    is_number,
    is_of_loop,
    kind,
    names,
    own_words,
    trial_keys,
)
from pipegap.trainer.folder.wellformed import OF_RESULT

Row = dict[str, Any]
Config = Mapping[str, Any]

LAST = 9e9
"""Seconds from 1970 to about the last time that a column of nanoseconds can hold."""
SOURCE = "_source_"
"""Key beside those of a choice from outside the trainer: digest of the source that it ran."""
PLAIN = {"_target_": "trainer.corrections.none.NoCorrection"}
PRINCIPAL = ("coefficient", "delay")
"""Options that need no name: `constant_delay(3)`, `delay_ef(0.5)`, `delay_taylor(1000)`."""
OF_BOTH = ("seed", "num_updates")
"""Keys of a config that are columns although a result has them; no other takes the place of what a
trial made."""
TAKEN = frozenset((*TRIAL, *GROUPS, *trial_keys(), BESIDE, VERSIONS, WORDS))
"""Columns, or what they begin with, that mean something else than a word of a recorded loop."""
NO_WORDS = (SHARDS, "data.skip_bad_rows")
"""Keys in the groups of choices that mean something else too: no table compares them."""
NOT_STALENESS = ("_target_", "num_stages", "num_microbatches", "slack")
PHASES = {"synchronous_start": "start", "synchronous_cooldown": "cooldown"}
"""Keys of the pipeline → the columns that hold them, and what the name of an arm calls them."""


def row(trial_id: str, config: Config, result: Config, written_ns: int) -> Row:
    """Return a trial's row without its folder, in types that JSON can hold.

    The `result` of an unfinished trial is empty; else its file was last changed at `written_ns`.
    That is taken for the time at which the trial finished if the result does not say it, as older
    ones do not.
    """
    if is_of_loop(config):
        flat = _of_loop(config)
        point = loop_point_columns(flat, names(config))
    else:
        # Keys that an older release lacked have their usual values; `choices` are names, below.
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
        # A later entry replaces an earlier one: what a trial made goes before what it was asked.
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
    words_of_loop = dict(flatten(own_words(config)))
    nameless = {key for key in words_of_loop if group_of(key) in TAKEN}
    nameless |= {key for key in NO_WORDS if key in leaves}
    nameless |= {key for key in COMPUTED_WITH if not is_number(leaves.get(key, 0))}
    columns = {
        f"{WORDS}.{key}" if key in nameless else key: _as_one(value)
        for key, value in (leaves | words_of_loop).items()
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
    pipeline, correction = config["pipeline"], config["correction"]
    usual = _usual("correction", correction)
    lag = correction.get("lag", usual.get("lag"))
    of_family = {key: value for key, value in correction.items() if key != "coefficient"}
    without_cooldown = {**pipeline, "synchronous_cooldown": 0}
    return {
        "arm": arm(pipeline, correction, result),
        "base_arm": arm(pipeline, PLAIN, {**result, "looks_ahead": False}),
        "family": arm(pipeline, of_family, result),
        "arm_without_cooldown": arm(without_cooldown, correction, result),
        "schedule": kind("pipeline", pipeline),
        "method": kind("correction", correction),
        "delay": max(result.get("delays") or [None]),  # `max` of [None] alone compares nothing
        "coefficient": correction.get("coefficient", usual.get("coefficient")),
        "lag": None if lag is None else str(lag),
        **{name: pipeline.get(key) or 0 for key, name in PHASES.items()},
    }


def arm(pipeline: Config, correction: Config, result: Config) -> str:
    """Return the key of an arm, made of all values that make it one and readable as its name.

    It is `sync` if every counted delay is 0 and nothing acts without one, else pipeline, correction
    and phases. 2BW is `delay`: `delay`, `delay_ef`, `delay_ef(0.5)`, `delay_ef_gradient`,
    `pipedream`, `constant_delay(3)_ef(lag=delay)`, `delay+start(0.1)`. With a choice of one's own,
    `delay_my_idea(share=0.5)`, the key ends with the digests of the source that ran, `~1f0c9a3e`,
    which `load` drops where it tells nothing apart. A trial without a count (unfinished, failed) is
    named by its config.
    """
    delays = result.get("delays") or [None]  # without a count: not sync
    # A trial that diverged in its synchronous start had no time to be delayed.
    cut_short = result.get("status") == Status.DIVERGED and pipeline.get("synchronous_start")
    # Whether the correction acts without a delay: its class says so, and a result since 0.3.
    looks_ahead = result.get("looks_ahead", kind("correction", correction) in LOOKED_AHEAD)
    if all(delay == 0 for delay in delays) and not cut_short and not looks_ahead:
        return "sync"
    name = _named("correction", correction)
    suffix = "" if name == "none" else f"_{name}"
    phases = (f"+{name}({pipeline[key]})" for key, name in PHASES.items() if pipeline.get(key))
    nodes = {"pipeline": pipeline, "correction": correction}
    # Code of one's own may change under one name: its digest keeps other sources apart.
    foreign = [group for group, node in nodes.items() if not is_own(str(node["_target_"]))]
    sources = [result["sources"][group] for group in foreign if group in result.get("sources", {})]
    digests = "".join(f"~{digest[:8]}" for digest in sources)
    return _named("pipeline", pipeline) + suffix + "".join(phases) + digests


def _named(group: str, choice: Config) -> str:
    name, usual = kind(group, choice), _usual(group, choice)
    template = declared(group)[name].arm if name in declared(group) else name
    options = [
        _text(value) if key in PRINCIPAL else f"{key}={_text(value)}"
        for key, value in choice.items()
        if key not in NOT_STALENESS and key not in PHASES
        if usual.get(key) != value or f"{{{key}}}" in template
    ]
    return template.partition("(")[0] + (f"({','.join(options)})" if options else "")


def _usual(group: str, choice: Config) -> Config:
    """Return the usual values of a choice, which are those of its YAML, if it is one of ours."""
    ours = declared(group).get(kind(group, choice))
    return {} if ours is None else ours.usual


def _text(value: Any) -> str:
    """Return a value as people write it, in full: 1000.0 is 1000. A text that could be another
    value is in quotes."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    is_word = isinstance(value, str) and value.isidentifier() and not iskeyword(value)
    return str(value) if is_word or not isinstance(value, str) else repr(value)
