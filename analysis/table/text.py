"""Lists and tables as text."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]] = ()) -> str:
    """Return a Markdown table; without rows, the head to which `markdown_row` adds rows."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(map(markdown_row, lines))


def markdown_row(cells: Sequence[str]) -> str:
    """Return one row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


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


def aligned(
    rows: Sequence[Sequence[str]], others: Callable[[str, int], str] = str.ljust
) -> Iterator[str]:
    """Yield a line per row, its cells in columns: the first to the left, the rest by `others`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = map(others, row[1:], widths[1:])
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()
