"""Deletes checkpoints of selected trials, never of a trial that a process runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.store.selected import KEYS, select
from trainer.base.atomic import partials
from trainer.base.cli import DONE, parse, take_choice, take_flag
from trainer.base.status import ENDED, FINAL, Status
from trainer.folder.lease import holder

STATUSES = {
    "finished": FINAL,
    "failed": (Status.FAILED,),
    "all": (*ENDED, Status.INTERRUPTED),
}
OPTIONS = f"""\
{KEYS}
checkpoints=  finished: of trials that no longer need them; failed: of those, which start anew
            then; all: also of interrupted ones, which lose their progress
dry_run=    true says what it would delete, and deletes nothing"""


def main(words: Sequence[str]) -> int:
    """Exit code 0; raises BadInput."""
    given = parse(words, "python -m sweeps prune", __doc__ or "", OPTIONS)
    dry_run = take_flag(given, "dry_run")
    given.setdefault("checkpoints", "")  # nothing is deleted by default
    chosen = STATUSES[take_choice(given, "checkpoints", [*STATUSES])]
    rows = [row for row in select(given).rows() if row["status"] in chosen]
    folders = [Path(row["folder"]) for row in rows]
    num_files, num_bytes, num_trials = 0, 0, 0
    for folder in folders:
        files = [*_files(folder)]
        if not files or holder(folder) is not None:
            continue
        num_trials += 1
        num_files += len(files)
        num_bytes += sum(path.stat().st_size for path in files)
        for path in files if not dry_run else []:
            path.unlink(missing_ok=True)
    verb = "would delete" if dry_run else "deleted"
    print(f"{verb} {num_files} checkpoints of {num_trials} trials, {num_bytes / 1e6:,.1f} MB")
    return DONE


def _files(folder: Path) -> Iterator[Path]:
    """Checkpoints, and parts of files whose writer was killed."""
    yield from (path for path in folder.glob("checkpoint-*.pt") if path.is_file())
    yield from partials(folder)
