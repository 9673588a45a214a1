"""Every optimizer of conf/optimizer/: a YAML there is in the tests from then on."""

from functools import cache, partial
from typing import Any

import yaml

from pipegap.trainer.base.build import locate
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import compose

NAMES = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))


@cache
def node(name: str) -> dict[str, Any]:
    """Its YAML, as a config has it."""
    return compose.compose([f"optimizer={name}"])["optimizer"]


def address(name: str) -> str:
    """Under which it was published."""
    address: str = yaml.safe_load((CONF / "optimizer" / f"{name}.yaml").read_text())["_target_"]
    return address


def maker(name: str, **changes: Any) -> partial[Any]:
    """The factory with its YAML's settings and `changes` of those keys that it has."""
    settings = {key: value for key, value in node(name).items() if key != "_target_"}
    kept = {key: value for key, value in changes.items() if key in settings}
    return partial(locate(address(name)), **{**settings, **kept})
