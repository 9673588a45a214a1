"""Makes the wandb workspace of a sweep: prints its spec, or saves it to the server."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.request import request
from sweeps.schema import Sweep, overrides
from sweeps.tracking import choice
from sweeps.tracking.choice import GROUP
from sweeps.tracking.workspace import save, spec, workspace
from trainer.compose import CONF
from trainer.words import parse

DONE = 0
KEYS = ("project", "entity", "mode")
"""Keys of the tracker that are the dashboard's too."""
OPTIONS = """\
sweep=, scale=  the sweep (default: all in the project)
project=, entity=, mode=  as in conf/tracking/wandb.yaml; mode=online saves it, with the key that is
            in WANDB_API_KEY"""
OUTPUTS = {"offline": spec, "online": save}


def main(words: Sequence[str]) -> int:
    """Exit code 0. Raises BadInput for a bad key, or where the server does not take it."""
    given = parse(words, "python -m sweeps dashboard", __doc__ or "", OPTIONS)
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


def _swept(sweep: Sweep) -> list[str]:
    """The keys that the sweep's points differ in, as a run's config has them."""
    words = [word for axis, of in sweep.grid.items() for v in of for word in overrides(axis, v)]
    keys = [*(word.split("=")[0] for word in words), *sweep.tune]
    return [f"choice.{key}" if (CONF / key).is_dir() else key for key in keys]
