"""What a command line asks for: a sweep at a scale, a store, and whether to run it."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from pipegap.sweeps.request import schema
from pipegap.sweeps.request.entry import entered
from pipegap.sweeps.request.schema import Sweep, keys
from pipegap.sweeps.tracking import tracker
from pipegap.sweeps.tracking.tracker import Tracking
from pipegap.trainer.base.cli import number, split_word, take_choice, take_flag
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.store.opened import local_folder

SEARCH = "search"
NOTIFY, PIPE = "PIPEGAP_NOTIFY", "pipe:"
"""The variable that says where notices go, and how its value begins if it names a pipe."""
CHOICES = {"null": None, "true": True, "false": False}
"""The values of `first_trial`."""


@dataclass(frozen=True)
class Request:
    """What a command line asks for."""

    words: list[str]
    scale: str
    if_there: set[str]
    """Words of the scale that count only where a config has their keys."""
    sweeps: dict[str, Sweep]
    """Label → sweep. The label names the sweep's report in the store."""
    label: str
    """The label of all sweeps together: letters, digits and few other characters."""
    results: Path
    """Where this machine reads the store."""
    where: str
    """The store, as it was given: a folder or a URL."""
    dry_run: bool
    gpus_per_trial: float
    gpus: int
    """The number of GPUs that the plan counts with; 0: those of this machine."""
    tracking: Tracking
    fail_fast: int = 0
    """The sweep stops once so many trials have failed for good; 0: it never does."""
    hourly: float = 0.0
    """The price of an hour of one core or GPU, in any currency; 0: the plan names no price."""
    first_trial: bool | None = None
    """Whether a trial's first updates are tried before the sweep; None: if a trial takes GPUs."""

    @property
    def title(self) -> str:
        """The labels, for people."""
        return ", ".join(self.sweeps)


def parse_request(arguments: Sequence[str]) -> Request:
    """Return the request that the words key=value of a command line make; raises BadInput."""
    # A webhook's URL is a secret, and the store records these words.
    arguments = [word for word in arguments if not word.startswith("notify=")]
    values = dict(map(split_word, arguments))
    fail_fast = parse_count("fail_fast", values.pop("fail_fast", "0"), low=0)
    names = values.pop("sweep", "")
    contents, scale = schema.sweep_files(names), values.pop("scale", "")
    name, content = contents[0]
    if len(contents) == 1 and content.get("entry") and (rules := schema.check_sweep(content).entry):
        contents = [(name, entered(content, values, rules))]
        scale = scale or rules.scale
    scale = scale or "few_updates"
    results, dry_run = values.pop("results", "results"), take_flag(values, "dry_run")
    gpus_per_trial = parse_gpus(values.pop("gpus_per_trial", "1"))
    first_trial = CHOICES[take_choice(values, "first_trial", [*CHOICES])]
    gpus = parse_count("gpus", values.pop("gpus", "0"), low=0)
    hourly = _parse_hourly(values.pop("hourly", "0"))
    files = [(f"{schema.slug(name)}-{scale}", content) for name, content in contents]
    labels = [label for label, _ in files]
    for label in labels:
        if labels.count(label) > 1:
            allowed = f"must name {label} once, since that is the name of its report"
            raise BadInput("sweep", names, allowed)
    tracking = tracker.take(values, values.get("code") or _code_of(content for _, content in files))
    # What no line above has popped from `values` are overrides of every trial, checked below.
    first = schema.defaults_at(scale, of_paper=names == schema.PAPER)
    words, sweeps = [*map("=".join, values.items())], {}
    for label, content in files:
        try:
            sweeps[label] = _at_scale(schema.check_sweep(content), scale, first, words)
        except BadInput as error:
            if len(files) == 1:
                raise
            raise BadInput(error.key, error.value, f"{error.allowed} (sweep {label})") from None
    return Request(
        words=arguments,
        scale=scale,
        if_there={*schema.scale_file(scale)} - {*arguments},  # a key that a person names must exist
        sweeps=sweeps,
        label=f"{names}-{scale}" if names in (schema.ALL, schema.PAPER) else "_".join(labels),
        results=local_folder(results),
        where=results,
        dry_run=dry_run,
        gpus_per_trial=gpus_per_trial,
        gpus=gpus,
        hourly=hourly,
        tracking=tracking,
        fail_fast=fail_fast,
        first_trial=first_trial,
    )


def _code_of(contents: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the folder of code that the base of a sweep file names, which is not checked yet."""
    bases = (base for content in contents if isinstance(base := content.get("base"), list))
    words = [word for base in bases for word in map(str, base) if word.startswith("code=")]
    return words[-1].partition("=")[2] if words else None


def take_url(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return where notices go, empty for nowhere, and the other words of a command line.

    A webhook's URL is a secret, and other processes see the command line and the environment with
    which a process began. If these are the words of this process, it begins anew without the URL,
    which it then reads from a pipe. Raises BadInput for what is no URL.
    """
    other_words = [word for word in words if not word.startswith("notify=")]
    url = os.environ.pop(NOTIFY, "")  # Ray's processes would inherit it
    for word in words:
        if word not in other_words:
            url = word.partition("=")[2]
    if url.startswith(PIPE):
        try:
            with open(int(url.removeprefix(PIPE)), encoding="utf-8") as pipe:
                url = pipe.read()
        except (OSError, ValueError):  # somebody else has set the variable
            url = "none"  # which is refused below
        is_whole_command = False
    else:
        # A caller in Python, such as a test, passes other words than those of its process.
        is_whole_command = bool(words) and sys.orig_argv[-len(words) :] == [*words]
    if url and not _is_url(url):
        raise BadInput("notify", "what was given", "must be a URL: http://… or https://…")
    if url and is_whole_command:
        _begin_anew([*sys.orig_argv[1 : -len(words)], *other_words], url)
    return url, other_words


def _begin_anew(words: Sequence[str], url: str) -> NoReturn:
    """Run Python with these words in place of this process, with the URL in a pipe."""
    reads, writes = os.pipe()
    os.set_inheritable(reads, True)  # else execve closes it
    with open(writes, "w", encoding="utf-8") as pipe:
        pipe.write(url)  # the pipe holds 64 KiB until the new process reads
    environment = {**os.environ, NOTIFY: f"{PIPE}{reads}"}
    if not sys.flags.safe_path:  # `pipegap` has set it, and is to be found again as it was
        environment.pop("PYTHONSAFEPATH", None)
    os.execve(sys.executable, [sys.executable, *words], environment)


def _is_url(text: str) -> bool:
    """Whether a host is named by http or https."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # it raises ValueError for what is no number of a port
    except ValueError:
        return False
    is_text = text.isascii() and text.isprintable() and " " not in text
    return is_text and parts.scheme in ("http", "https") and bool(parts.hostname)


def _at_scale(sweep: Sweep, scale: str, first: Sequence[str], words: Sequence[str]) -> Sweep:
    """Return the sweep at a scale, changed by the `words` of the command line.

    The later of two overrides of a key wins: `first` come those that the sweep's base may replace,
    then its base, the scale's base for other keys, the words of its file for the scale, those of
    the command line. Words of its file for other scales are checked too; an error names theirs.
    """
    of_scale = [word for word in schema.scale_file(scale) if not {*keys([word])} & {*keys(first)}]
    # `model_copy` checks nothing; `changed` checks the result.
    sweep = sweep.model_copy(update={"base": [*first, *sweep.base, *of_scale]})
    at_scales = {}
    for name in [scale, *sweep.scales]:
        try:
            at_scales[name] = changed(sweep, sweep.scales.get(name, []))
        except BadInput as error:
            word_there = f"{error.key}={error.value}"
            raise BadInput(f"sweep.scales.{name}", word_there, error.allowed) from None
    return changed(at_scales[scale], words)


def changed(sweep: Sweep, words: Sequence[str]) -> Sweep:
    """Return the sweep changed by the words of a command line, or of its file for a scale.

    `seeds=[…]`, `grid.KEY=[…]`, `arms.NAME=[…]`, `tune.KEY=[…]`, `tuning.KEY=…`, `shared=…` and
    `advice.KEY=…` replace the sweep's own values. `arms.NAME=null`, `advice=null`, `shared=null`
    and `tune=null` leave these out. `search=NAME` and `search.KEY=…` search instead. Every other
    word is appended to `base`, and so applies to every trial.

    Raises BadInput for a word without effect, or if the result is not a valid sweep.
    """
    content, common = _with_search(sweep.model_dump(), words), {}
    for word in words:
        key, _, value = word.partition("=")
        group, _, inner = key.partition(".")
        if group == SEARCH:
            continue
        if key in ("seeds", "shared", "advice"):
            content[key] = schema.parse(key, value, value)
        elif word == "tune=null":
            content |= {"tune": {}, "tuning": {}}
        elif key.startswith("arms.") and value == "null":
            content["arms"].pop(key.removeprefix("arms."), None)
        elif key.startswith("arms."):  # the whole rest: delay_ef(0.5) is the name of an arm
            content["arms"][key.removeprefix("arms.")] = schema.parse(key, value, value)
        elif group in ("grid", "tune", "tuning") and inner:
            content[group][inner] = schema.parse(key, value, value)
        elif group == "advice" and inner:
            content[group] = {**(content[group] or {}), inner: schema.parse(key, value, value)}
        else:
            common[key] = value
    schema.refuse_reserved(f"{key}={value}" for key, value in common.items())
    content["base"] += [f"{key}={value}" for key, value in common.items()]
    new = schema.check_sweep(content)
    _refuse_without_effect(new, common)
    return new


def _with_search(content: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the content of a sweep with the search that the words ask for.

    `search=NAME` takes a search from a file, and `search=null` none. `search.KEY=…` and
    `search.space.KEY=…` replace the search's own values, and `search.space.KEY=null` removes a key
    from its space. A search takes the place of `tune`, and of the grid's axes that it chooses.

    Raises BadInput for an unknown file, or a key without a search that it could change.
    """
    pairs = (word.split("=", 1) for word in words)
    search_words = {key: value for key, value in pairs if key.partition(".")[0] == SEARCH}
    if not search_words:
        return content
    search_content = content[SEARCH]
    if (name := search_words.pop(SEARCH, None)) is not None:
        search_content = None if name == "null" else schema.search_file(name)
    if search_content is None:
        if search_words:
            key, value = next(iter(search_words.items()))
            raise BadInput(key, value, "changes a search: ask for one by search=optuna")
        return {**content, SEARCH: None}
    parsed = {key: schema.parse(key, text, text) for key, text in search_words.items()}
    plain = {key.removeprefix(f"{SEARCH}."): value for key, value in parsed.items()}
    axes = {key.partition(".")[2]: plain.pop(key) for key in [*plain] if key.startswith("space.")}
    search, searched_keys = {**search_content, **plain}, set[str]()
    if isinstance(search.get("space"), dict):  # anything else is refused when the sweep is checked
        space = {**search["space"], **axes}
        # Without `search.space.` words a null of the file stays, and is refused.
        search["space"] = {key: axis for key, axis in space.items() if axis is not None or not axes}
        searched_keys = {*search["space"]}
    grid = {key: axis for key, axis in content["grid"].items() if key not in searched_keys}
    return {**content, SEARCH: search, "tune": {}, "tuning": {}, "shared": None, "grid": grid}


def parse_gpus(text: str) -> float:
    """Return the share of a GPU for a trial without ranks; raises BadInput unless in (0, 1]."""
    gpus = number(text)
    if not 0 < gpus <= 1:
        raise BadInput("gpus_per_trial", text, "must be a number above 0 and at most 1")
    return gpus


def _parse_hourly(text: str) -> float:
    hourly = number(text)
    if not 0 <= hourly <= MAX_COUNT:
        raise BadInput("hourly", text, f"must be a number from 0 to {MAX_COUNT:,}")
    return hourly


def parse_count(key: str, text: str, low: int) -> int:
    """Return the whole number; raises BadInput unless it is from `low` to MAX_COUNT."""
    if not text.isdecimal() or not low <= int(text) <= MAX_COUNT:
        raise BadInput(key, text, f"must be a whole number from {low} to {MAX_COUNT:,}")
    return int(text)


def _refuse_without_effect(sweep: Sweep, values: Mapping[str, str]) -> None:
    """Raise BadInput for a key that the grid sets: it cannot be set for all trials as well."""
    plain = {key.lstrip(schema.PREFIXES): value for key, value in values.items()}
    for axis, words in sweep.axes.items():
        for key in sorted({*keys(words)} & {*plain}):
            allowed = f"is set by the sweep's grid: choose its values by grid.{axis}=[…]"
            raise BadInput(key, plain[key], allowed)
