"""Makes the wandb workspace of a sweep: prints its spec, or saves it to the server.

e.g. pipegap dashboard sweep=main scale=tiny project=pipegap
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.schema import Sweep, keys
from pipegap.sweeps.tracking import tracker
from pipegap.sweeps.tracking.tracker import GROUP
from pipegap.trainer.base.cli import DONE, parse
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import PanelTypes


KEYS = ("project", "entity", "mode")
"""Keys that the dashboard shares with the tracker."""
OPTIONS = """\
sweep=, scale=  the sweep (default: all in the project)
project=, entity=, mode=  as in conf/tracking/wandb.yaml; mode=online saves it, with the key that is
            in WANDB_API_KEY"""


def main(words: Sequence[str]) -> int:
    """Exit code 0. Raises BadInput for a bad key, or if the server refuses the workspace."""
    values = parse(words, "pipegap dashboard", __doc__ or "", OPTIONS)
    # As words of a tracker, so that its own checks and defaults hold here too.
    of_tracker = {f"{GROUP}.{key}": values.pop(key) for key in KEYS if key in values}
    node = tracker.take({GROUP: "wandb", **of_tracker}).node
    request = parse_request([f"{key}={value}" for key, value in values.items()]) if values else None
    workspace = build_workspace(
        node["project"],
        node["entity"] or "",
        [*request.sweeps] if request else [],
        [key for sweep in request.sweeps.values() for key in _swept(sweep)] if request else [],
    )
    print({"offline": spec, "online": save}[node["mode"]](workspace))
    return DONE


def _swept(sweep: Sweep) -> list[str]:
    """The keys in which the sweep's points differ, as they are named in a run's config."""
    words = [word for axis_words in sweep.axes.values() for word in axis_words]
    swept_keys = [*keys(words), *sweep.tune, *sweep.tuning.inverse]
    swept_keys += sweep.search.space if sweep.search else []
    # A choice is a mapping in the config: its name lies under `choice`, where trackers put it.
    return [f"choice.{key}" if (CONF / key).is_dir() else key for key in swept_keys]


ALWAYS = ("optimizer.lr", "optimizer.momentum", "correction.coefficient")
"""Keys, beside the arm and the optimizer, that are axes of the charts of every sweep."""
MAX_RUNS = 200


def build_workspace(
    project: str, entity: str, sweeps: Sequence[str], swept: Sequence[str]
) -> "ws.Workspace":
    """Return a workspace of the runs with a tag of these `sweeps`, or of all runs of the project.

    Sections: losses by update and arm; final losses by arm and over the keys; training. `swept` are
    dotted keys of the config, further axes of the parallel coordinates.
    """
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        project=project,
        entity=entity,
        name=f"pipegap {', '.join(sweeps) or 'all sweeps'}",
        sections=[
            ws.Section(name="Gaps", panels=_curves("val_loss", "train_loss"), is_open=True),
            ws.Section(name="Sweep", panels=_over_keys(swept), is_open=True),
            ws.Section(name="Training", panels=_curves("grad_norm", "lr", "tokens_per_second")),
        ],
        settings=ws.WorkspaceSettings(x_axis="update", max_runs=MAX_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Tags().isin([*sweeps])) if sweeps else "",
            order=[ws.Ordering(ws.Summary("final_val_loss"))],
            pinned_columns=["summary:status", "summary:final_val_loss", "summary:diverged_at"],
        ),
    )


def spec(workspace: "ws.Workspace") -> str:
    """Return the workspace as the server stores it, as JSON; the library keeps this to itself."""
    return workspace._to_model().model_dump_json(by_alias=True, indent=1)


def save(workspace: "ws.Workspace") -> str:
    """Save the workspace to the server, as a new view; return its URL.

    Raises BadInput without a key in the environment, or if the server refuses it.
    """
    import wandb

    if not os.environ.get("WANDB_API_KEY"):
        raise BadInput("mode", "online", "needs a key in the environment, WANDB_API_KEY")
    try:
        workspace.entity = workspace.entity or wandb.Api().default_entity or ""
        url: str = workspace.save().url
    except (wandb.Error, OSError, ValueError) as error:
        allowed = f"the server refused it ({' '.join(str(error).split())})"
        raise BadInput("mode", "online", allowed) from None
    return url


def _curves(*names: str) -> "list[PanelTypes]":
    """Return curves of means over the runs of each arm, and of each optimizer and arm."""
    import wandb_workspaces.reports.v2 as wr

    groups: dict[str, wr.Metric | wr.Config] = {
        "arm": wr.Metric("JobType"),
        "optimizer and arm": wr.Config("choice.series"),
    }
    return [
        wr.LinePlot(
            title=f"{name} by {by}",
            x="update",
            y=[name],
            groupby=key,
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            smoothing_type="none",
            ignore_outliers=False,
            max_runs_to_show=MAX_RUNS,
        )
        for name in names
        for by, key in groups.items()
    ]


def _over_keys(swept: Sequence[str]) -> "list[PanelTypes]":
    import wandb_workspaces.reports.v2 as wr

    loss = wr.SummaryMetric("final_val_loss")
    keys = ["choice.optimizer", *dict.fromkeys([*ALWAYS, *swept])]
    axes: list[wr.Metric | wr.Config | wr.SummaryMetric] = [wr.Metric("JobType")]
    axes += [*map(wr.Config, keys), loss]
    columns = [wr.ParallelCoordinatesPlotColumn(metric=axis) for axis in axes]
    lr, momentum, coefficient = (wr.Config(key) for key in ALWAYS)
    return [
        wr.BarPlot(
            title="final_val_loss by arm",
            metrics=["final_val_loss"],
            groupby=wr.Metric("JobType"),
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
        ),
        wr.ParallelCoordinatesPlot(title="final_val_loss over the swept keys", columns=columns),
        wr.ScatterPlot(title="by learning rate and momentum", x=lr, y=momentum, z=loss, log_x=True),
        wr.ScatterPlot(title="by learning rate and λ", x=lr, y=coefficient, z=loss, log_x=True),
    ]
