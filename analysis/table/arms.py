"""What an arm is called and made of, from the config and from the delays that were counted.

The names are labels for people and keys to group by. They are made here and never parsed: whoever
asks what an arm is made of reads the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.base.build import label
from trainer.base.status import Status

Config = Mapping[str, Any]

SHORT = {
    "pipedream_2bw": "delay",
    "error_feedback": "ef",
    "error_feedback_gradient": "ef_gradient",
    "adaptive_error_feedback": "adaptive_ef",
    "matched_error_feedback": "matched_ef",
}
USUAL: Mapping[str, Config] = {
    "error_feedback": {"coefficient": 1, "lag": 1},
    "error_feedback_gradient": {"coefficient": 1},
    "adaptive_error_feedback": {"coefficient": 1, "decay": 0.9},
    "matched_error_feedback": {"coefficient": 1, "lag": 1},
    "taylor": {"decay": 0},
    "weight_prediction": {"horizon": 1},
    "learning_rate": {"anneal": 0.25},
}
"""The usual values of a choice, those of its YAML: the name of an arm leaves them out."""
PRINCIPAL = ("coefficient", "delay")
"""Options that need no name: `constant_delay(3)`, `delay_ef(0.5)`, `delay_taylor(1000)`."""
NOT_STALENESS = ("_target_", "num_stages", "num_microbatches", "slack")
PHASES = {"synchronous_start": "start", "synchronous_cooldown": "cooldown"}
"""Keys of the pipeline → the columns that hold them, and what the name of an arm calls them."""


def arm_columns(config: Config, result: Config) -> dict[str, Any]:
    """The columns of `schema.TRIAL` that name a trial's arm, and those that say what it is made of.

    `delay` is None without a count; `coefficient` and `lag` are None of a correction without them.
    """
    pipeline = config["pipeline"]
    correction = {**USUAL.get(label(config["correction"]), {}), **config["correction"]}
    lag = correction.get("lag")
    return {
        "arm": arm(config, result),
        "base_arm": base_arm(config, result),
        "family": family(config, result),
        "arm_without_cooldown": arm_without_cooldown(config, result),
        "schedule": label(pipeline),
        "method": label(config["correction"]),
        "delay": max(result.get("delays") or [None]),
        "coefficient": correction.get("coefficient"),
        "lag": None if lag is None else str(lag),
        **{name: pipeline.get(key) or 0 for key, name in PHASES.items()},
    }


def arm(config: Config, result: Config) -> str:
    """`sync` if every counted delay is 0, else pipeline, correction and phases of the config.

    2BW is `delay`: `delay`, `delay_ef`, `delay_ef(0.5)`, `delay_ef_gradient`, `pipedream`,
    `constant_delay(3)_ef(lag=delay)`, `delay+start(0.1)`. A trial without a count
    (unfinished, failed) is named by its config.
    """
    if _is_sync(config, result):
        return "sync"
    correction = _named(config["correction"])
    suffix = "" if correction == "none" else f"_{correction}"
    return _named(config["pipeline"]) + suffix + _phases(config["pipeline"])


def base_arm(config: Config, result: Config) -> str:
    """The arm that differs from this one by having no correction; itself if it has none."""
    return arm({**config, "correction": {"_target_": "none"}}, result)


def family(config: Config, result: Config) -> str:
    """The arm without the coefficient of its correction: what a line against it is called."""
    kept = {key: value for key, value in config["correction"].items() if key != "coefficient"}
    return arm({**config, "correction": kept}, result)


def arm_without_cooldown(config: Config, result: Config) -> str:
    """The arm that differs from this one by having no cooldown; itself if it has none."""
    return arm({**config, "pipeline": {**config["pipeline"], "synchronous_cooldown": 0}}, result)


def _is_sync(config: Config, result: Config) -> bool:
    """A trial that diverged in its synchronous start had no time to be delayed."""
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


def _phases(pipeline: Config) -> str:
    return "".join(f"+{name}({pipeline[key]})" for key, name in PHASES.items() if pipeline.get(key))


def _number(value: Any) -> str:
    """A float as people write it, in full: 1000.0 is 1000."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
