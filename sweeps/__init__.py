"""Many trials: expands a sweep into unique trials and runs what is missing on Ray Tune."""

import os

# Ray reads these when it is imported. Without a cluster to join, its servers listen on loopback
# only (the switch is named for the systems on which that is Ray's own default).
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune's own tables, in place of our display
os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "1000")  # tune_hooks.py has the limit
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # trials save a checkpoint first
if not os.environ.get("RAY_ADDRESS"):
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # Where the driver is killed, what is left of its cluster looks for the rest so many seconds.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
