"""Text of one's own in each kind of file that is read."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def texts(number: int = 300, words: int = 60) -> list[str]:
    """Documents of random words, most of them twice."""
    draw = random.Random(0)
    known = ["".join(draw.choices(ALPHABET, k=draw.randint(2, 9))) for _ in range(number * 30)]
    return [" ".join(draw.choices(known, k=words)) + "." for _ in range(number)]


def write_txt(path: Path, documents: Sequence[str]) -> None:
    _ready(path).write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def write_jsonl(path: Path, documents: Sequence[str], field: str = "text") -> None:
    lines = (json.dumps({"id": i, field: text}) for i, text in enumerate(documents))
    _ready(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_parquet(path: Path, documents: Sequence[str], field: str = "text") -> None:
    table = pa.table({"id": range(len(documents)), field: list(documents)})
    parquet.write_table(table, _ready(path), row_group_size=50)


def _ready(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
