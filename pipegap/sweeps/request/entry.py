"""Entries of the delay track (docs/track.md): what their folders hold, and the sweep of each.

A folder entries/NAME holds entry.yaml, trials.csv, cost.json, and of a choice of one's own one
Python file and its YAML, in the format of docs/extending.md. A choice of conf/ has no code there.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, ValidationError

from pipegap.sweeps.request.schema import EntryRules, parse
from pipegap.trainer.base.build import locate, use_code
from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.identity import yamls
from pipegap.trainer.config.schema import first_of, in_words

ENTRY, TRIALS, LEVELS, COST = "entry.yaml", "trials.csv", "levels.csv", "cost.json"
"""Files of an entry's folder: what it is, its trials, those at longer delays, what it costs."""
KINDS = ("optimizer", "correction")
TUNED, DECAY = "optimizer.lr", "optimizer.weight_decay"
"""Keys that the rules set: an entry cannot."""
MOST_LINES = 400
MODULES = (
    *("torch", "math", "typing", "dataclasses", "collections", "collections.abc"),
    *("functools", "itertools"),
    *("annotated_types", "typing_extensions", "__future__"),
    "pipegap.trainer.base.ranges",
    "pipegap.trainer.optimizers",
    "pipegap.trainer.corrections",
)
"""What an entry's code may import, with what lies inside. Of torch see FORBIDDEN."""
CALLS = {
    *("open", "exec", "eval", "compile", "__import__", "globals", "locals", "vars", "input"),
    *("getattr", "setattr", "delattr", "breakpoint"),
}
"""Built-in functions that an entry's code may not name: with them it could read files, or reach
what the other rules forbid."""
FORBIDDEN = {
    *("load", "save", "from_file", "hub", "jit", "ops", "classes", "package", "serialization"),
    *("distributed", "multiprocessing", "cpp_extension", "library", "_C", "storage"),
    *("UntypedStorage", "TypedStorage", "utils", "read_text", "read_bytes"),
}
"""Names of modules and attributes by which torch reads files, starts processes or runs code."""
DUNDERS = {"__init__", "__setstate__", "__getstate__", "__name__", "__all__", "__len__", "__call__"}
"""The names with two underscores at both ends that an entry's code may use."""


class Entry(BaseModel):
    """What entry.yaml says. Exactly one of `optimizer` and `correction` names the choice."""

    model_config = ConfigDict(extra="forbid", strict=True)

    what: Annotated[str, Len(1, 200)]
    source: Annotated[str, Len(1)]
    authors: Annotated[str, Len(1)]
    licence: Annotated[str, Len(1)]
    predicted: Literal["+", "0", "-"]
    """The sign that the authors predict: of an optimizer's gap, or of what a correction adds to the
    loss of the plain delay."""
    optimizer: str | None = None
    correction: str | None = None
    settings: dict[str, str | int | float | bool | None] = {}
    """Keys of the choice with other values than its YAML's."""

    @property
    def kind(self) -> str:
        """`optimizer` or `correction`."""
        return "optimizer" if self.optimizer is not None else "correction"

    @property
    def name(self) -> str:
        """The name of the choice."""
        return self.optimizer or self.correction or ""


def read_entry(folder: Path) -> Entry:
    """Return what the entry.yaml of a folder says; raise BadInput for one that is missing or does
    not say it."""
    path = folder / ENTRY
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("entry", path, f"must be a YAML file that can be read ({error})") from None
    try:
        entry = Entry.model_validate(parse("entry", str(path), text))
    except ValidationError as error:
        first = first_of(error)
        key = ".".join(map(str, first["loc"])) or "entry"
        value = "missing" if first["type"] == "missing" else first["input"]
        raise BadInput(f"{path}: {key}", value, in_words(first, Entry)) from None
    if (entry.optimizer is None) == (entry.correction is None):
        raise BadInput(f"{path}: optimizer", "", "must be named, or else a correction, not both")
    for key in entry.settings:
        if not key.startswith(f"{entry.kind}.") or key in (TUNED, DECAY):
            allowed = f"must be a key of the {entry.kind} that the rules do not set"
            raise BadInput(f"{path}: settings", key, allowed)
    return entry


def code_of(folder: Path) -> Path | None:
    """Return the Python file of an entry; None of a choice of conf/. Raise BadInput for several."""
    files = [path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts]
    if len(files) > 1 or any(path.parent != folder for path in files):
        names = ", ".join(str(path.relative_to(folder)) for path in files)
        raise BadInput("code", names, "must be one Python file, in the folder of the entry itself")
    return files[0] if files else None


def check_code(path: Path) -> None:
    """Raise BadInput, with the line, for code that the rules of the track do not allow.

    This reads the syntax alone and is no prison: what an entry does is for people to read, in at
    most MOST_LINES lines.
    """
    text = path.read_text("utf-8")
    if (num_lines := len(text.splitlines())) > MOST_LINES:
        raise BadInput("code", path, f"must have at most {MOST_LINES} lines, not {num_lines}")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise BadInput("code", f"{path}:{error.lineno}", f"must be Python ({error.msg})") from None
    for node in ast.walk(tree):
        for name, why in _refused(node):
            line = getattr(node, "lineno", 1)
            raise BadInput("code", f"{path.name}:{line}", f"must not use {name}: {why}")


def _refused(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name in a node that an entry's code may not use, and why."""
    modules = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
        if node.level:
            yield "a relative import", "an entry is one file"
    for module in modules:
        allowed = [name for name in MODULES if f"{module}.".startswith(f"{name}.")]
        if not allowed:
            yield module, f"an entry may import {', '.join(MODULES[:5])} and a few more"
        for part in module.removeprefix(max(allowed, key=len, default="")).split("."):
            yield from _refused_part(part)
    if isinstance(node, ast.Name):
        if node.id in CALLS:
            yield node.id, "an entry's code reads no files and runs no other code"
        yield from _refused_dunder(node.id)
    elif isinstance(node, ast.Attribute):
        yield from _refused_part(node.attr)


def _refused_part(part: str) -> Iterator[tuple[str, str]]:
    import torch  # slow

    # `torch.os` is a way to a module that an entry may not import; `weight.copy` is none.
    is_module = part in sys.stdlib_module_names and part not in {n.split(".")[0] for n in MODULES}
    if part in FORBIDDEN or (
        is_module and not (hasattr(torch.Tensor, part) or hasattr(dict, part))
    ):
        yield part, "an entry's code reads no files and runs no other code"
    yield from _refused_dunder(part)


def _refused_dunder(name: str) -> Iterator[tuple[str, str]]:
    if name.startswith("__") and name.endswith("__") and name not in DUNDERS | {"__future__"}:
        yield name, "an entry's code does not look behind Python's objects"


def yaml_of(kind: str, name: str, folder: Path | None) -> dict[str, Any]:
    """Return the YAML of a choice, in conf/ or the entry's folder; raise BadInput without one."""
    places = [CONF, *([] if folder is None else [folder])]
    for place in places:
        path = place / kind / f"{name}.yaml"
        if path.is_file():
            content = parse(kind, name, path.read_text("utf-8"))
            return content if isinstance(content, dict) else {}
    own_yamls = [] if folder is None else (folder / kind).glob("*.yaml")
    raise one_of(kind, name, sorted(path.stem for path in [*yamls(kind), *own_yamls]))


def entered(
    content: Mapping[str, Any], values: dict[str, str], rules: EntryRules
) -> dict[str, Any]:
    """Return the content of the sweep of an entry: the sweep file's with the grid and arms of the
    choice that `code=`, `optimizer=` or `correction=` of the command line's `values` names.

    The words that it reads are removed from `values`; `code` stays if the folder has code. Raises
    BadInput for a choice that is not there or that cannot be tuned.
    """
    folder = Path(values["code"]) if "code" in values else None
    levels = values.pop("levels", None)
    choice_names = {kind: values.pop(kind) for kind in KINDS if kind in values}
    if len(choice_names) > 1:
        raise BadInput(
            "correction", choice_names["correction"], "is an entry of its own: no optimizer="
        )
    settings: Mapping[str, Any] = {}
    if folder is not None and not choice_names:
        entry = read_entry(folder)
        choice_names, settings = {entry.kind: entry.name}, entry.settings
        if code_of(folder) is None:
            del values["code"]
            folder = None
    [(kind, name)] = choice_names.items() or [("optimizer", "adamw")]
    choice = yaml_of(kind, name, folder)
    own_words = [f"{key}={_text(value)}" for key, value in settings.items()]
    if kind == "optimizer":
        points = [_point(name, choice, settings, rules)]
        corrections: dict[str, list[str]] = {"": []}
        if not _is_averaging(choice, folder):  # else the correction is refused
            corrections["_ef"] = ["correction=error_feedback"]
    else:
        points = [_point(o, yaml_of("optimizer", o, None), {}, rules) for o in rules.optimizers]
        corrections = {"": [], f"_{name}": [f"correction={name}", *own_words]}
    late = {"delay": ["pipeline=pipedream_2bw"]} if levels is None else _levels(levels)
    arms = {
        f"{label}{suffix}": [*pipeline, *words]
        for label, pipeline in late.items()
        for suffix, words in corrections.items()
    }
    decays = all(DECAY in point for point in points)
    tuning = {**content["tuning"], "inverse": [DECAY] if decays else []}
    grid = {**content["grid"], "optimizer": points}
    return {**content, "grid": grid, "tuning": tuning, "arms": {"sync": ["pipeline=sync"], **arms}}


def _point(
    name: str, choice: Mapping[str, Any], settings: Mapping[str, Any], rules: EntryRules
) -> dict[str, Any]:
    """Return an optimizer with the rate from which it is tuned, and the decay of the rules."""
    rate, decay = choice.get("lr"), choice.get("weight_decay")
    if not isinstance(rate, float) or not rate > 0:
        raise BadInput("optimizer", name, "must have a key lr above 0, which is tuned")
    point = {"optimizer": name, **settings, TUNED: rate}
    # One that is made to go without decay (0, or no such key) goes without.
    return {**point, DECAY: rules.decay / rate} if decay else point


def _is_averaging(choice: Mapping[str, Any], folder: Path | None) -> bool:
    """Whether the optimizer of a YAML averages weights, so that no correction may move them."""
    from pipegap.trainer.optimizers.routing import is_averaging  # torch is slow

    use_code(None if folder is None else str(folder))
    try:
        return is_averaging(locate(str(choice.get("_target_"))))
    except (Exception, SystemExit):  # whatever its module raises: the check of the config says it
        return False


def _levels(text: str) -> dict[str, list[str]]:
    levels = parse("levels", text, text)
    if not isinstance(levels, list) or not all(isinstance(d, int) and d > 0 for d in levels):
        raise BadInput("levels", text, "must be delays in updates: levels=[1,2,4,8]")
    return {
        f"constant_delay({d})": ["pipeline=constant_delay", f"pipeline.delay={d}"] for d in levels
    }


def _text(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
    )


def names_of(entries: Iterable[Path]) -> list[str]:
    """Return the names of the folders of entries, in alphabetical order."""
    return sorted(path.parent.name for folder in entries for path in folder.glob(f"*/{ENTRY}"))


def table_of(words: Iterable[str]) -> str:
    """Return the file of the trials that a sweep of an entry with these words asks for."""
    return LEVELS if any(word.startswith("levels=") for word in words) else TRIALS


def check_entry(folder: Path) -> Entry:
    """Return what an entry says, whose files keep to the rules; raise BadInput for one that does
    not."""
    entry, code = read_entry(folder), code_of(folder)
    is_ours = (CONF / entry.kind / f"{entry.name}.yaml").is_file()
    if code is None:
        yaml_of(entry.kind, entry.name, None)
        return entry
    check_code(code)
    if is_ours:
        allowed = "is the name of one of ours: an entry with code has another name, or no code"
        raise BadInput(f"{folder / ENTRY}: {entry.kind}", entry.name, allowed)
    address = str(yaml_of(entry.kind, entry.name, folder).get("_target_"))
    if not address.startswith((f"{code.stem}.", "pipegap.trainer.")):
        allowed = f"must be in {code.name}, or one of pipegap's"
        raise BadInput(f"{entry.kind}._target_", address, allowed)
    return entry


def clean_copy(folder: Path, to: Path) -> Path:
    """Copy what counts of an entry into the new folder `to`, and return it: no compiled code of
    Python comes along, and no file that a trial could read."""
    entry, code = read_entry(folder), code_of(folder)
    files = [folder / ENTRY, *([] if code is None else [code])]
    files += [path for path in [folder / entry.kind / f"{entry.name}.yaml"] if path.is_file()]
    for path in files:
        copy = to / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return to
