"""What `python -m sweeps` can do: a module a command, each with `main(words) -> exit code`."""

COMMANDS = {
    "run": "what is missing of a sweep, then report gaps (the default)",
    "status": "how far a sweep is that runs elsewhere",
}
"""The first word of the command line → what it does."""
