"""Reads sweep files and scales: by their name in conf/, or a sweep by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainer.compose import CONF
from trainer.errors import BadInput

ALL = "all"
"""What stands for every sweep of conf/sweep."""


def known(group: str) -> list[str]:
    """The names of a group of conf/."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def sweep_file(name: str) -> tuple[str, dict[str, Any]]:
    """The label of a sweep, and what its file says, not checked yet.

    `name` is one in conf/sweep, or a path that ends in .yaml: then the label is the file's stem.
    Raises BadInput if there is no such file, or none of keys and values.
    """
    if name.endswith(".yaml"):
        return Path(name).stem, {"base": [], **_read("sweep", name, Path(name))}
    return name, {
        "base": [],
        **_read("sweep", name, _named("sweep", name, f", {ALL}, or path/to/a.yaml")),
    }


def sweep_files(names: str) -> list[tuple[str, dict[str, Any]]]:
    """Those of one name, of several (`a,b`), or of `all`; see `sweep_file`."""
    return [sweep_file(name) for name in (known("sweep") if names == ALL else names.split(","))]


def scale_file(name: str) -> list[str]:
    """The overrides of a scale; raises BadInput if there is none of that name."""
    overrides: list[str] = _read("scale", name, _named("scale", name))["base"]
    return overrides


def _named(group: str, name: str, more: str = "") -> Path:
    if name not in known(group):
        raise BadInput(group, name, f"must be one of {', '.join(known(group))}{more}")
    return CONF / group / f"{name}.yaml"


def _read(group: str, name: str, path: Path) -> dict[str, Any]:
    try:
        content = parse(group, name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(group, name, f"must be a YAML file that can be read ({error})") from None
    if not isinstance(content, dict):
        raise BadInput(group, name, "must be a YAML file of keys and values")
    return content


def parse(key: str, value: str, text: str) -> Any:
    """The YAML `text` as plain data; raises BadInput for the `key` whose `value` says it."""
    try:
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise BadInput(key, value, f"must be YAML ({' '.join(str(error).split())})") from None


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML's own loader keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[object] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                problem = f"the key {key} is there twice: remove or rename one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)
