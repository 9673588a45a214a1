"""Makes the wandb workspace of a sweep: prints its spec, or saves it to the server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sweeps.request import request
from sweeps.schema import Sweep, overrides
from sweeps.tracking import choice
from sweeps.tracking.choice import GROUP
from sweeps.tracking.workspace import save, spec, workspace
from trainer.compose import CONF
from trainer.errors import BadInput

DONE = 0
KEYS = ("project", "entity", "mode")
"""Keys of the tracker that are the dashboard's too."""
OUTPUTS = {"offline": spec, "online": save}


def main(words: Sequence[str]) -> int:
    """Exit code 0. Raises BadInput for a bad key, or where the server does not take it."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeps dashboard",
        description="Prints the wandb workspace of a sweep as JSON; with mode=online saves it.",
        epilog="sweep=, scale= the sweep (default: all in the project); project=, entity=, mode= "
        "as in conf/tracking/wandb.yaml. mode=online takes the key from WANDB_API_KEY.",
    )
    parser.add_argument("keys", nargs="*", metavar="key=value")
    given = dict(_split(word) for word in parser.parse_args(words).keys)
    of_tracker = {f"{GROUP}.{key}": given.pop(key) for key in KEYS if key in given}
    node = choice.take({GROUP: "wandb", **of_tracker}, "").node
    asked = request([f"{key}={value}" for key, value in given.items()]) if given else None
    made = workspace(
        node["project"],
        node["entity"] or "",
        asked.label if asked else None,
        [key for sweep in asked.sweeps.values() for key in _swept(sweep)] if asked else [],
    )
    print(OUTPUTS[node["mode"]](made))
    return DONE


def _split(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise BadInput(key, "", "must be key=value")
    return key, value


def _swept(sweep: Sweep) -> list[str]:
    """The keys that the sweep's points differ in, as a run's config has them."""
    words = [word for axis, of in sweep.grid.items() for v in of for word in overrides(axis, v)]
    keys = [*(word.split("=")[0] for word in words), *sweep.tune]
    return [f"choice.{key}" if (CONF / key).is_dir() else key for key in keys]
