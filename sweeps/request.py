"""What a command line asks for: a sweep at a scale, a store, and whether to run it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sweeps.commands import COMMANDS
from sweeps.expand import Sweep, check_sweep, overrides
from trainer.compose import CONF
from trainer.errors import BadInput


def parser() -> argparse.ArgumentParser:
    """Its `keys` are the words of a request."""
    sweeps, scales = (", ".join(known(group)) for group in ("sweep", "scale"))
    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    found = argparse.ArgumentParser(
        prog="python -m sweeps [COMMAND]",
        description="Runs the trials of a sweep that are not in the store yet, then reports gaps.",
        epilog=f"commands:\n{commands}\n\nsweep=    {sweeps}\nscale=    {scales} (default: tiny)\n"
        "results=  the store (default: results)\n"
        "dry_run=  true prints the plan and runs nothing\n"
        "gpus_per_trial=  of a trial without ranks, e.g. 0.5 to run two on each GPU (default: 1)\n"
        "seeds=[0,1], grid.KEY=[…] and tune.KEY=[…] replace the sweep file's; "
        "any other key=value goes to every trial, as in python -m trainer",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("keys", nargs="+", metavar="key=value")
    return found


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    sweep: Sweep
    label: str
    results: Path
    dry_run: bool
    gpus_per_trial: float


def request(arguments: Sequence[str]) -> Request:
    """The sweep file with its scale and the command line's changes; raises BadInput."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            allowed = f"must be key=value, or a command first: {', '.join(COMMANDS)}"
            raise BadInput(key, "", allowed)
        given[key] = value
    name, scale = given.pop("sweep", ""), given.pop("scale", "tiny")
    results = _store(given.pop("results", "results"))
    dry_run = flag("dry_run", given.pop("dry_run", "false"))
    gpus_per_trial = _gpus(given.pop("gpus_per_trial", "1"))
    content = _load("sweep", name)
    if "seeds" in given:
        seeds = given.pop("seeds")
        content["seeds"] = _parse("seeds", seeds, seeds)
    for key in [key for key in given if key.startswith(("grid.", "tune."))]:
        group, _, inner = key.partition(".")
        values = given.pop(key)
        content.setdefault(group, {})[inner] = _parse(key, values, values)
    sweep = check_sweep(content)
    _refuse_without_effect(sweep, given)
    base = [*sweep.base, *_load("scale", scale)["base"], *sweep.scales.get(scale, [])]
    base += [f"{key}={value}" for key, value in given.items()]
    sweep = sweep.model_copy(update={"base": base})
    return Request(sweep, f"{name}-{scale}", results, dry_run, gpus_per_trial)


def flag(key: str, given: str) -> bool:
    """A word that is true or false; raises BadInput for another."""
    if given not in ("true", "false"):
        raise BadInput(key, given, "must be true or false")
    return given == "true"


def _store(given: str) -> Path:
    if "://" in given:
        allowed = "must be a folder, of a shared file system if need be: a lease needs exclusive "
        raise BadInput("results", given, f"{allowed}creation, which object stores do not offer")
    return Path(given)


def _gpus(given: str) -> float:
    try:
        gpus = float(given)
    except ValueError:
        gpus = math.nan
    if not 0 < gpus <= 1:
        raise BadInput("gpus_per_trial", given, "must be a number above 0, 1 at most")
    return gpus


def known(group: str) -> list[str]:
    """The names of a group of conf/."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def _refuse_without_effect(sweep: Sweep, given: Mapping[str, str]) -> None:
    """A key that every point of the grid sets cannot be set for all of them."""
    for axis, values in sweep.grid.items():
        for value in values:
            set_here = {word.split("=")[0] for word in overrides(axis, value)}
            for key in sorted(set_here & set(given)):
                allowed = f"is set by the sweep's grid: choose its values by grid.{axis}=[…]"
                raise BadInput(key, given[key], allowed)


def _load(group: str, name: str) -> dict[str, Any]:
    if name not in known(group):
        raise BadInput(group, name, f"must be one of {', '.join(known(group))}")
    content = _parse(group, name, (CONF / group / f"{name}.yaml").read_text())
    if not isinstance(content, dict):
        raise BadInput(group, name, "must be a YAML file of keys and values")
    return {"base": [], **content}


def _parse(key: str, value: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(key, value, f"must be YAML ({' '.join(str(error).split())})") from None
