"""Writes the trials of an entry of the delay track, and what it costs, into its folder.

e.g. pipegap enter entries/adamw
     pipegap enter entries/adamw levels=[1,2,4,8]
"""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pipegap.sweeps.plan.sweep_plan import SweepPlan, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.entry import COST, TRIALS, Entry, check_entry, table_of
from pipegap.trainer.base.atomic import write_atomically, write_json
from pipegap.trainer.base.cli import DONE, Given, parse
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.opened import pulled
from pipegap.trainer.store.snapshot import Snapshot

KEYS = """\
entry:      (required) its folder, the first word: entries/NAME
results=    the store in which `pipegap sweep sweep=entry` has run its trials (default: results)
data.path=  where their data lies, if not in data/wiki
levels=     delays, as those of the sweep: writes levels.csv, a second table
KEY=        any other word of that sweep, for trials by other rules than the track's: scale=micro"""
OF_TRACK = ("data.path", "levels")
"""Words of a sweep that change no rule."""
BURN_IN, UPDATES, TURNS = 3, 10, 9
"""The first updates are not timed; then so many at a time, in turns with AdamW's."""


def main(words: Sequence[str]) -> int:
    """Exit code 0; raises BadInput for an entry that breaks a rule, or lacks trials."""
    folder, values = folder_and_values(words, "enter", __doc__ or "", KEYS)
    print(enter(folder, values.pop("results", "results"), [*map("=".join, values.items())]))
    return DONE


def folder_and_values(
    words: Sequence[str], command: str, does: str, keys: str
) -> tuple[Path, Given]:
    """Return the folder of the entry, which is the first word, and key → value of the others."""
    first = words[0] if words and "=" not in words[0] and words[0][:1] != "-" else None
    option_words = words if first is None else words[1:]
    values = parse(option_words, f"pipegap {command}", does, keys)
    if first is None:
        raise BadInput("entry", "", f"must be named: pipegap {command} entries/NAME")
    if not (folder := Path(first)).is_dir():
        raise BadInput("entry", first, "must be the folder of an entry")
    return folder, values


def plan_of(
    code: Path, results: str | Path, words: Sequence[str], snapshot: Snapshot | None = None
) -> SweepPlan:
    """Return the plan of an entry's sweep, by the results that a store or the `snapshot` has."""
    request = parse_request(["sweep=entry", f"code={code}", f"results={results}", *words])
    [plan] = plan_sweeps(request, snapshot)
    return plan


def enter(folder: Path, results: str, words: Sequence[str]) -> str:
    """Write TRIALS and COST, or LEVELS if `words` have levels; return a line that says it. Raises
    BadInput as `main`."""
    from pipegap.analysis.report.report import PATHS
    from pipegap.analysis.table.load import as_csv, load

    entry = check_entry(folder)
    store = pulled(results)
    snapshot = Snapshot()
    plan = plan_of(folder, results, words, snapshot)
    todo = [trial for trial in plan.planned if snapshot.finished(trial) is None]
    if todo or not plan.settled:
        command = shlex.join(["pipegap", "sweep", "sweep=entry", f"code={folder}", *words])
        allowed = f"lacks {len(todo)} of its trials: {command} runs them"
        raise BadInput("results", results, allowed)
    if not all(point.arms for point in plan.points):
        raise BadInput("results", results, "has no learning rate at which sync completes")
    trials = load(store, {trial.trial_id for trial in plan.planned})
    published = trials.drop(columns=PATHS, errors="ignore").sort_values("trial_id")
    path = folder / table_of(words)
    write_atomically(path, as_csv(published).encode())
    if path.name == TRIALS:
        write_json(folder / COST, cost(entry, plan))
    command = shlex.join(["pipegap", "verify", str(folder), *words])
    return f"{path}: {len(published)} trials; next: {command}"


# What an entry costs: numbers that it keeps, and time.


def cost(entry: Entry, plan: SweepPlan) -> dict[str, Any]:
    """Return `state_per_parameter`, how many numbers optimizer and correction keep for each weight,
    and `time`, the CPU time of an update over AdamW's with the plain delay, measured on this
    machine's `processor`."""
    from pipegap.trainer.base.resources import processor_name  # torch is slow
    from pipegap.trainer.config.compose import compose
    from pipegap.trainer.config.schema import validate

    config = entered_config(entry, plan)
    adamw = compose(["optimizer=adamw", "pipeline=pipedream_2bw"])
    plain = {**config, "optimizer": adamw["optimizer"], "correction": adamw["correction"]}
    return {
        "state_per_parameter": state_per_parameter(config),
        "time": _time_ratio(config, validate(plain)),
        "processor": processor_name(),
    }


def entered_config(entry: Entry, plan: SweepPlan) -> dict[str, Any]:
    """Return the config of the delayed arm at the first optimizer, with the correction if that is
    what is entered."""
    arms = plan.points[0].choice.point.configs
    late = [arm for arm in arms if arm != "sync"]
    return {**arms[late[0] if entry.kind == "optimizer" else late[1]], "seed": 0}


def state_per_parameter(config: Mapping[str, Any]) -> float:
    """Return how many numbers are kept for each weight, after BURN_IN updates."""
    from torch import Tensor  # slow
    from torch.utils._pytree import tree_leaves

    executor, num_parameters = _executor(config)
    executor.run(0, BURN_IN, lambda update: None)
    states = [(weight["optimizer"], weight["correction"]) for weight in executor.state().values()]
    leaves = [leaf for leaf in tree_leaves(states) if isinstance(leaf, Tensor) and leaf.dim()]
    return round(sum(leaf.numel() for leaf in leaves) / num_parameters, 2)


def _time_ratio(config: Mapping[str, Any], base_config: Mapping[str, Any]) -> float:
    executors = [_executor(c)[0] for c in (config, base_config)]
    seconds: list[list[float]] = [[], []]
    for executor in executors:
        executor.run(0, BURN_IN, lambda update: None)
    for turn in range(TURNS):
        for executor, of_executor in zip(executors, seconds, strict=True):
            first, start = BURN_IN + turn * UPDATES, time.process_time()
            executor.run(first, first + UPDATES, lambda update: None)
            of_executor.append(time.process_time() - start)
    return round(median(seconds[0]) / median(seconds[1]), 2)


def _executor(config: Mapping[str, Any]) -> tuple[Any, int]:
    """Return what trains this config here, and the number of its weights."""
    import torch  # slow

    from pipegap.trainer.parts import build_emulated, build_parts

    torch.set_num_threads(1)
    parts = build_parts(config, config["num_updates"])
    torch.manual_seed(0)
    return build_emulated(config, parts, torch.device("cpu")), parts.model.num_parameters
