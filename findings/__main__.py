"""Publishes trials, and makes the front page's parts from those of its job.

python -m findings                                      # what `make docs` calls
python -m findings publish study=momentum results=results
"""

import sys
import warnings
from pathlib import Path

import pandas as pd

from pipegap.analysis.report.report import PATHS
from pipegap.analysis.table.load import as_csv, load
from pipegap.sweeps.request.schema import known
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.cli import (
    DONE,
    end_with,
    exit_code,
    one_of,
    parse,
    refuse_others,
    split_command,
    take_flag,
)
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.opened import pulled
from pipegap.trainer.store.records import records

FINDINGS = Path(__file__).parent
COMMANDS = ("front", "publish")
KEYS = """keys of publish:
  study=STUDY    a folder of findings/
  results=PATH   the store of the trials
  sweep=NAMES    the sweeps whose trials are compared (default: the study)
  scale=SCALE    the scale of the trials (default: tiny)
  table=NAME     the table that is written (default: trials_SCALE)
  longer=true    also the longer runs that advice needs, and whatever else the sweeps trained"""


def main() -> int:
    """Runs the command; returns the exit code."""
    return exit_code("python -m findings", _command)


def _command() -> int:
    command, words = split_command(sys.argv[1:], COMMANDS, "front")
    values = parse(words, "python -m findings", "makes the front page, or publishes trials", KEYS)
    if command == "publish":
        print(publish(**_publish_words(values)))
        return DONE
    refuse_others(values, "python -m findings")
    from findings.front import write  # with the notebook's kernel, which publishing needs not

    warnings.simplefilter("ignore", UserWarning)  # of commits: the job's trials are of several
    write()
    return DONE


def _publish_words(values: dict[str, str]) -> dict[str, str]:
    """The words of `publish`. Raises BadInput for another one, or if one is missing."""
    for key in ("study", "results"):
        if key not in values:
            raise BadInput(key, "", "must be given: python -m findings publish study=… results=…")
    keys = ("study", "results", "sweep", "scale", "table", "longer")
    words = {key: values.pop(key) for key in keys if key in values}
    refuse_others(values, "python -m findings publish")  # what is left is no key
    return words


def publish(
    study: str,
    results: str,
    sweep: str = "",
    scale: str = "tiny",
    table: str = "",
    longer: str = "false",
    findings: str | Path = FINDINGS,
) -> str:
    """Writes the finished trials that sweeps compare in a store as a table of a study; with
    `longer=true` all that they trained.

    Returns a line that says what it wrote. Raises BadInput for an unknown study or sweep, a store
    that has no such trial, trials of other data than each other or than those published before, and
    if a trial that was published before is not among them.
    """
    findings = Path(findings)
    studies = sorted(path.name for path in findings.iterdir() if (path / "README.md").is_file())
    if study not in studies:
        raise one_of("study", study, studies)
    sweeps = (sweep or study).split(",")
    for name in sweeps:
        if name not in known("sweep"):
            raise one_of("sweep", name, known("sweep"))
    store = pulled(results)
    every = take_flag({"longer": longer}, "longer")
    selection = {
        trial
        for record in records(store)
        if record.sweep in sweeps and record.scale == scale
        for trial in (record.trials if every else record.compared)
    }
    trials = load(store, selection)
    # A trial that diverged is a result too, without a loss.
    trials = trials[trials["final_val_loss"].notna() | (trials["status"] == "diverged")]
    if trials.empty:
        allowed = f"must have finished trials of sweep={','.join(sweeps)} scale={scale}"
        raise BadInput("results", results, allowed)
    path = findings / study / f"{table or f'trials_{scale}'}.csv"
    _check(trials, path)
    # By id: a table that is published again differs by its new lines alone.
    published = trials.drop(columns=PATHS, errors="ignore").sort_values("trial_id")
    write_atomically(path, as_csv(published).encode())
    commits = published["git"].nunique()
    note = f"; they are of {commits} commits" if commits > 1 else ""
    return f"{path.relative_to(findings.parent)}: {len(published)} trials{note}"


def _check(trials: pd.DataFrame, path: Path) -> None:
    """Raises BadInput for trials of several data, or that are not all that `path` has already."""
    published_before = load(path) if path.is_file() else trials
    hashes = pd.concat([trials, published_before]).groupby("data")["data_hash"].nunique()
    if (hashes > 1).any():
        raise BadInput("results", path.name, "must be trials of the data of those published before")
    if num_lost := len({*published_before["trial_id"]} - {*trials["trial_id"]}):
        allowed = f"has {num_lost} published trials that the store lacks: choose another table="
        raise BadInput("table", path.name, allowed)


if __name__ == "__main__":
    end_with(main)
