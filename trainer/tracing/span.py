"""What a rank did, from when to when."""

from typing import NamedTuple


class Span(NamedTuple):
    """An operation, a wait before one ("wait F"), or the reduction of a batch ("reduce").

    `start` and `end` are seconds since 1970, so the ranks of one machine can be compared.
    """

    kind: str
    stage: int
    batch: int
    microbatch: int
    start: float
    end: float
