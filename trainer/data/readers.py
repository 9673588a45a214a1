"""The documents of text files of one's own: .txt, .jsonl and .parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from trainer.base.errors import BadInput

Reader = Callable[[Path, str], Iterator[object]]
"""(file, field) → the values of the field, in order; a .txt has no fields."""


def documents(paths: Iterable[Path], field: str) -> Iterator[str]:
    """The documents of the files, in order; empty ones are left out.

    Raises BadInput for a file that cannot be read, naming the place.
    """
    for path in paths:
        try:
            for value in READERS[path.suffix](path, field):
                if not isinstance(value, str):
                    kind = type(value).__name__
                    raise BadInput("data.text", field, f"must hold text, not {kind}, in {path}")
                if value.strip():
                    yield value
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                "data.path", path, f"must be a file of text in UTF-8 ({error})"
            ) from None


def _paragraphs(path: Path, field: str) -> Iterator[str]:
    """What empty lines separate."""
    with path.open(encoding="utf-8") as lines:
        for is_text, some in groupby(lines, lambda line: bool(line.strip())):
            if is_text:
                yield "".join(some).rstrip("\n")


def _lines(path: Path, field: str) -> Iterator[object]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.strip() else {field: ""}
            except ValueError as error:
                allowed = f"must have one JSON object per line (line {number}: {error})"
                raise BadInput("data.path", path, allowed) from None
            if not isinstance(row, dict) or field not in row:
                found = ", ".join(row) if isinstance(row, dict) else "no object"
                raise no_field(field, f"line {number} of {path}", found)
            yield row[field]


def _column(path: Path, field: str) -> Iterator[object]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise BadInput("data.path", path, f"must be a parquet file ({error})") from None
    if field not in file.schema_arrow.names:
        raise no_field(field, str(path), ", ".join(file.schema_arrow.names))
    for batch in file.iter_batches(columns=[field]):
        yield from batch.column(0).to_pylist()


def no_field(field: str, place: str, found: str) -> BadInput:
    """The refusal of a field that is not in the rows of `place`."""
    return BadInput("data.text", field, f"must be a field of {place} (it has {found})")


READERS: Mapping[str, Reader] = {".txt": _paragraphs, ".jsonl": _lines, ".parquet": _column}
"""The end of a file's name → its reader."""
