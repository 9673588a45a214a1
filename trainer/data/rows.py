"""Rows of a source → the texts among them. What is no text is refused, or left out and counted."""

import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipegap.trainer.base.errors import BadInput

LONGEST = 2**24
"""Characters of a document at most. More would not fit in the memory that a preparation takes."""
HALF = re.compile(r"[\ud800-\udfff]")
"""No character, but half of one, or a byte that is no UTF-8."""
ADVICE = "data.skip_bad_rows=true leaves such rows out"


class Found(NamedTuple):
    """What a source has at a place, such as `line 7 of a.jsonl`: a text, or something else.

    A refusal stands for itself.
    """

    place: str
    value: object


def texts(rows: Iterable[Found], field: str, *, skip: bool) -> Iterator[str]:
    """The texts that are not empty.

    Raises BadInput for a row that is no text, or if `skip`, says at the end how many there were.
    """
    first, number = None, 0
    try:
        for row in rows:
            if isinstance(row.value, str) and is_utf8(row.value) and len(row.value) <= LONGEST:
                if row.value.strip():
                    yield row.value
                continue
            fault = _fault(row, field)
            if not skip:
                raise BadInput(fault.key, fault.value, f"{fault.allowed}; {ADVICE}")
            first, number = first or fault, number + 1
    finally:
        if number:
            line = f"left out {number:,} rows that are no text; the first: {first}"
            print(line, file=sys.stderr, flush=True)


def _fault(row: Found, field: str) -> BadInput:
    place, value = row
    if isinstance(value, BadInput):
        return value
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        return BadInput("data.text", field, f"must hold text, not {kind}, in {place}")
    if len(value) > LONGEST:
        return too_long(place)
    return BadInput("data.text", field, f"must hold text in UTF-8, not {_half(value)}, in {place}")


def _half(text: str) -> str:
    """The first half of a character in words: a byte that is no UTF-8 was read as one."""
    [half] = HALF.findall(text)[:1]
    is_byte = "\udc80" <= half <= "\udcff"
    return f"the byte 0x{ord(half) - 0xDC00:02x}" if is_byte else f"half a character ({half!r})"


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can write a text."""
    return text.isascii() or not HALF.search(text)


def too_long(place: str) -> BadInput:
    """The refusal of a document that is longer than LONGEST."""
    allowed = f"must be of a document of at most {LONGEST:,} characters"
    return BadInput("data", place, f"{allowed}: in a .txt, an empty line ends a document")


def no_field(field: str, place: str, found: str) -> BadInput:
    """The refusal of a field that is not in the rows of `place`."""
    return BadInput("data.text", field, f"must be a field of {place} (it has {found})")
