"""Runs trials of a store again, from their recorded configs.

e.g. pipegap rerun status=failed,interrupted dry_run=true
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipegap.sweeps.cluster.notices import Ends
from pipegap.sweeps.cluster.queue import WorkList
from pipegap.sweeps.cluster.rounds import require_ready
from pipegap.sweeps.commands.list import KEYS, select
from pipegap.sweeps.request.command_line import CHOICES, parse_gpus
from pipegap.sweeps.request.expand import Trial, placed
from pipegap.sweeps.tracking import tracker
from pipegap.sweeps.view.progress import Progress
from pipegap.trainer.base.cli import DONE, FAILED, parse, take_choice, take_flag
from pipegap.trainer.base.errors import FINAL, BadInput, Status, Stopped
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.config.schema import validate
from pipegap.trainer.folder.wellformed import CONFIG, Row, failures, read, trial_folder
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.snapshot import Snapshot

if TYPE_CHECKING:
    from pipegap.sweeps.cluster.connection import Session

OPTIONS = f"""\
{KEYS.replace("COLUMN=     only", "COLUMN=     (required, one at least) only")}
force=      true runs finished trials again too, from the start; what they made before is kept in
            earlier-<n>/ of their folders
dry_run=    true says what would run
gpus_per_trial=, first_trial=, tracking=  as of `pipegap sweep`

Failed and interrupted trials go on from their checkpoints. Trials that a process runs are left."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a trial failed, is still to do or cannot run, 143 stopped.

    Raises BadInput.
    """
    values = parse(words, "pipegap rerun", __doc__ or "", OPTIONS)
    force, dry_run = take_flag(values, "force"), take_flag(values, "dry_run")
    gpus_per_trial = parse_gpus(values.pop("gpus_per_trial", "1"))
    first_trial = CHOICES[take_choice(values, "first_trial", [*CHOICES])]
    tracking = tracker.take(values, values.get("code"))
    store = open_store(values.get("results", "results"))
    if not values.keys() - {"results"}:
        raise BadInput("rerun", "", "must say which trials, e.g. status=failed")
    rows = select(values).rows()
    # A trial that a process runs stays in any case: two processes must not write one folder.
    stays = (Status.RUNNING,) if force else (Status.RUNNING, *FINAL)
    trials, refused = _trials([row for row in rows if row["status"] not in stays], store.folder)
    print(f"{len(rows)} trials selected, {len(trials)} to run", flush=True)
    for status in stays:
        if num_left := sum(row["status"] == status for row in rows):
            is_run = status == Status.RUNNING
            why = "a process runs them" if is_run else "force=true runs them again"
            print(f"{num_left} {status} are left as they are: {why}")
    if dry_run or not trials:
        return FAILED if refused else DONE
    snapshot = Snapshot()
    require_ready(store, [trial for trial in trials if snapshot.finished(trial) is None])
    from pipegap.sweeps.cluster.connection import session  # Ray is slow

    wishes = gpus_per_trial, tracking
    with store.driven(), session("rerun", store, *wishes, Ends()) as running_session:
        stopped = _run(trials, running_session, first_trial, snapshot)
    store.pull()
    exit_code = _report(trials, snapshot.again())
    if stopped:
        return Stopped.exit_code
    return FAILED if refused else exit_code


def _trials(rows: Sequence[Row], results: Path) -> tuple[list[Trial], int]:
    """The trials that can run, and the number of those that cannot; prints which and why."""
    trials, refused = [], 0
    for row in rows:
        try:
            trials.append(recorded(Path(row["folder"]), row["arm"], row["trial_id"], results))
        except BadInput as error:
            refused += 1
            print(f"left out: {error}", file=sys.stderr)
    return trials, refused


def recorded(folder: Path, arm: str, trial_id: str, results: Path) -> Trial:
    """The trial recorded in a folder of the store `results`, on whatever machine it was made.

    Raises BadInput if on this data and with this trainer its config has another id.
    """
    try:
        config = read(folder / "config.json", CONFIG)
        config = validate(placed({**config, "out": None}, results))
        plan = plan_trial(config)
    except (OSError, ValueError, LookupError) as error:
        raise BadInput("trial", trial_id, f"has a config that cannot run ({error})") from None
    if plan.trial_id != trial_id:  # it would make other numbers under the name of the old ones
        allowed = f"was made on other data or by another trainer: now it would be {plan.trial_id}"
        raise BadInput("trial", trial_id, allowed)
    # `out` stays null where the folder is the trial's place in the store, wherever that was moved.
    if trial_folder(config, trial_id) != folder.absolute():
        config["out"] = str(folder.absolute())
    return Trial(arm, config, plan, sweeps=("rerun",))


def _run(
    trials: Sequence[Trial],
    running_session: "Session",
    first_trial: bool | None,
    snapshot: Snapshot,
) -> bool:
    """Runs the trials; returns whether a signal asked to stop.

    Trials that had not started by then get the output of their earlier run back.
    """
    from pipegap.sweeps.cluster.driver import run_trials
    from pipegap.sweeps.cluster.first_trial import try_first

    done = [trial for trial in trials if snapshot.finished(trial) is not None]
    if not done:  # else some of them are known to run to their end
        try_first(running_session, trials, first_trial)
    store = running_session.store
    work, restores = WorkList(store), [store.archive(trial) for trial in done]
    store.pull()  # a bucket's copy still has the results that were put aside
    work.add(trials)
    try:
        run_trials(running_session, work, trials)
    finally:
        for restore in restores:  # does nothing for a trial that has a new attempt
            restore()
    return running_session.asked_to_stop()


def _report(trials: Sequence[Trial], snapshot: Snapshot) -> int:
    progress = Progress(trials)
    progress.refresh(progress.trials, snapshot)
    print(", ".join(f"{count} {status}" for status, count in sorted(progress.counts.items())))
    failed = [(t.name, row) for t in trials if (row := snapshot.failure(t)) is not None]
    for line in failures(failed, len(trials)):
        print(line)
    if num_interrupted := progress.counts[Status.INTERRUPTED]:
        print(f"stopped with {num_interrupted} trials to go: rerun status=interrupted resumes them")
    return DONE if all(state.status in FINAL for state in progress.states.values()) else FAILED
