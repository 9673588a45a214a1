"""What a command line asks for: a sweep at a scale, a store, and whether to run it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.commands import COMMANDS
from sweeps.files import ALL, known, parse, scale_file, sweep_files
from sweeps.schema import Sweep, check_sweep, keys, overrides, refuse_reserved
from sweeps.tracking import choice
from sweeps.tracking.choice import Tracking
from trainer.config import require_folder
from trainer.errors import BadInput
from trainer.words import parser, take_flag


def asked_words(words: Sequence[str]) -> list[str]:
    """The words of a request, `--help` aside, which prints all that can be asked for."""
    sweeps, scales = (", ".join(known(group)) for group in ("sweep", "scale"))
    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    asked: list[str] = (
        parser(
            "python -m sweeps [COMMAND]",
            "Runs the trials of a sweep that are not in the store yet, then reports gaps.",
            f"commands:\n{commands}\n\n"
            f"sweep=    {sweeps}, or a file: path/to/a.yaml; several: a,b; all of them: {ALL}\n"
            f"scale=    {scales} (default: tiny)\n"
            "results=  the store (default: results)\n"
            "dry_run=  true prints the plan and runs nothing\n"
            "gpus_per_trial=  of a trial without ranks, e.g. 0.5 to run two on each GPU\n"
            f"tracking=  {', '.join(choice.known())}: where to follow the trials; tracking.KEY=… "
            "as in conf/tracking/ (default: none)\n"
            "seeds=[0,1], grid.KEY=[…] and tune.KEY=[…] replace the sweep file's; "
            "any other key=value goes to every trial, as in python -m trainer",
        )
        .parse_args(words)
        .keys
    )
    return asked


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    words: list[str]
    scale: str
    sweeps: dict[str, Sweep]
    """By label, which is the name of the sweep's reports in the store."""
    label: str
    """Of all its sweeps together."""
    results: Path
    dry_run: bool
    gpus_per_trial: float
    tracking: Tracking


def request(arguments: Sequence[str]) -> Request:
    """The sweep files with their scale and the command line's changes; raises BadInput."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise BadInput(key, "", "must be key=value, see python -m sweeps --help")
        given[key] = value
    names, scale = given.pop("sweep", ""), given.pop("scale", "tiny")
    results, dry_run = given.pop("results", "results"), take_flag(given, "dry_run")
    require_folder("results", results)
    gpus_per_trial = parse_gpus(given.pop("gpus_per_trial", "1"))
    files = sweep_files(names)
    labels = [f"{name}-{scale}" for name, _ in files]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput("sweep", names, f"must name {label} once: its report has that name")
    together = f"{names}-{scale}" if names == ALL else ", ".join(labels)
    tracking = choice.take(given, together)
    words = [f"{key}={value}" for key, value in given.items()]
    sweeps = {f"{name}-{scale}": _asked(content, scale, words) for name, content in files}
    return Request(
        [*arguments], scale, sweeps, together, Path(results), dry_run, gpus_per_trial, tracking
    )


def _asked(content: Mapping[str, Any], scale: str, words: Sequence[str]) -> Sweep:
    """The sweep of a file's content at a scale, with what the command line says otherwise."""
    sweep = check_sweep(content)
    sweep = sweep.model_copy(update={"base": [*sweep.base, *scale_file(scale)]})
    at_scales = {name: _at_scale(sweep, name) for name in [scale, *sweep.scales]}
    return changed(at_scales[scale], words)


def _at_scale(sweep: Sweep, name: str) -> Sweep:
    """With the file's own words for that scale, which an error names."""
    try:
        return changed(sweep, sweep.scales.get(name, []))
    except BadInput as error:
        given = f"{error.key}={error.value}"
        raise BadInput(f"sweep.scales.{name}", given, error.allowed) from None


def changed(sweep: Sweep, words: Sequence[str]) -> Sweep:
    """`seeds=[…]`, `grid.KEY=[…]` and `tune.KEY=[…]` take the place of the sweep's, all other words
    go to every trial, after its base. Raises BadInput for one that has no effect, or no sweep."""
    content, common = sweep.model_dump(), {}
    for word in words:
        key, _, value = word.partition("=")
        group, _, inner = key.partition(".")
        if key == "seeds":
            content[key] = parse(key, value, value)
        elif group in ("grid", "tune") and inner:
            content[group][inner] = parse(key, value, value)
        else:
            common[key] = value
    refuse_reserved(f"{key}={value}" for key, value in common.items())
    content["base"] += [f"{key}={value}" for key, value in common.items()]
    found = check_sweep(content)
    _refuse_without_effect(found, common)
    return found


def parse_gpus(given: str) -> float:
    """The share of a GPU that a trial without ranks takes; raises BadInput."""
    try:
        gpus = float(given)
    except ValueError:
        gpus = math.nan
    if not 0 < gpus <= 1:
        raise BadInput("gpus_per_trial", given, "must be a number above 0, 1 at most")
    return gpus


def _refuse_without_effect(sweep: Sweep, given: Mapping[str, str]) -> None:
    """A key that every point of the grid sets cannot be set for all of them."""
    for axis, values in sweep.grid.items():
        for value in values:
            for key in sorted({*keys(overrides(axis, value))} & set(given)):
                allowed = f"is set by the sweep's grid: choose its values by grid.{axis}=[…]"
                raise BadInput(key, given[key], allowed)
