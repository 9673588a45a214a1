"""Shards of tokens in the layout of llm.c."""

from pathlib import Path

import numpy as np


def write_bin(path: Path, tokens: list[int], magic: int, version: int, dtype: str) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, dtype=dtype).tobytes())
