"""Runs what is missing of a sweep: `python -m sweeps sweep=NAME [scale=…] [key=value …]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from sweeps.expand import Trial, check_sweep, expand, num_asked
from sweeps.price import price
from sweeps.store import failed, finished, require_writable
from trainer.compose import CONF
from trainer.errors import BadInput
from trainer.parts import open_data
from trainer.resources import require_device

DONE, FAILED, BAD_INPUT = 0, 1, 2


def _parser() -> argparse.ArgumentParser:
    sweeps, scales = (
        ", ".join(sorted(file.stem for file in (CONF / group).glob("*.yaml")))
        for group in ("sweep", "scale")
    )
    parser = argparse.ArgumentParser(
        prog="python -m sweeps",
        description="Runs the trials of a sweep that are not in the store yet, then reports gaps.",
        epilog=f"sweep=    {sweeps}\nscale=    {scales} (default: tiny)\n"
        "results=  the store (default: results)\n"
        "dry_run=  true prints the plan and runs nothing\n"
        "seeds=[0,1] and grid.KEY=[…] replace the sweep file's; "
        "any other key=value goes to every trial, as in python -m trainer",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("keys", nargs="+", metavar="key=value")
    return parser


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    content: dict[str, Any]
    label: str
    results: Path
    dry_run: bool


def _request(arguments: Sequence[str]) -> Request:
    """The sweep file with its scale and the command line's changes."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise BadInput(key, "", "must be key=value")
        given[key] = value
    name, scale = given.pop("sweep", ""), given.pop("scale", "tiny")
    results, dry_run = given.pop("results", "results"), given.pop("dry_run", "false")
    if dry_run not in ("true", "false"):
        raise BadInput("dry_run", dry_run, "must be true or false")
    content = _load("sweep", name)
    if "seeds" in given:
        seeds = given.pop("seeds")
        content["seeds"] = _parse("seeds", seeds, seeds)
    for key in [key for key in given if key.startswith("grid.")]:
        values = given.pop(key)
        content.setdefault("grid", {})[key.removeprefix("grid.")] = _parse(key, values, values)
    overrides = [f"{key}={value}" for key, value in given.items()]
    content["base"] = [*content["base"], *_load("scale", scale)["base"], *overrides]
    return Request(content, f"{name}-{scale}", Path(results), dry_run == "true")


def _load(group: str, name: str) -> dict[str, Any]:
    known = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
    if name not in known:
        raise BadInput(group, name, f"must be one of {', '.join(known)}")
    content = _parse(group, name, (CONF / group / f"{name}.yaml").read_text())
    if not isinstance(content, dict):
        raise BadInput(group, name, "must be a YAML file of keys and values")
    return {"base": [], **content}


def _parse(key: str, value: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(key, value, f"must be YAML ({' '.join(str(error).split())})") from None


def _prepare(request: Request) -> list[Trial]:
    """All that can be known to be wrong is found here, before any trial starts."""
    sweep = check_sweep(request.content)
    trials = expand(sweep, request.results)
    print(price(trials, num_asked(sweep)), flush=True)
    return trials


def _check(request: Request, trials: Sequence[Trial]) -> None:
    require_writable(request.results)
    distinct = {_needs(trial.config): trial.config for trial in trials}
    for config in distinct.values():
        if "RAY_ADDRESS" not in os.environ:  # else the cluster's resources count, in sweeps.run
            require_device(config["device"])
        open_data(config)


def _needs(config: Mapping[str, Any]) -> str:
    """What a trial needs of the machine and the data."""
    return json.dumps([config[key] for key in ("device", "data", "seq_len", "model")])


def main() -> int:
    """Exit code: 0 done, 1 a trial failed, 2 bad input."""
    try:
        request = _request(_parser().parse_args().keys)
        trials = _prepare(request)
        if request.dry_run:
            return DONE
        todo = [trial for trial in trials if finished(trial) is None]
        _check(request, todo)
        if todo:
            _run(todo)
        return _report(request, trials)
    except BadInput as error:
        print(f"python -m sweeps: {error}", file=sys.stderr)
        return BAD_INPUT


def _run(todo: Sequence[Trial]) -> None:
    from sweeps.display import Display
    from sweeps.run import run

    with Display(todo, Console()) as display:
        run(todo, display)


def _report(request: Request, trials: Sequence[Trial]) -> int:
    from analysis.report import report

    lost = [trial for trial in trials if failed(trial)]
    for trial in lost:
        print(f"failed: {trial.arm} seed {trial.config['seed']}, see {trial.folder}/result.json")
    out = request.results / "reports" / request.label
    print(report(request.results, out, {trial.plan.trial_id for trial in trials}))
    print(f"rule for the verdict, written before the run: {request.content['verdict']}")
    left = sum(finished(trial) is None for trial in trials) - len(lost)
    if left:
        print(f"stopped with {left} trials to go: the same command goes on with them")
    return FAILED if lost or left else DONE


if __name__ == "__main__":
    sys.exit(main())
