"""Says whether an entry of the delay track stands: whether its table is what its code makes.

e.g. pipegap verify entries/adamw
"""

import hashlib
import json
import math
import os
import random
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from pipegap.sweeps.commands.enter import (
    OF_TRACK,
    entered_config,
    folder_and_values,
    plan_of,
    state_per_parameter,
)
from pipegap.sweeps.plan.sweep_plan import SweepPlan
from pipegap.sweeps.request.command_line import parse_count
from pipegap.sweeps.request.entry import COST, TUNED, Entry, check_entry, clean_copy, table_of
from pipegap.sweeps.request.expand import Trial, unique, value_of
from pipegap.sweeps.request.schema import MAX_TRIALS
from pipegap.trainer.base.cli import DONE, FAILED, say
from pipegap.trainer.base.errors import BadInput, short
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.store.store import Stored

KEYS = """\
entry:      (required) its folder, the first word: entries/NAME
salt=       text that the draw depends on too: authors who know none of it cannot choose what is
            drawn
results=    a folder for the trials that are run here, which goes on where it was stopped; it must
            not be that of the entry's own trials (default: none that stays)
drawn=      how many trials are drawn, or all (default: 8)
data.path=  where their data lies, if not in data/wiki
levels=     the delays of levels.csv, to verify that table
KEY=        any other word of the sweep, for trials by other rules than the track's: scale=micro"""
NUM_DRAWN = 8
"""Trials of the table that are run again, beside those that decide the learning rate."""
NUM_HIDDEN = 8
"""Seeds that the table does not have, at which all arms are run."""
SEEDS = range(1000, 2**31)
"""From which hidden seeds are drawn."""
REACH_OUT = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
"""Python's audit events of what an entry's code never does."""


class PublishedTrials(Snapshot):
    """The losses that a table says of its trials, by their ids."""

    def __init__(self, table: Iterable[Row]) -> None:
        super().__init__()
        self.losses = {row["trial_id"]: _loss(row) for row in table}

    def final_loss(self, trial: Stored) -> float | None:
        """See `Snapshot.final_loss`."""
        return self.losses.get(trial.trial_id)


class Refused(Exception):
    """Why an entry does not stand, in one line."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 the entry stands, 1 it does not. Raises BadInput for one that breaks a rule."""
    folder, values = folder_and_values(words, "verify", __doc__ or "", KEYS)
    salt, results = values.pop("salt", ""), values.pop("results", None)
    drawn = values.pop("drawn", str(NUM_DRAWN))
    num_drawn = MAX_TRIALS if drawn == "all" else parse_count("drawn", drawn, low=0)
    other_rules = [f"{key}={value}" for key, value in values.items() if key not in OF_TRACK]
    by_rules = f" (by other rules: {' '.join(other_rules)})" if other_rules else ""
    try:
        with TemporaryDirectory(prefix="pipegap-verify-") as temporary:
            store = Path(results or Path(temporary, "results"))
            request_words = [*map("=".join, values.items())]
            text = verify(folder, store, Path(temporary, "code"), request_words, salt, num_drawn)
    except Refused as refusal:
        print(f"{folder} does not stand: {refusal}{by_rules}")
        return FAILED
    print(f"{text}{by_rules}")
    return DONE


def verify(
    folder: Path,
    store: Path,
    copy: Path,
    words: Sequence[str],
    salt: str = "",
    num_drawn: int = NUM_DRAWN,
) -> str:
    """Return the line that says that an entry stands; raise Refused or BadInput if it does not.

    Trials are run in the folder `store`, from the `copy` of the entry that is made.
    """
    from pipegap.analysis.table.load import load
    from pipegap.analysis.track import comparisons, diverges_more

    entry = check_entry(folder)
    path = folder / table_of(words)
    if not path.is_file():
        command = shlex.join(["pipegap", "enter", str(folder), *words])
        raise BadInput("entry", folder, f"has no {path.name}: {command} writes it")
    table: list[Any] = load(path).to_dict("records")
    plan = plan_of(clean_copy(folder, copy), store, words, PublishedTrials(table))
    rows = check_table(plan, table, path.name)
    check_cost(folder, entry, plan)
    draw = random.Random(fingerprint(table, salt))
    drawn = drawn_trials(plan, draw, num_drawn)
    seeds = draw.sample(SEEDS, NUM_HIDDEN)
    choices = {
        _optimizer(point.choice.point.configs["sync"]): point.choice for point in plan.points
    }
    hidden = {name: choice.arms_at(choice.point, seeds) for name, choice in choices.items()}
    hidden_trials = [trial for trials in hidden.values() for trial in trials]
    todo = unique([*drawn, *hidden_trials])
    say(f"{len(drawn)} of {len(rows)} trials and {len(todo) - len(drawn)} at hidden seeds run here")
    results = run_here(todo, copy)
    check_arms(plan, rows, path.name, hidden_trials, results)
    num_equal = compare(drawn, rows, results, plan)
    by_arm = {name: _by_arm(choice.arms, rows) for name, choice in choices.items()}
    hidden_losses = {name: _by_arm(trials, results) for name, trials in hidden.items()}
    for name, arms in by_arm.items():
        for arm, losses in arms.items():
            if diverges_more(losses, hidden_losses[name][arm]):
                raise Refused(f"{name} {arm} diverges at another share of the hidden seeds")
    compared = comparisons(by_arm, hidden_losses)
    if wrong := [comparison for comparison in compared if not comparison.agrees]:
        raise Refused(f"{wrong[0].text}; once in 100 of entries that are right")
    delay_comparison = next(c for c in compared if "gap of" in c.what)
    return (
        f"{folder} stands: {len(drawn)} of {len(rows)} trials run again, {num_equal} to the same "
        f"bits; {delay_comparison.text}, and {len(compared) - 1} more agree"
    )


def _optimizer(config: Mapping[str, Any]) -> str:
    return str(config["choices"]["optimizer"])


# Whether a table has the trials that the rules ask for, and no others.


def check_table(plan: SweepPlan, table: Iterable[Row], name: str) -> dict[str, Row]:
    """Return the rows of the table `name` by their ids; raise BadInput if they are not the trials
    that the rules ask for, by the losses of the table itself, or say something else of a trial."""
    planned = {trial.trial_id: trial for trial in plan.planned}
    rows = {str(row["trial_id"]): row for row in table}
    ended_ids = {i for i, row in rows.items() if row["status"] in ("completed", "diverged")}
    if missing := [trial for i, trial in planned.items() if i not in ended_ids]:
        allowed = f"lacks {len(missing)} trials that the rules ask for, such as {missing[0].name}"
        raise BadInput("table", name, f"{allowed}: a file, a rate or a seed was changed")
    if surplus_ids := sorted({*rows} - {*planned}):
        row = rows[surplus_ids[0]]
        example = f"{row['optimizer']} {row['arm']} {TUNED}={row[TUNED]} seed {row['seed']}"
        allowed = f"has {len(surplus_ids)} trials that the rules do not ask for, such as {example}"
        raise BadInput("table", name, allowed)
    for trial_id, trial in planned.items():
        config = trial.config
        expected = {
            "seed": config["seed"],
            TUNED: value_of(config, TUNED),
            "optimizer": _optimizer(config),
            "correction": config["choices"]["correction"],
            "num_updates_asked": trial.plan.num_updates,
        }
        for key, value in expected.items():
            _require_value(rows[trial_id], key, value, name)
    return rows


def check_arms(
    plan: SweepPlan,
    rows: Mapping[str, Row],
    name: str,
    trials: Iterable[Trial],
    results: Mapping[str, Row],
) -> None:
    """Raise BadInput if a row of the table `name` says another arm than the results of `trials`,
    which were run here in every arm, do.

    An arm's name is made of what a trial counted, so the plan alone does not know it. Digests of
    code are not compared: the ids of trials hold them.
    """
    from pipegap.analysis.table.rows import arm_columns

    arms = {
        trial.arm: arm_columns(trial.config, results[trial.trial_id])["arm"].partition("~")[0]
        for trial in trials
    }
    for trial in plan.planned:
        row = rows[trial.trial_id]
        _require_value({**row, "arm": row["arm"].partition("~")[0]}, "arm", arms[trial.arm], name)


def _require_value(row: Row, key: str, value: object, table: str) -> None:
    if row[key] != value:
        raise BadInput(f"{table}: {key}", row[key], f"must be {value} of trial {row['trial_id']}")


def check_cost(folder: Path, entry: Entry, plan: SweepPlan) -> None:
    """Raise BadInput for a cost.json with another state than the entry has. Its time is not looked
    at: it is another one on each machine."""
    try:
        stated_state = json.loads((folder / COST).read_text("utf-8"))["state_per_parameter"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadInput("entry", folder / COST, f"must be as enter writes it ({error})") from None
    measured = state_per_parameter(entered_config(entry, plan))
    if stated_state != measured:
        raise BadInput(f"{COST}: state_per_parameter", stated_state, f"must be {measured}")


# What is drawn, by a hash of the table.


def fingerprint(table: Iterable[Row], salt: str) -> int:
    """Return a hash of the ids and losses of a table, and of the salt."""
    lines = sorted(f"{row['trial_id']} {row['final_val_loss']!r}" for row in table)
    digest = hashlib.sha256("\n".join([*lines, salt]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def drawn_trials(plan: SweepPlan, draw: random.Random, number: int) -> list[Trial]:
    """Return so many trials of the plan, and for each point those that decide its learning rate:
    the best one and its two neighbours. A table in which another rate was to look best has a wrong
    loss among these, as far as the loss has one minimum."""
    deciding = []
    for point in plan.points:
        tried, best = point.choice.tried, point.choice.best_of_arms["sync"]
        place = [setting.values for setting in tried].index(best.values)
        nearest_settings = tried[max(0, place - 1) : place + 2]
        deciding += [trial for setting in nearest_settings for trial in setting.trials]
    ids = {trial.trial_id for trial in deciding}
    remaining_trials = sorted(
        (t for t in unique(plan.planned) if t.trial_id not in ids), key=lambda t: t.trial_id
    )
    return unique([*deciding, *draw.sample(remaining_trials, min(number, len(remaining_trials)))])


# Trials that are run here, in processes of their own.


def run_here(trials: Sequence[Trial], code: Path) -> dict[str, Row]:
    """Return the results of the trials by their ids, one on each core at a time. Raises Refused for
    a trial that fails, as does one whose code opens the data."""
    workers = min(len(trials), len(os.sched_getaffinity(0)))
    paths = {str(path) for trial in trials if (path := trial.config["data"].get("path"))}
    results = {}
    with ProcessPoolExecutor(
        workers, get_context("spawn"), _guard, (str(code), sorted(paths))
    ) as pool:
        running = {pool.submit(_run, trial.config): trial for trial in trials}
        for future in as_completed(running):
            trial = running[future]
            try:
                results[trial.trial_id] = future.result()
            except Exception as error:
                pool.shutdown(wait=False, cancel_futures=True)
                raise Refused(f"{trial.name} fails here: {short(str(error))}") from None
    return results


def _run(config: Mapping[str, Any]) -> Row:
    from pipegap.trainer.trial import run_trial  # torch is slow

    return run_trial(config)


def _guard(code: str, paths: Iterable[str]) -> None:
    """Let no function of the entry's code open the data, or start a process, in this process."""
    folder = os.path.realpath(code) + os.sep
    data = tuple(os.path.realpath(path) + os.sep for path in paths)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        is_data = False
        if event == "open" and isinstance(arguments[0], str | bytes):  # else a descriptor
            is_data = os.path.realpath(os.fsdecode(arguments[0])).startswith(data)
        if not is_data and event not in REACH_OUT:
            return
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if os.path.realpath(frame.f_code.co_filename).startswith(folder):
                what = "opens the data" if is_data else f"calls {event}"
                raise PermissionError(f"the entry's code {what}: {frame.f_code.co_filename}")
            frame = frame.f_back

    sys.addaudithook(refuse)


# What came out here beside what the table says.


def compare(
    drawn: Sequence[Trial], rows: Mapping[str, Row], results: Mapping[str, Row], plan: SweepPlan
) -> int:
    """Return how many trials gave the same bits. Raises Refused for one that should have and did
    not, or that ended too far off on another kind of processor."""
    from pipegap.analysis.track import noise_band

    num_equal = 0
    for trial in drawn:
        row, result = rows[trial.trial_id], results[trial.trial_id]
        table_loss, new_loss = _loss(row), _loss(result)
        if table_loss == new_loss:
            num_equal += 1
            continue
        same_kind = _kind(result["processor"], result["versions"]["torch"]) == _kind(
            row["processor"], row.get("versions.torch")
        )
        ends = f"ends at {new_loss!r} here, {table_loss!r} in the table"
        text = f"trial {trial.trial_id} ({trial.name}) {ends}"
        if same_kind:
            raise Refused(f"{text}, on the same kind of processor")
        arm, optimizer = trial.arm, _optimizer(trial.config)
        of_arm = [
            _loss(rows[seed_trial.trial_id])
            for point in plan.points
            for seed_trial in point.arms
            if (seed_trial.arm, _optimizer(seed_trial.config)) == (arm, optimizer)
        ]
        band = noise_band(of_arm)
        if not abs(new_loss - table_loss) <= band:
            raise Refused(f"{text}, {band:.4f} apart at most on another kind of processor")
    return num_equal


def _kind(processor: object, torch: object) -> tuple[str, str]:
    return str(processor), str(torch)


def _loss(row: Row) -> float:
    loss = row["final_val_loss"]
    return math.inf if loss is None or math.isnan(loss) else float(loss)


def _by_arm(trials: Sequence[Trial], rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the losses of each arm in the order of their seeds."""
    import numpy as np

    arms: dict[str, list[tuple[int, float]]] = {}
    for trial in trials:
        loss = _loss(rows[trial.trial_id])
        arms.setdefault(trial.arm, []).append((trial.config["seed"], loss))
    return {arm: np.array([loss for _, loss in sorted(pairs)]) for arm, pairs in arms.items()}
