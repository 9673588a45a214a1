"""What a command line asks for: a sweep at a scale, a store, and whether to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.objects.mirror import place
from sweeps.request.checks import check_sweep
from sweeps.request.files import (
    ALL,
    PAPER,
    parse,
    present_scale,
    scale_file,
    slug,
    sweep_files,
)
from sweeps.request.overrides import PREFIXES, keys, overrides, refuse_reserved
from sweeps.request.schema import Sweep
from sweeps.request.search import GROUP as SEARCH
from sweeps.request.search import searched
from sweeps.tracking import choice
from sweeps.tracking.choice import Tracking
from trainer.base.cli import number, split_word, take_flag
from trainer.base.errors import BadInput
from trainer.base.ranges import MAX_COUNT


@dataclass(frozen=True)
class Request:
    """What a command line asks for."""

    words: list[str]
    scale: str
    sweeps: dict[str, Sweep]
    """By label, which is the name of the sweep's report in the store."""
    label: str
    """The label of all sweeps together: letters, digits and few other characters."""
    results: Path
    """Where this machine reads the store."""
    where: str
    """The store, as it was given: a folder or a URL."""
    dry_run: bool
    gpus_per_trial: float
    gpus: int
    """How many the plan counts with; 0: those of this machine."""
    tracking: Tracking

    @property
    def title(self) -> str:
        """The labels, for people."""
        return ", ".join(self.sweeps)


def parse_request(arguments: Sequence[str]) -> Request:
    """The request that the words key=value of a command line stand for; raises BadInput."""
    given = dict(map(split_word, arguments))
    names, scale = given.pop("sweep", ""), present_scale(given.pop("scale", "few_updates"))
    results, dry_run = given.pop("results", "results"), take_flag(given, "dry_run")
    gpus_per_trial = parse_gpus(given.pop("gpus_per_trial", "1"))
    gpus = _parse_count("gpus", given.pop("gpus", "0"))
    files = sweep_files(names)
    labels = [f"{slug(name)}-{scale}" for name, _ in files]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput(
                "sweep", names, f"must name {label} once, since that is the name of its report"
            )
    together = f"{names}-{scale}" if names in (ALL, PAPER) else "_".join(labels)
    tracking = choice.take(given)
    words = [f"{key}={value}" for key, value in given.items()]
    contents = (content for _, content in files)
    sweeps = {
        label: _one_of(labels, label, content, scale, words)
        for label, content in zip(labels, contents, strict=True)
    }
    return Request(
        [f"scale={scale}" if word == "scale=long" else word for word in arguments],
        scale,
        sweeps,
        together,
        place(results),
        results,
        dry_run,
        gpus_per_trial,
        gpus,
        tracking,
    )


def _one_of(
    labels: Sequence[str], label: str, content: Mapping[str, Any], scale: str, words: Sequence[str]
) -> Sweep:
    """As `_asked`; of several sweeps, an error names the one that it is about."""
    try:
        return _asked(content, scale, words)
    except BadInput as error:
        if len(labels) == 1:
            raise
        raise BadInput(error.key, error.value, f"{error.allowed} (sweep {label})") from None


def _asked(content: Mapping[str, Any], scale: str, words: Sequence[str]) -> Sweep:
    """The sweep of a file's content at a scale, changed by the `words` of the command line."""
    sweep = check_sweep(content)
    sweep = sweep.model_copy(update={"base": [*sweep.base, *scale_file(scale)]})
    at_scales = {name: _at_scale(sweep, name) for name in [scale, *sweep.scales]}
    return changed(at_scales[scale], words)


def _at_scale(sweep: Sweep, name: str) -> Sweep:
    """The sweep changed by its file's words for the scale `name`; an error names that scale."""
    try:
        return changed(sweep, sweep.scales.get(name, []))
    except BadInput as error:
        given = f"{error.key}={error.value}"
        raise BadInput(f"sweep.scales.{name}", given, error.allowed) from None


def changed(sweep: Sweep, words: Sequence[str]) -> Sweep:
    """The sweep changed by `words`: `seeds=[…]`, `grid.KEY=[…]`, `tune.KEY=[…]`, `shared=…` and
    `advice.KEY=…` replace its own, `advice=null`, `shared=null` and `tune=null` leave these out;
    `search=NAME` and `search.KEY=…` search instead (see search.py); every other word is appended to
    `base`, and so applies to every trial.

    Raises BadInput for a word without effect, or if the result is not a valid sweep.
    """
    content, common = searched(sweep.model_dump(), words), {}
    for word in words:
        key, _, value = word.partition("=")
        group, _, inner = key.partition(".")
        if group == SEARCH:
            continue
        if key in ("seeds", "shared", "advice"):
            content[key] = parse(key, value, value)
        elif word == "tune=null":
            content["tune"] = {}
        elif group in ("grid", "tune") and inner:
            content[group][inner] = parse(key, value, value)
        elif group == "advice" and inner:
            content[group] = {**(content[group] or {}), inner: parse(key, value, value)}
        else:
            common[key] = value
    refuse_reserved(f"{key}={value}" for key, value in common.items())
    content["base"] += [f"{key}={value}" for key, value in common.items()]
    found = check_sweep(content)
    _refuse_without_effect(found, common)
    return found


def parse_gpus(given: str) -> float:
    """The share of a GPU that a trial without ranks takes. Raises BadInput unless in (0, 1]."""
    gpus = number(given)
    if not 0 < gpus <= 1:
        raise BadInput("gpus_per_trial", given, "must be a number above 0 and at most 1")
    return gpus


def _parse_count(key: str, given: str) -> int:
    if not given.isdecimal() or int(given) > MAX_COUNT:
        raise BadInput(key, given, f"must be a whole number from 0 to {MAX_COUNT:,}")
    return int(given)


def _refuse_without_effect(sweep: Sweep, given: Mapping[str, str]) -> None:
    """Raises BadInput for a key that the grid sets: it cannot be set for all trials as well."""
    plain = {key.lstrip(PREFIXES): value for key, value in given.items()}
    for axis, values in sweep.grid.items():
        for value in values:
            for key in sorted({*keys(overrides(axis, value))} & set(plain)):
                allowed = f"is set by the sweep's grid: choose its values by grid.{axis}=[…]"
                raise BadInput(key, plain[key], allowed)
