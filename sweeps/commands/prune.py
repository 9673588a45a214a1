"""Deletes checkpoints of trials of a store, never of one that a process runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.progress import FINAL
from sweeps.select import KEYS, select
from trainer.lease import holder
from trainer.words import parse, take_choice, take_flag

DONE = 0
PATTERNS = ("checkpoint-*.pt", ".checkpoint-*.partial")
"""Checkpoints, and what is left of one whose writer was killed."""
STATUSES = {
    "finished": FINAL,
    "failed": ("failed",),
    "all": (*FINAL, "failed", "interrupted"),
}
OPTIONS = f"""\
{KEYS}
checkpoints=  finished: of trials that need them no more; failed: those start anew then; all: also
            of interrupted ones, which lose what they have done
dry_run=    true deletes nothing and says what it would"""


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
    does = "would delete" if dry_run else "deleted"
    print(f"{does} {num_files} checkpoints of {num_trials} trials, {num_bytes / 1e6:,.1f} MB")
    return DONE


def _files(folder: Path) -> Iterator[Path]:
    for pattern in PATTERNS:
        yield from folder.glob(pattern)
