"""Lists what is damaged or out of place in a store, and mends what can be mended."""

import warnings
from collections.abc import Sequence

from trainer.base.cli import DONE, FAILED, parse, refuse_others, take_flag
from trainer.base.errors import BadInput

OPTIONS = """\
results=    the store (default: results): a folder, or s3://BUCKET/PREFIX
repair=     true mends what can be mended: a register from the objects of its trial, an object from
            the copy on this machine, a marker from the name of its folder. Nothing is deleted."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 nothing is wrong, or all is mended; 1 something is left. Raises BadInput."""
    given = parse(words, "python -m sweeps check", __doc__ or "", OPTIONS)
    repair, results = take_flag(given, "repair"), given.pop("results", "results")
    refuse_others(given, "python -m sweeps check")
    from sweeps.store.opened import open_store  # torch is slow

    store = open_store(results)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # problems say it
        store.pull()
    if not store.folder.is_dir():
        raise BadInput("results", results, "must be a folder that holds trials (no such folder)")
    num = num_left = 0
    for problem in store.problems():
        mended = repair and problem.mend()
        print(f"{problem}{', which was done' if mended else ''}")
        num, num_left = num + 1, num_left + (not mended)
    print(f"{num} problems, {num - num_left} of them mended")
    return FAILED if num_left else DONE
