"""Reads documents: of .txt, .jsonl and .parquet files, or streamed from the Hugging Face hub.

They come in batches, each with the state from which the documents after it can be read.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from trainer.base.errors import BadInput, first_line

Reader = Callable[[Path, str], Iterator[object]]
"""(file, field) → the values of the field, in order; a .txt has no fields."""

DOCUMENTS_AT_ONCE = 1000
State = dict[str, Any]
"""Where a stream of documents is; it can be written as JSON."""


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
            except (ValueError, RecursionError) as error:
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


class HubDocuments:
    """Documents of a data set: those that are not empty, of one field.

    `name` may also be a folder with a copy of the data set, such as its parquet files. Files that
    were read before are not read again when a stream goes on (`Stateful`).
    """

    def __init__(
        self, name: str, *, config: str | None, split: str, revision: str | None, field: str
    ) -> None:
        self._name, self._field = name, field
        try:
            from datasets import load_dataset

            self._rows: Any = load_dataset(
                name, config, split=split, revision=revision, streaming=True
            )
        except ImportError:
            allowed = "needs the package datasets: pip install 'pipegap[hub]'"
            raise BadInput("data.name", name, allowed) from None
        except Exception as error:  # datasets, the hub's client and the network have their own
            raise _unreachable(name, error) from None

    def __iter__(self) -> Iterator[str]:
        """Raises BadInput where the field is missing, or the hub no longer answers."""
        rows = iter(self._rows)
        while (row := self._next(rows)) is not None:
            if self._field not in row:
                raise no_field(self._field, self._name, ", ".join(row))
            if (text := row[self._field]) and text.strip():
                yield text

    def _next(self, rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return next(rows, None)
        except Exception as error:
            raise _unreachable(self._name, error) from None

    def state_dict(self) -> State:
        """Where the stream is: a file, and a row in it."""
        return self._rows.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Makes the next iteration start there."""
        self._rows.load_state_dict(state)


def _unreachable(name: str, error: Exception) -> BadInput:
    allowed = (
        f"must be a data set that can be read from the Hugging Face hub ({first_line(error)}); "
        "or use files: data=text, data=bins"
    )
    return BadInput("data.name", name, allowed)


def newest_commit(name: str) -> str:
    """The newest commit of a data set; raises BadInput if there is none or no hub."""
    try:
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(name).sha)
    except Exception as error:
        raise _unreachable(name, error) from None


@runtime_checkable
class Stateful(Protocol):
    """Documents that can be read from the middle without reading those before."""

    def __iter__(self) -> Iterator[str]: ...

    def state_dict(self) -> State:
        """Where the iteration is."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Makes the next iteration start there."""
        ...


class Counted:
    """Makes any documents stateful: those before are read again and skipped."""

    def __init__(self, documents: Iterable[str]) -> None:
        self._documents, self._done = documents, 0

    def __iter__(self) -> Iterator[str]:
        for text in islice(self._documents, self._done, None):
            self._done += 1
            yield text

    def state_dict(self) -> State:
        """How many documents were read."""
        return {"documents": self._done}

    def load_state_dict(self, state: State) -> None:
        """Skips as many."""
        self._done = state["documents"]


class Batch(NamedTuple):
    """Some documents; `after` is the state behind them."""

    texts: list[str]
    after: State


def batches(documents: Iterable[str], before: State | None) -> Iterator[Batch]:
    """The documents behind the state `before`; all of them if it is None."""
    stream = documents if isinstance(documents, Stateful) else Counted(documents)
    if before is not None:
        stream.load_state_dict(before)
    iterator = iter(stream)
    while texts := list(islice(iterator, DOCUMENTS_AT_ONCE)):
        yield Batch(texts, stream.state_dict())
