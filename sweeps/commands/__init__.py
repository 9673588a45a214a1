"""What `python -m sweeps` can do: a module a command, each with `main(words) -> exit code`."""

COMMANDS = {
    "run": "what is missing of a sweep, then report gaps (the default)",
    "status": "how far a sweep is that runs elsewhere",
    "list": "trials of a store, by what is known of them",
    "rerun": "selected trials again",
    "prune": "deletes checkpoints of selected trials",
    "dashboard": "the wandb workspace of a sweep: prints it, or saves it",
    "submit": "the same as a job of a Ray cluster",
    "jobs": "the cluster's jobs of ours",
    "stop": "ends such jobs, with checkpoints",
}
"""The first word of the command line → what it does."""
