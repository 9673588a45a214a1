"""What an arm is called, derived from the config and from the delays that were counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.build import label

Config = Mapping[str, Any]

SHORT = {"pipedream_2bw": "delay", "error_feedback": "ef"}
USUAL = {"coefficient": 1, "lag": 1}
"""The paper's values: an arm that has them does not say so."""
PRINCIPAL = ("coefficient", "delay")
"""Options that need no name: `constant_delay(3)`, `delay_ef(0.5)`."""
NOT_STALENESS = ("_target_", "num_stages", "num_microbatches")
PHASES = {"synchronous_start": "start", "synchronous_cooldown": "cooldown"}


def arm(config: Config, result: Config) -> str:
    """`sync` if every counted delay is 0, else pipeline, correction and phases of the config.

    2BW is `delay`: `delay`, `delay_ef`, `delay_ef(0.5)`, `pipedream`, `constant_delay(3)_ef`,
    `delay+start(0.1)`. A trial without a count (unfinished, failed) is named by its config.
    """
    if _is_sync(config, result):
        return "sync"
    correction = _named(config["correction"])
    suffix = "" if correction == "none" else f"_{correction}"
    return _named(config["pipeline"]) + suffix + _phases(config["pipeline"])


def base_arm(config: Config, result: Config) -> str:
    """The arm that differs from this one by having no correction; itself if it has none."""
    return arm({**config, "correction": {"_target_": "none"}}, result)


def _is_sync(config: Config, result: Config) -> bool:
    """A trial that diverged in its synchronous start had no time to be delayed."""
    delays = result.get("delays") or [None]
    cut_short = result.get("status") == "diverged" and config["pipeline"].get("synchronous_start")
    return all(delay == 0 for delay in delays) and not cut_short


def _named(choice: Config) -> str:
    name = label(choice)
    options = [
        f"{value}" if key in PRINCIPAL else f"{key}={value}"
        for key, value in choice.items()
        if key not in NOT_STALENESS and key not in PHASES and USUAL.get(key) != value
    ]
    return SHORT.get(name, name) + (f"({','.join(options)})" if options else "")


def _phases(pipeline: Config) -> str:
    return "".join(f"+{name}({pipeline[key]})" for key, name in PHASES.items() if pipeline.get(key))
