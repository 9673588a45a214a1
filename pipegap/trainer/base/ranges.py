"""Ranges of values in configs: annotations that are checked when a config is validated.

A range has an upper end where a larger number would not be refused by what it is used for, but take
hours or all memory before anything is said.
"""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval

from pipegap.trainer.base.places import path_problem

MAX_COUNT = 10**9

Count = Annotated[int, Interval(ge=1, le=MAX_COUNT)]
Few = Annotated[int, Interval(ge=1, le=4_096)]
"""Of a model, a batch or a machine: stages, chunks, layers, microbatches, replicas, threads."""
Rows = Annotated[int, Interval(ge=1, le=2**20)]
"""Of what is in memory as a whole: sequences of a batch, tokens of a sequence, a width."""
Delay = Annotated[int, Interval(ge=0, le=4_096)]
"""In updates: as many versions of the weights are kept."""
Seed = Annotated[int, Interval(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]


def _require_path(path: str) -> str:
    from pydantic_core import PydanticCustomError

    if (problem := path_problem(path)) is not None:
        raise PydanticCustomError("place", "{problem}", {"problem": problem})
    return path


class _IsPath:
    """An AfterValidator of `_require_path` without the import of pydantic: help needs none."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(_require_path, handler(source))


Place = Annotated[str, _IsPath()]
"""A file or folder; not empty, which would be the working folder or the file system's root."""
