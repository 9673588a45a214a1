"""Makes the wandb workspace of a sweep: prints its spec, or saves it to the server."""

from collections.abc import Sequence

from sweeps.request.command_line import parse_request
from sweeps.request.schema import Sweep, overrides
from sweeps.tracking import choice
from sweeps.tracking.choice import GROUP
from sweeps.tracking.workspace import build_workspace, save, spec
from trainer.base.cli import DONE, parse
from trainer.base.places import CONF

KEYS = ("project", "entity", "mode")
"""Keys that the dashboard shares with the tracker."""
OPTIONS = """\
sweep=, scale=  the sweep (default: all in the project)
project=, entity=, mode=  as in conf/tracking/wandb.yaml; mode=online saves it, with the key that is
            in WANDB_API_KEY"""
OUTPUTS = {"offline": spec, "online": save}


def main(words: Sequence[str]) -> int:
    """Exit code 0. Raises BadInput for a bad key, or if the server refuses the workspace."""
    given = parse(words, "python -m sweeps dashboard", __doc__ or "", OPTIONS)
    of_tracker = {f"{GROUP}.{key}": given.pop(key) for key in KEYS if key in given}
    node = choice.take({GROUP: "wandb", **of_tracker}).node
    request = parse_request([f"{key}={value}" for key, value in given.items()]) if given else None
    made = build_workspace(
        node["project"],
        node["entity"] or "",
        [*request.sweeps] if request else [],
        [key for sweep in request.sweeps.values() for key in _swept(sweep)] if request else [],
    )
    print(OUTPUTS[node["mode"]](made))
    return DONE


def _swept(sweep: Sweep) -> list[str]:
    """The keys in which the sweep's points differ, as they are named in a run's config."""
    words = [
        word for axis, values in sweep.grid.items() for v in values for word in overrides(axis, v)
    ]
    keys = [*(word.split("=")[0] for word in words), *sweep.tune]
    keys += sweep.search.space if sweep.search else []
    return [f"choice.{key}" if (CONF / key).is_dir() else key for key in keys]
