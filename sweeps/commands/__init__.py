"""What `python -m sweeps` can do: a module a command, each with `main(words) -> exit code`."""

COMMANDS = {
    "run": "what is missing of a sweep, then report gaps (the default)",
    "dashboard": "the wandb workspace of a sweep: prints it, or saves it",
}
"""The first word of the command line → what it does."""
