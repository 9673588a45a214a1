"""The files that a path names, in order, and the documents of .txt, .jsonl and .parquet files."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, runtime_checkable

from pipegap.trainer.base.atomic import digests, file_hash
from pipegap.trainer.base.cli import say
from pipegap.trainer.base.errors import BadInput, some

# The files that a path names, in order: one rule for folder, pattern and copy of a data set.
#
# A path that exists is no pattern. A folder stands for all files below it, those of linked folders
# too; a pattern for the files and folders that match. Names that begin with a dot are hidden, and
# folders whose names begin with `__`, such as `__MACOSX`: only a path that spells out these
# characters names them. Files come in the order of their paths, with part-2 before part-10.

Parts = tuple[str, ...]
"""The parts of a pattern that names below a folder must match; none if the whole folder matches."""
ANY_FOLDERS = "**"


def _zstd(path: Path) -> IO[bytes]:
    import pyarrow  # slow

    return pyarrow.CompressedInputStream(str(path), "zstd")


OPENERS: Mapping[str, Callable[[Path], IO[bytes]]] = {
    **{".gz": gzip.open, ".zst": _zstd, ".bz2": bz2.open, ".xz": lzma.open},  # type: ignore[dict-item]
}
"""The end of a compressed file's name → the function that opens its content."""
BLOCK = 2**20
CUT = (EOFError, zlib.error, lzma.LZMAError)
"""Errors, in addition to OSError, of a compressed file that is not whole."""


def opened(path: Path) -> IO[bytes]:
    """The content of a file, which may be compressed."""
    open_it = OPENERS.get(path.suffix.lower())
    return path.open("rb") if open_it is None else open_it(path)


def kind_of(path: Path) -> str:
    """The end of a file's name, of a compressed file both ends, such as `.jsonl.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() + suffix if suffix in OPENERS else suffix


def _as_written(path: Path) -> tuple[list[str | int], str]:
    """The sort key of paths, in which digits count as numbers."""
    # `split` with a group: words and numbers by turns, so that equal places have equal types.
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if odd % 2 else part for odd, part in enumerate(parts)], str(path)


class Named(NamedTuple):
    """Files in order, and the files and folders beside them that do not count."""

    files: list[Path]
    left_out: list[Path]


def named(path: str, kinds: Collection[str] = ()) -> Named:
    """The files that a path names: all of them, or those of some `kinds`, such as `.txt`.

    A file that is the path itself counts whatever its kind. Raises BadInput for a folder that
    cannot be read.
    """
    root, pattern = _split(Path(path))
    if not pattern and not os.path.isdir(root):
        return Named([root], [])
    files, left_out = list[Path](), list[Path]()
    for path_found, counts in _below(root, {pattern}, frozenset()) if os.path.isdir(root) else ():
        is_of_kind = not kinds or kind_of(path_found) in kinds
        (files if counts and is_of_kind else left_out).append(path_found)
    return Named(sorted(files, key=_as_written), sorted(left_out, key=_as_written))


def _split(path: Path) -> tuple[Path, Parts]:
    """The longest part of a path that exists, and the rest."""
    parts = path.parts
    for number in range(len(parts), 0, -1):
        if os.path.lexists(root := Path(*parts[:number])):
            return root, parts[number:]
    return Path(), parts


def _below(
    folder: Path, remaining_parts: set[Parts], above: frozenset[str]
) -> Iterator[tuple[Path, bool]]:
    """Files below a folder that match, each with True; files and folders that are hidden, and links
    that lead back to a folder `above`, with False."""
    above |= {os.path.realpath(folder)}
    # `**` stands for no folder too: the rest of its pattern may match here. Several may follow.
    while (
        more := {parts[1:] for parts in remaining_parts if parts[:1] == (ANY_FOLDERS,)}
        - remaining_parts
    ):
        remaining_parts = remaining_parts | more
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise BadInput("data.path", folder, f"must be readable ({error.strerror})") from None
    for name in names:
        path, mark = folder / name, ""  # the first characters of a hidden name
        if name.startswith("."):
            mark = "."
        elif name.startswith("__") and os.path.isdir(path):
            mark = "__"
        parts_below = _after(name, remaining_parts, mark)
        if not parts_below:
            if () in remaining_parts:  # hidden, in a folder that counts
                yield path, False
        elif not os.path.isdir(path):
            if () in parts_below:
                yield path, True
        elif os.path.realpath(path) in above:  # a link to a folder that is being read
            yield path, False
        else:
            yield from _below(path, parts_below, above)


def _after(name: str, remaining_parts: set[Parts], mark: str) -> set[Parts]:
    """The patterns that names below this entry must match; none if the entry matches none."""
    # A whole folder, and `**`, take every name that is not hidden.
    stay = {parts for parts in remaining_parts if parts[:1] in ((), (ANY_FOLDERS,)) and not mark}
    return stay | {
        parts[1:]
        for parts in remaining_parts - stay
        if parts and parts[0].startswith(mark) and fnmatchcase(name, parts[0])
    }


def sentence(left_out: list[Path]) -> str:
    """The sentence about files that do not count."""
    number = f"{len(left_out):,} files or folders"
    return f"leaves out {number} that are hidden or of another kind: {some(left_out)}"


def digests_of(files: Sequence[Path], of: Callable[[Path], str] = file_hash) -> list[str]:
    """A digest of each file; raises BadInput for one that cannot be read."""
    try:
        for file in files:
            if os.path.exists(file) and not os.path.isfile(file):
                raise BadInput("data.path", file, "must be a file of text, or a folder")
        return digests(files, of)
    except OSError as error:
        allowed = f"must be readable ({error.strerror or error})"
        raise BadInput("data.path", error.filename or files[0].parent, allowed) from None


def text_hash(path: Path) -> str:
    """SHA-256 of a file's content, decompressed, without its byte order mark, which is no text.

    Raises BadInput for a compressed file that is not whole.
    """
    digest = hashlib.sha256()
    try:
        with opened(path) as file:
            if (start := file.read(len(BOM_UTF8))) != BOM_UTF8:
                digest.update(start)
            while block := file.read(BLOCK):
                digest.update(block)
    except (*CUT, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the file system, not of the content
            raise
        raise damaged(path, error) from None
    return digest.hexdigest()


def damaged(path: Path, error: Exception) -> BadInput:
    """The refusal of a compressed file that is not whole."""
    return BadInput("data.path", path, f"must be a whole {path.suffix} file ({error})")


def has_mark(path: Path) -> bool:
    """Whether a file begins with the byte order mark that some editors write."""
    with path.open("rb") as file:
        return file.read(len(BOM_UTF8)) == BOM_UTF8


# Documents of .txt, .jsonl and .parquet files, the first two compressed or not. Values that are no
# text are refused, or left out. Documents come in batches, each with the state from which the
# documents after it can be read.

LONGEST = 2**24
"""Characters of a document at most. More would not fit in the memory that a preparation takes."""
ADVICE = "data.skip_bad_rows=true leaves such rows out"
DOCUMENTS_AT_ONCE, CHARACTERS_AT_ONCE = 1000, 2**20
"""The numbers at which a batch ends; its last document may take it beyond."""
ROWS_AT_ONCE = 16
"""Rows of a .parquet file, each of which may be long."""
UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")
"""The byte order marks of UTF-16, read as UTF-8 by `surrogateescape`."""
State = dict[str, Any]
"""The place that a stream of documents has reached, as JSON can hold it."""


class Found(NamedTuple):
    """The value that a source has at a place, such as `line 7 of a.jsonl`: a text, or no text.

    A value that is a BadInput is the refusal of this place.
    """

    place: str
    value: object


def texts(rows: Iterable[Found], field: str, *, skip: bool) -> Iterator[str]:
    """The texts that are not empty.

    Raises BadInput for a row that is no text. With `skip` such rows are left out, and a line at the
    end says how many there were.
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
    finally:  # also when the reader stops before the end, at `num_tokens`
        if number:
            say(f"left out {number:,} rows that are no text; the first: {first}")


def _fault(row: Found, field: str) -> BadInput:
    place, value = row
    if isinstance(value, BadInput):
        return value
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        return BadInput("data.text", field, f"must hold text, not {kind}, in {place}")
    if len(value) > LONGEST:
        return too_long(place)
    return BadInput("data.text", field, f"must hold text in UTF-8 in {place}")


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can write a text: not if a byte of its file was no UTF-8."""
    return text.isascii() or text == text.encode(errors="ignore").decode()


def too_long(place: str) -> BadInput:
    """The refusal of a document that is longer than LONGEST."""
    allowed = f"must be of a document of at most {LONGEST:,} characters"
    return BadInput("data", place, f"{allowed}: in a .txt, an empty line ends a document")


def no_field(field: str, place: str, fields_found: str) -> BadInput:
    """The refusal of a field that is not in the rows of `place`."""
    return BadInput("data.text", field, f"must be a field of {place} (it has {fields_found})")


Reader = Callable[[Path, str], Iterator[Found]]
"""(file, field) → the values of the field, in order; a .txt has no fields."""


def documents(paths: Iterable[Path], field: str, *, skip: bool = False) -> Iterator[str]:
    """The documents of the files, in order; empty ones are left out.

    Raises BadInput for a file that cannot be read, and, unless `skip`, for a row that is no text,
    naming the place.
    """
    return texts(_rows(paths, field), field, skip=skip)


def _rows(paths: Iterable[Path], field: str) -> Iterator[Found]:
    for path in paths:
        try:
            yield from READERS[kind_of(path)](path, field)
        except CUT as error:
            raise damaged(path, error) from None
        except OSError as error:
            allowed = f"must be a file that can be read ({error})"
            raise BadInput("data.path", path, allowed) from None


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers. Bytes that are no UTF-8 stand as surrogates."""
    with TextIOWrapper(opened(path), encoding="utf-8-sig", errors="surrogateescape") as file:
        # Not `for line in file`: a line without an end would fill the memory.
        for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), ""), 1):
            if number == 1 and (line.startswith(UTF_16) or "\0" in line):  # with or without a mark
                raise BadInput("data.path", path, "must be a file of text in UTF-8, not in UTF-16")
            if len(line) > LONGEST:
                raise too_long(f"line {number} of {path}")
            yield number, line


def _paragraphs(path: Path, field: str) -> Iterator[Found]:
    """The texts between empty lines."""
    lines: list[str] = []
    size, bad_line = 0, 0  # the number of the first line of the paragraph that is no UTF-8
    for number, line in chain(_numbered(path), [(0, "")]):  # the end ends a paragraph too
        if line.strip():
            lines.append(line)
            size += len(line)
            bad_line = bad_line or (0 if is_utf8(line) else number)
            if size > LONGEST:
                raise too_long(f"the text before line {number} of {path}")
        elif lines:
            place, value = f"line {bad_line} of {path}", "".join(lines).rstrip("\n")
            allowed = f"must be a file of text in UTF-8: {place}"
            yield Found(place, BadInput("data.path", path, allowed) if bad_line else value)
            lines, size, bad_line = [], 0, 0


def _lines(path: Path, field: str) -> Iterator[Found]:
    for number, line in _numbered(path):
        if line.strip():
            place = f"line {number} of {path}"
            yield Found(place, _field_of(line, field, path, number))


def _field_of(line: str, field: str, path: Path, number: int) -> object:
    """The value of the field, or the refusal of a line that has none."""
    try:
        row = json.loads(line)
    except ValueError as error:
        allowed = f"must have one JSON object per line (line {number}: {error})"
        return BadInput("data.path", path, allowed)
    if not isinstance(row, dict) or field not in row:
        field_names = ", ".join(row) if isinstance(row, dict) else "no object"
        return no_field(field, f"line {number} of {path}", field_names)
    return row[field]


def _column(path: Path, field: str) -> Iterator[Found]:
    import pyarrow
    from pyarrow import parquet

    try:
        # Without a buffer, all of a column's row group is read at once.
        file = parquet.ParquetFile(path, buffer_size=2**20)
    except pyarrow.ArrowInvalid as error:
        raise BadInput("data.path", path, f"must be a parquet file ({error})") from None
    if field not in file.schema_arrow.names:
        raise no_field(field, str(path), ", ".join(file.schema_arrow.names))
    batches = file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field])
    values = (value for batch in batches for value in _values(batch.column(0)))
    for number, value in enumerate(values, 1):
        yield Found(f"row {number} of {path}", value)


def _values(column: Any) -> Iterator[object]:
    """The values of a column; bytes of a text that are no UTF-8 stand as surrogates."""
    try:
        yield from column.to_pylist()  # all or none: it raises before it yields
    except UnicodeDecodeError:
        for value in column.cast("binary").to_pylist():
            yield None if value is None else value.decode(errors="surrogateescape")


READERS: Mapping[str, Reader] = {
    **{".txt": _paragraphs, ".jsonl": _lines, ".parquet": _column},
    **{f".txt{how}": _paragraphs for how in OPENERS},
    # A .json.gz of C4 or Dolma is JSON lines; a plain .json mostly describes the texts beside it.
    **{f"{kind}{how}": _lines for kind in (".jsonl", ".json") for how in OPENERS},
}
"""The end of a file's name → its reader; the first of several with one reader is its usual name."""


@runtime_checkable
class Stateful(Protocol):
    """Documents that can be read from the middle on, without the ones before."""

    def __iter__(self) -> Iterator[str]: ...

    def state_dict(self) -> State:
        """The place that the iteration has reached."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Makes the next iteration start at the place of a state."""
        ...


class Counted:
    """Makes any documents stateful: the ones before a state are read again and skipped."""

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
        """Makes the next iteration skip as many documents as the state has counted."""
        self._done = state["documents"]


class Batch(NamedTuple):
    """Some documents; `state_after` is that of the stream after them."""

    texts: list[str]
    state_after: State

    def size(self) -> int:
        """Characters."""
        return sum(map(len, self.texts))


def batches(documents: Iterable[str], state_before: State | None) -> Iterator[Batch]:
    """The documents after the state `state_before`; all of them if it is None."""
    stream = documents if isinstance(documents, Stateful) else Counted(documents)
    if state_before is not None:
        stream.load_state_dict(state_before)
    texts, size = [], 0
    for text in stream:
        texts.append(text)
        size += len(text)
        if len(texts) == DOCUMENTS_AT_ONCE or size >= CHARACTERS_AT_ONCE:
            yield Batch(texts, stream.state_dict())
            texts, size = [], 0
    if texts:
        yield Batch(texts, stream.state_dict())
