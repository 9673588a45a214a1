"""How people are told what a sweep tried and chose: in lines, and in a table of tried settings."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipegap.sweeps.plan.choosing import LEAST_GAIN, Choice, TriedSetting, edge_gain
from pipegap.sweeps.request.expand import GridPoint
from pipegap.sweeps.request.schema import Search, Sweep


def remarks(sweep: Sweep, choices: Sequence[Choice]) -> list[str]:
    """Return how settings were chosen, then lines per point; nothing if nothing is tried."""
    if sweep.search is not None:
        lines = (line for choice in choices for line in _search_lines(sweep, sweep.search, choice))
        return [_how_searched(sweep.search), *lines]
    if sweep.tune:
        return [_how_tuned(sweep), *(_tune_line(sweep, choice) for choice in choices)]
    return []


def estimate(sweep: Sweep, choices: Sequence[Choice]) -> list[str]:
    """Return lines on what a plan cannot know yet."""
    num_open = sum(not choice.settled for choice in choices)
    if not num_open:
        return []
    still_open = f"at {num_open} of {len(choices)} points: their arms are priced at"
    if sweep.search is not None:
        num_left = sum(sweep.search.budget - len(choice.tried) for choice in choices)
        trials = num_left * len(sweep.arms) * len(sweep.search.seeds)
        return [
            f"search    nothing is chosen yet {still_open} one setting, of up to "
            f"{len(sweep.arms)}; {trials} further trials, at settings that are not proposed yet, "
            "are not counted"
        ]
    return [
        f"tune      {_keys_are(sweep)} not chosen yet {still_open} the middle of the tried values, "
        "further values are not counted"
    ]


def write(sweep: Sweep, choices: Sequence[Choice], out: Path) -> Iterator[str]:
    """Write one row per tried setting to tuned.csv or searched.csv; yield a line that says so.

    The columns are `point`, the keys, the losses (missing if the trial diverged or has not
    finished) and what was chosen. Nothing is written if nothing is tried.
    """
    search = sweep.search
    if search is not None:
        keys, arms, name, what = [*search.space], [*sweep.arms], "searched.csv", "setting"
        head = ["point", "proposed", *keys, *(f"loss {arm}" for arm in arms), "best of"]
    elif sweep.tune:
        keys, arms = [*sweep.tune, *sweep.tuning.inverse], ["sync"]
        name, what = "tuned.csv", f"value of {_keys(sweep)}"
        head = ["point", *keys, "loss", "chosen"]
    else:
        return
    rows = [
        [
            *(_name(sweep, choice.point), *([number] if search else [])),
            *(setting.values[key] for key in keys),
            *(_finite(setting, arm) for arm in arms),
            " ".join(best_of) if search else bool(best_of),
        ]
        for choice in choices
        for number, setting in enumerate(choice.tried)
        for best_of in [
            [arm for arm, setting_of_arm in choice.chosen.items() if setting_of_arm is setting]
        ]
    ]
    out.mkdir(parents=True, exist_ok=True)
    with (out / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    yield f"in {out}: {name}, every {what} that was tried"


def _finite(setting: TriedSetting, arm: str) -> float | None:
    """Return the loss of an arm; None if it diverged or has not finished."""
    loss = (setting.losses or {}).get(arm, math.inf)
    return None if loss == math.inf else loss


def _how_searched(search: Search) -> str:
    return (
        f"{', '.join(search.space)}: {search.budget} settings that Optuna proposes are tried at "
        f"each point, in every arm, at seed {', '.join(map(str, search.seeds))}; the lowest mean "
        "final loss of an arm there chooses its setting, at which all arms are compared at the "
        "seeds of the sweep"
    )


def _search_lines(sweep: Sweep, search: Search, choice: Choice) -> Iterator[str]:
    name = _name(sweep, choice.point)
    if not choice.settled:
        yield f"{name}: nothing is chosen yet ({len(choice.tried)} of {search.budget} proposed)"
    elif not choice.chosen:
        yield f"{name} is left out: its sync arm diverged at every setting tried"
    for arm, setting in choice.chosen.items():
        words = " ".join(f"{key}={value}" for key, value in setting.values.items())
        loss = (setting.losses or {})[arm]
        yield f"{name}: best of {arm} is {words} ({loss:.4f} at the seeds of choice)"


def _how_tuned(sweep: Sweep) -> str:
    where = "each point" if sweep.shared is None else f"{sweep.shared}, and shared by all others,"
    seed, inverse_keys = sweep.tuning.seed, " and ".join(sweep.tuning.inverse)
    by = (
        f"{_keys_are(sweep)} chosen for {where} by the lowest final validation loss of its sync arm"
    )
    product = f"; {inverse_keys} is divided by the same factor" if inverse_keys else ""
    if seed is not None:
        return f"{by} at seed {seed}, which compares nothing{product}"
    return (
        f"{by} at seed {sweep.seeds[0]} alone{product}. That trial is compared below too: the "
        "choice favours sync at that seed"
    )


def _tune_line(sweep: Sweep, choice: Choice) -> str:
    tried = ", ".join(f"{_numbers(setting)}: {_loss(setting)}" for setting in choice.tried)
    leader = choice.leader
    source = f"tried {tried}" if leader is None else f"as of {_name(sweep, leader)}"
    name = _name(sweep, choice.point)
    if not choice.settled:
        return f"{name}: {_keys_are(sweep)} not chosen yet ({source})"
    if not choice.chosen:
        return f"{name} is left out: its sync arm diverged at every {_keys(sweep)} tried ({source})"
    setting = choice.chosen["sync"]
    words = " ".join(f"{key}={value:g}" for key, value in setting.values.items())
    note = _edge_note(setting, choice.tried) if choice.tried else ""
    return f"{name}: {words}{note} ({source})"


def _edge_note(setting: TriedSetting, tried: Sequence[TriedSetting]) -> str:
    """Why tuning ended where a value is the smallest or largest of its key that was tried; empty if
    each lies inside."""
    losses = {tuple(of.values.values()): (of.losses or {}).get("sync") for of in tried}
    winner = tuple(setting.values.values())
    axes = zip(*losses, strict=True)
    gains = [
        edge_gain(losses, winner, key)
        for key, axis in enumerate(axes)
        if winner[key] in (min(axis), max(axis))
    ]
    if not gains:
        return ""
    if max(gains) < LEAST_GAIN:
        why = f"the last step gained {max(gains):.4f}, less than seeds differ by ({LEAST_GAIN:g})"
    else:
        why = "no more values are tried"
    return f", on the edge of what was tried: {why}"


def _keys(sweep: Sweep) -> str:
    return " and ".join(sweep.tune)


def _keys_are(sweep: Sweep) -> str:
    return f"{_keys(sweep)} {'is' if len(sweep.tune) == 1 else 'are'}"


def _numbers(setting: TriedSetting) -> str:
    return " ".join(f"{value:g}" for value in setting.values.values())


def _loss(setting: TriedSetting) -> str:
    if setting.losses is None:
        return "not run"
    loss = _finite(setting, "sync")
    return "diverged" if loss is None else f"{loss:.4f}"


def _name(sweep: Sweep, point: GridPoint) -> str:
    """Return the point's overrides without the keys that are tuned."""
    words = [word for word in point.overrides if word.split("=")[0] not in sweep.tune]
    return " ".join(words) or "every trial"
