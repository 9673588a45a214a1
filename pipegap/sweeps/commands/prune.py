"""Deletes checkpoints of selected trials, never of a trial that a process runs.

e.g. pipegap prune checkpoints=finished dry_run=true
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from pipegap.sweeps.commands.list import KEYS, select
from pipegap.trainer.base.cli import DONE, parse, take_choice, take_flag
from pipegap.trainer.base.errors import ENDED, FINAL, Status

STATUSES = {"finished": FINAL, "failed": (Status.FAILED,), "all": (*ENDED, Status.INTERRUPTED)}
OPTIONS = f"""\
{KEYS}
checkpoints=  (required) finished: of trials that no longer need them; failed: of those, which start
            anew then; all: also of interrupted ones, which lose their progress
dry_run=    true says what it would delete, and deletes nothing"""


def main(words: Sequence[str]) -> int:
    """Exit code 0; raises BadInput."""
    values = parse(words, "pipegap prune", __doc__ or "", OPTIONS)
    dry_run = take_flag(values, "dry_run")
    values.setdefault("checkpoints", "")  # nothing is deleted by default
    statuses = STATUSES[take_choice(values, "checkpoints", [*STATUSES])]
    rows = [row for row in select(values).rows() if row["status"] in statuses]
    from pipegap.trainer.store.opened import open_store  # torch is slow

    store = open_store(values.get("results", "results"))
    num_files, num_bytes, num_trials = 0, 0, 0
    # Whoever writes to a bucket drives it: no trial may start there meanwhile.
    with nullcontext() if dry_run else store.driven():
        for spare in store.spare([Path(row["folder"]) for row in rows]):
            num_trials += 1
            num_files += spare.num_files
            num_bytes += spare.num_bytes
            if not dry_run:
                spare.delete()
    verb = "would delete" if dry_run else "deleted"
    print(f"{verb} {num_files} checkpoints of {num_trials} trials, {num_bytes / 1e6:,.1f} MB")
    return DONE
