"""Lists and tables as text."""

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from html import escape
from textwrap import fill

COMMAND = ": pipegap "


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(map(markdown_row, [heads, ["---"] * len(heads), *rows]))


def markdown_row(cells: Sequence[str]) -> str:
    """Return one row of a Markdown table, each cell `in_markdown`."""
    return f"| {' | '.join(map(in_markdown, cells))} |"


def in_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in a cell of a table too.

    A bar would end the cell, a line break the table, and `<` or `&` begin raw HTML.
    """
    return escape(text, quote=False).replace("|", "&#124;").replace("\n", " ")


def packed(heads: Sequence[str], cells: Sequence[str], width: int, bare: Collection[str]) -> str:
    """Return a row of a table that is wider than `width`, in lines of whole cells: each after its
    head, but for those of `bare` heads; empty ones are left out."""
    pairs = zip(heads, cells, strict=True)
    parts = [cell if head in bare else f"{head} {cell}" for head, cell in pairs if cell]
    lines = [""]
    for part in parts:
        if lines[-1].strip() and len(lines[-1]) + len(part) + 1 > width:
            lines.append("  ")
        lines[-1] += f"{part}, "
    return "\n".join(line.rstrip() for line in lines).rstrip(",")


def terminal_width() -> int | None:
    """Return the columns of the terminal; None where the text goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, bare: Collection[str]
) -> list[str]:
    """Return the lines of a table, `aligned`, or `packed` where it is wider than `width`."""
    lines = [*aligned([heads, *rows])]
    if width is None or max(map(len, lines)) <= width:
        return lines
    return [packed(heads, row, width, bare) for row in rows]


def hanging(text: str, width: int | None) -> str:
    """Return the text with its lines broken at `width`, what follows further in.

    A command stays whole, in a line of its own, so that it can be copied.
    """
    return "\n".join(_broken(line, width) for line in text.splitlines()) if width else text


def _broken(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    inner = " " * (len(line) - len(line.lstrip()) + 4)
    # What stands after COMMAND is not wrapped: a broken command could not be copied.
    sentence, command, words = line.partition(COMMAND)
    parts = fill(
        sentence + ":" * bool(command),  # which COMMAND took away
        width,
        subsequent_indent=inner,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{parts}\n{inner}{command.removeprefix(': ')}{words}" if command else parts


def aligned(
    rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.ljust
) -> Iterator[str]:
    """Yield a line per row, its cells in columns: the first to the left, the rest by `align`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = map(align, row[1:], widths[1:])
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()
