"""Choices of conf/: the words that make them, their configs without Hydra, every optimizer.

Hydra takes a tenth of a second for each set of choices. A YAML of an optimizer is in the tests from
the moment it is there.
"""

from copy import deepcopy
from functools import cache, partial
from typing import Any

import yaml
from omegaconf import OmegaConf

from pipegap.trainer.base.build import locate
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import compose
from pipegap.trainer.config.compose import Node, ParsedWords

GIVEN = {
    "data=hf": ["data.name=org/set", f"data.revision={'0' * 40}"],
    "data=text": ["data.path=text.txt"],
}
"""What the user of a YAML must give with it."""
composed_by_hydra = compose._compose
OPTIMIZERS = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))


def words_of(group: str, choice: str) -> list[str]:
    """`group=choice`, and what must be given with it."""
    word = f"{group}={choice}"
    return [word, *GIVEN.get(word, [])]


@cache
def usual_choices() -> tuple[Node, Node]:
    return composed_by_hydra(ParsedWords(None, {}, []))


@cache
def choice_node(group: str, name: str) -> Node:
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return node


def composed(parsed: ParsedWords) -> tuple[Node, Node]:
    """Hydra composes the usual choices once per process, and no set that a test chooses: a choice
    changes nothing but its own group, and is what its YAML holds (`test_compose`)."""
    if parsed.code is not None:  # files of the test's own
        return composed_by_hydra(parsed)
    parsed.require_choices()
    node, names = usual_choices()
    of_choices = {group: choice_node(group, name) for group, name in parsed.choices.items()}
    return deepcopy(({**node, **of_choices}, {**names, **parsed.choices}))


@cache
def optimizer_node(name: str) -> dict[str, Any]:
    """Its YAML, as a config has it."""
    return compose.compose([f"optimizer={name}"])["optimizer"]


def optimizer_address(name: str) -> str:
    """Under which it was published."""
    address: str = yaml.safe_load((CONF / "optimizer" / f"{name}.yaml").read_text())["_target_"]
    return address


def optimizer_maker(name: str, **changes: Any) -> partial[Any]:
    """The factory with its YAML's settings and `changes` of those keys that it has."""
    settings = {key: value for key, value in optimizer_node(name).items() if key != "_target_"}
    changes = {key: value for key, value in changes.items() if key in settings}
    return partial(locate(optimizer_address(name)), **{**settings, **changes})
