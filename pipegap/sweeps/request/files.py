"""Reads sweep files and scales, by their name in conf/, or a sweep file by its path."""

import os
import re
from pathlib import Path
from typing import Any

from pipegap.trainer.base import documents
from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import refuse_dropped_choice
from pipegap.trainer.base.places import CODE_ROOT, CONF, cut, digest
from pipegap.trainer.config.names import yamls

LONGEST = 48
"""Letters of a sweep's name in its label: with a scale and a number it is a tag of wandb, which has
64 at most."""
ALL, PAPER = "all", "paper"
"""The names that stand for every sweep with a name, and for those of the paper."""
STUDIES, OF_STUDY = CODE_ROOT / "findings", "sweep.yaml"
"""A checkout has follow-up sweeps here: `findings/STUDY/sweep.yaml` is the sweep STUDY."""
SHARED = STUDIES / "shared.yaml"
"""What the follow-up sweeps share."""


def slug(name: str) -> str:
    """Return `name` for ids, tags and folders: letters of English, digits and `._-`, with - for the
    rest. Names that differ in other letters alone, or in their ends, differ in a hash."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "sweep"
    return cut(plain if name.isascii() else f"{plain}-{digest(name)}", LONGEST)


def known(group: str) -> list[str]:
    """Return the names of the choices in a group of conf/, with those of sweeps in findings/."""
    names = {path.stem for path in yamls(group)}
    if group == "sweep":
        names |= {file.parent.name for file in STUDIES.glob(f"*/{OF_STUDY}")}
    return sorted(names)


def sweep_files(names: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the label of each sweep and the content of its file, which is not checked yet.

    `names`: sweeps `a,b`, `all` those with a name, or `paper`, those that answer something that the
    paper asks. A sweep is the name of a file in conf/sweep or of a study in findings/, or a path
    that ends in .yaml. The label of a path is its stem, and that of a study's path is the study.
    Raises BadInput if a file is not there, or holds no keys and values.
    """
    if names not in (ALL, PAPER):
        return [_sweep_file(name) for name in names.split(",")]
    files = map(_sweep_file, known("sweep"))
    return [(name, content) for name, content in files if names == ALL or "paper" in content]


def _sweep_file(name: str) -> tuple[str, dict[str, Any]]:
    content = _read("sweep", name, f", {ALL}, {PAPER}, or path/to/a.yaml")
    if not _is_of_study(name):
        return _label(name), {"base": [], **content}
    study = {"base": [], **parse("sweep", name, SHARED.read_text("utf-8")), **content}
    return _label(name), {**study, "base": [_from_here(word) for word in study["base"]]}


def _from_here(word: str) -> str:
    """A study's word, whose `code=` is a folder of the checkout wherever the command is given."""
    key, _, folder = word.partition("=")
    return f"code={os.path.relpath(CODE_ROOT / folder)}" if key == "code" else word


def _is_of_study(name: str) -> bool:
    path = Path(name).resolve() if is_path(name) else _named("sweep", name)
    return path == STUDIES / path.parent.name / OF_STUDY


def _label(name: str) -> str:
    if not is_path(name):
        return name
    path = Path(name).resolve()
    return path.parent.name if _is_of_study(name) else path.stem


def scale_file(name: str) -> list[str]:
    """Return the overrides of a scale; raises BadInput if there is none of that name."""
    return _read("scale", name)["base"]


def defaults_at(name: str, *, of_paper: bool) -> list[str]:
    """Return the overrides of a scale that a sweep's own base may replace.

    `of_paper`: with those that the scale has for all sweeps of the paper together. Raises BadInput
    if there is none of that name.
    """
    scale = _read("scale", name)
    words: list[str] = scale.get("default", [])
    return [*words, *scale.get(PAPER, [])] if of_paper else words


def search_file(name: str) -> dict[str, Any]:
    """Return the content of a search, which is not checked yet; raises BadInput if there is none.

    `name` is that of a file in conf/search, or a path that ends in .yaml.
    """
    return _read("search", name, ", or path/to/a.yaml")


def is_path(name: str) -> bool:
    """Return whether the name of a sweep or a search is the path of a file."""
    return name.endswith(".yaml")


def _named(group: str, name: str) -> Path:
    path = CONF / group / f"{name}.yaml"
    return path if group != "sweep" or path.exists() else STUDIES / name / OF_STUDY


def _read(group: str, name: str, paths: str = "") -> dict[str, Any]:
    """Return the content of a file. `paths`: what else than a name of the group is allowed."""
    if not (paths and is_path(name)) and name not in known(group):
        refuse_dropped_choice(group, name)
        raise one_of(group, name, known(group), paths)
    path = Path(name) if paths and is_path(name) else _named(group, name)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(group, name, f"must be a YAML file that can be read ({error})") from None
    content = parse(group, name, text)
    if not isinstance(content, dict):
        raise BadInput(group, name, "must be a YAML file of keys and values")
    return content


def parse(key: str, value: str, text: str) -> Any:
    """Return the YAML `text` as plain data; raises BadInput, which names `key` and `value`."""
    try:
        return documents.read(text)
    except documents.NotRead as error:
        raise BadInput(key, value, f"must be YAML ({error})") from None
