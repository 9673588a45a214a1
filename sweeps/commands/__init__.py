"""What `python -m sweeps` can do: a module a command, each with `main(words) -> exit code`."""

COMMANDS = {
    "run": "what is missing of a sweep, then report gaps (the default)",
    "submit": "the same as a job of a Ray cluster",
    "jobs": "the cluster's jobs of ours",
    "stop": "ends such jobs, with checkpoints",
}
"""The first word of the command line → what it does."""
