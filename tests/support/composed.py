"""Configs without Hydra, which takes a tenth of a second for each set of choices."""

from copy import deepcopy
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import compose
from pipegap.trainer.config.compose import Node, ParsedWords

composed_by_hydra = compose._compose


@cache
def usual() -> tuple[Node, Node]:
    return composed_by_hydra(ParsedWords(None, {}, []))


@cache
def chosen(group: str, name: str) -> Node:
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return node


def composed(parsed: ParsedWords) -> tuple[Node, Node]:
    """Hydra composes the usual choices once per process, and no set that a test chooses: a choice
    changes nothing but its own group, and is what its YAML holds (`test_compose`)."""
    if parsed.code is not None:  # files of the test's own
        return composed_by_hydra(parsed)
    parsed.require_choices()
    node, names = usual()
    of_choices = {group: chosen(group, name) for group, name in parsed.choices.items()}
    return deepcopy(({**node, **of_choices}, {**names, **parsed.choices}))
