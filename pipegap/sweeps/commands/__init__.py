"""The commands about sweeps: one module per command, with `main(words) -> exit code`.

That of `pipegap sweep` is run.py.
"""

COMMANDS = {
    "sweep": "runs the missing trials of a sweep, then reports gaps",
    "enter": "writes the trials of an entry of the delay track into its folder",
    "verify": "says whether an entry of the delay track stands",
    "status": "shows the progress of a sweep that another process runs",
    "evaluate": "has lm-eval ask trials that kept their weights the questions of downstream tasks",
    "list": "lists selected trials of a store",
    "rerun": "runs selected trials again",
    "prune": "deletes checkpoints of selected trials",
    "dashboard": "prints or saves the wandb workspace of a sweep",
    "submit": "runs a sweep as a job of a Ray cluster",
    "jobs": "lists the jobs of a Ray cluster that are sweeps",
    "stop": "ends such jobs; their trials save checkpoints",
}
"""First word of the command line → what the command does."""
