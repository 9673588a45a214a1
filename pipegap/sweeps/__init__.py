"""Many trials: expands a sweep into unique trials and runs what is missing on Ray Tune."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "sweeps":  # found beside the package, in a checkout
    raise ImportError("pipegap: its packages have one name: import pipegap.sweeps")

if TYPE_CHECKING:
    from pipegap.sweeps.plan.sweep_plan import plan_sweeps
    from pipegap.sweeps.request.command_line import parse_request

__all__ = ["parse_request", "plan_sweeps"]

MODULES = {
    "parse_request": "pipegap.sweeps.request.command_line",
    "plan_sweeps": "pipegap.sweeps.plan.sweep_plan",
}
"""Name → its module, which is imported when the name is used: a worker needs few of them."""

# Ray reads these when it is imported. Without a cluster to join, its servers listen on loopback
# only (the switch is named for the systems on which that is Ray's own default).
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune's own tables, in place of our display
os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "1000")  # cluster/driver.py has it
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # trials save a checkpoint first
# Under `uv run` Ray would send the working folder to the workers and start them by uv; ours import
# what the driver imports, from where it does.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
for name in ("TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR"):
    os.environ.pop(name, None)  # of earlier versions: where one is set, Tune raises a warning
if os.environ.get("RAY_ADDRESS", "local") in ("", "local"):
    os.environ.pop("RAY_ADDRESS", None)  # the cluster is ours, however it is said
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # Where the driver is killed, what is left of its cluster looks for the rest so many seconds.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
