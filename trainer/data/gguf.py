"""What the head of a GGUF file says of a model, its tokenizer among it."""

import struct
from typing import IO, Any

STRING, ARRAY = 8, 9
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Type number → its format in `struct` (the GGUF specification, little-endian)."""


def read_metadata(file: IO[bytes]) -> dict[str, Any]:
    """The key-value pairs at the head of a GGUF file (versions 2 and 3); raises ValueError."""
    if file.read(4) != b"GGUF":
        raise ValueError("not a GGUF file")
    _, _, num_pairs = struct.unpack("<IQQ", file.read(20))
    return dict(_pair(file) for _ in range(num_pairs))


def _pair(file: IO[bytes]) -> tuple[str, Any]:
    return _string(file), _value(file, _scalar(file, "I"))


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == STRING:
        return _string(file)
    if kind == ARRAY:
        item, length = _scalar(file, "I"), _scalar(file, "Q")
        return [_value(file, item) for _ in range(length)]
    return _scalar(file, SCALARS[kind])


def _scalar(file: IO[bytes], form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _string(file: IO[bytes]) -> str:
    return file.read(_scalar(file, "Q")).decode()
