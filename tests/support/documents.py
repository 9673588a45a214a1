"""Two hundred documents, a data set prepared from them, and shards in the layout of llm.c."""

from pathlib import Path

import numpy as np

from pipegap.trainer.data.prepare import prepare
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.data.tokenizers import ENCODERS

TEXTS = [f"document {i}: " + "naïve words ".replace("n", chr(97 + i % 20)) * 9 for i in range(200)]
ABOUT = {"corpus": "t", "tokenizer": "bytes", "license": "none", "attribution": "nobody"}


def prepared(
    out: Path, texts: list[str] | None = None, encoder: str = "bytes", validation_share: float = 0.2
) -> Prepared:
    prepare(
        lambda: TEXTS if texts is None else texts,
        lambda documents, folder: ENCODERS[encoder].make(documents, folder, folder),
        out,
        validation_share=validation_share,
        num_tokens=float("inf"),
        about=ABOUT,
    )
    return Prepared(path=str(out))


def write_bin(path: Path, tokens: list[int], magic: int, version: int, dtype: str) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, dtype=dtype).tobytes())
