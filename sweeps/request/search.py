"""The section `search` of a sweep: the keys that a sampler chooses, their ranges, and a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Interval, Len
from pydantic import BaseModel, ConfigDict, PlainValidator

from sweeps.request.files import parse, search_file
from trainer.base.errors import BadInput
from trainer.base.ranges import Seed

GROUP = "search"

MOST_SETTINGS = 1_000
"""The most settings that a search may try at a point, and choices that a key may have."""
FORMS = (
    "must be {factors: [low, high]} with 0 < low < high, {range: [low, high]} with low < high, or "
    "a list of choices"
)
Axis = dict[str, list[float]] | list[Any]


def _axis(given: Any) -> Axis:
    """`given`, if it says how a key may be chosen; raises ValueError."""
    if isinstance(given, list) and _are_choices(given):
        return given
    if isinstance(given, dict) and len(given) == 1:
        [(form, ends)] = given.items()
        if form in ("factors", "range") and _ascend(ends) and (form == "range" or ends[0] > 0):
            return {form: [float(end) for end in ends]}
    raise ValueError(FORMS)


def _are_choices(given: list[Any]) -> bool:
    scalars = all(isinstance(value, str | int | float) for value in given)
    return scalars and 2 <= len({*map(str, given)}) == len(given) <= MOST_SETTINGS


def _ascend(ends: Any) -> bool:
    return (
        isinstance(ends, list)
        and len(ends) == 2
        and all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        and -math.inf < ends[0] < ends[1] < math.inf
    )


class Search(BaseModel):
    """At each point, `budget` settings of the keys in `space` are tried in every arm, `at_once` of
    them side by side, at `seeds`, which compare nothing (see plan/search.py).

    An axis of the space is {factors: [low, high]} (times the value of the point, log-uniform),
    {range: [low, high]} (uniform), or a list of choices.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    budget: Annotated[int, Interval(ge=1, le=MOST_SETTINGS)]
    at_once: Annotated[int, Interval(ge=1, le=MOST_SETTINGS)]
    seeds: Annotated[list[Seed], Len(1, MOST_SETTINGS)]
    sampler_seed: Annotated[int, Interval(ge=0, le=2**32 - 1)]
    space: Annotated[dict[str, Annotated[Any, PlainValidator(_axis)]], Len(1, MOST_SETTINGS)]


def searched(content: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The content of a sweep with the search that the `words` of a command line ask for.

    `search=NAME` takes that of a file, and `search=null` none; `search.KEY=…` and
    `search.space.KEY=…` replace its own, and `search.space.KEY=null` leaves a key as it is. A
    search takes the place of `tune`, and of those axes of the grid that it chooses.

    Raises BadInput for an unknown file, or a key without a search that it could change.
    """
    given = dict(word.split("=", 1) for word in words if _group(word) == GROUP)
    if not given:
        return content
    own = content[GROUP]
    if (name := given.pop(GROUP, None)) is not None:
        own = None if name == "null" else search_file(name)
    if own is None:
        if given:
            key, value = next(iter(given.items()))
            raise BadInput(key, value, "changes a search: ask for one by search=optuna")
        return {**content, GROUP: None}
    found = _changed(own, given)
    space = found.get("space")
    axes = space if isinstance(space, dict) else {}
    grid = {key: values for key, values in content["grid"].items() if key not in axes}
    return {**content, GROUP: found, "tune": {}, "shared": None, "grid": grid}


def _changed(own: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The search `own` changed by the words `given`, which are not checked yet."""
    plain = {key.removeprefix(f"{GROUP}."): parse(key, text, text) for key, text in given.items()}
    axes = {key: axis for key, axis in plain.items() if key.startswith("space.")}
    found = {**own, **{key: value for key, value in plain.items() if key not in axes}}
    if axes and isinstance(found.get("space"), dict):
        changed = {**found["space"], **{key.partition(".")[2]: axes[key] for key in axes}}
        found["space"] = {key: axis for key, axis in changed.items() if axis is not None}
    return found


def _group(word: str) -> str:
    return word.partition("=")[0].partition(".")[0]
