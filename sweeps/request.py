"""What a command line asks for: a sweep at a scale, a store, and whether to run it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.commands import COMMANDS
from sweeps.files import known, parse, scale_file, sweep_file
from sweeps.schema import Sweep, check_sweep, keys, overrides, refuse_reserved
from sweeps.tracking import choice
from sweeps.tracking.choice import Tracking
from sweeps.words import parser, take_flag
from trainer.config import require_folder
from trainer.errors import BadInput


def asked_words(words: Sequence[str]) -> list[str]:
    """The words of a request, `--help` aside, which prints all that can be asked for."""
    sweeps, scales = (", ".join(known(group)) for group in ("sweep", "scale"))
    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    asked: list[str] = (
        parser(
            "[COMMAND]",
            "Runs the trials of a sweep that are not in the store yet, then reports gaps.",
            f"commands:\n{commands}\n\n"
            f"sweep=    {sweeps}, or a file: path/to/a.yaml; several: a,b\n"
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

    sweeps: dict[str, Sweep]
    """By label, which is the name of the sweep's reports in the store."""
    results: Path
    dry_run: bool
    gpus_per_trial: float
    tracking: Tracking

    @property
    def label(self) -> str:
        """Of all its sweeps together."""
        return ", ".join(self.sweeps)


def request(arguments: Sequence[str]) -> Request:
    """The sweep files with their scale and the command line's changes; raises BadInput."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            allowed = f"must be key=value, or a command first: {', '.join(COMMANDS)}"
            raise BadInput(key, "", allowed)
        given[key] = value
    names, scale = given.pop("sweep", ""), given.pop("scale", "tiny")
    results, dry_run = given.pop("results", "results"), take_flag(given, "dry_run")
    require_folder("results", results)
    gpus_per_trial = parse_gpus(given.pop("gpus_per_trial", "1"))
    files = [sweep_file(name) for name in names.split(",")]
    labels = [f"{label}-{scale}" for label, _ in files]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput("sweep", names, f"must name {label} once: its report has that name")
    tracking = choice.take(given, ", ".join(labels))
    contents = zip(labels, (content for _, content in files), strict=True)
    sweeps = {label: _changed(content, scale, given) for label, content in contents}
    return Request(sweeps, Path(results), dry_run, gpus_per_trial, tracking)


def _changed(content: dict[str, Any], scale: str, given: Mapping[str, str]) -> Sweep:
    """The sweep of a file's content at a scale, with what the command line says otherwise."""
    common = dict(given)
    if "seeds" in common:
        seeds = common.pop("seeds")
        content["seeds"] = parse("seeds", seeds, seeds)
    for key in [key for key in common if key.startswith(("grid.", "tune."))]:
        group, _, inner = key.partition(".")
        values = common.pop(key)
        if isinstance(content.setdefault(group, {}), dict):  # else check_sweep refuses it
            content[group][inner] = parse(key, values, values)
    sweep = check_sweep(content)
    _refuse_without_effect(sweep, common)
    words = [f"{key}={value}" for key, value in common.items()]
    refuse_reserved(words)
    base = [*sweep.base, *scale_file(scale), *sweep.scales.get(scale, []), *words]
    return sweep.model_copy(update={"base": base})


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
