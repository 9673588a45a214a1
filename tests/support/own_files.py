"""Text of one's own in each kind of file that is read."""

import json
import random
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipegap.trainer.data.prepare import prepare
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.data.tokenizers import ENCODERS
from pipegap.trainer.store.bucket import BucketClient

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


# Two hundred documents, a data set prepared from them, and shards in the layout of llm.c.

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


# Code of people's own, which tests import from many folders by the same names.

AT_COLLECTION = frozenset(sys.path)
"""The folders that Python searches before any test has run."""


@contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """Before and afterwards Python searches no folder of a user, whichever test has added it, and
    has no module of one."""
    _forget_users_folders()
    yield
    _forget_users_folders()


def _forget_users_folders() -> None:
    folders = [Path(folder) for folder in sys.path if folder not in AT_COLLECTION]
    sys.path[:] = [folder for folder in sys.path if folder in AT_COLLECTION]
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and any(Path(file).is_relative_to(folder) for folder in folders):
            del sys.modules[name]


# Keys of the environment, and the files in which they must not be.

NAMES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_API_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "WANDB_API_KEY", "HF_TOKEN"),
)


def new_keys() -> dict[str, str]:
    """A key by each name that a user's environment may have."""
    return {name: secrets.token_hex(20) for name in NAMES}


def leaks(keys: dict[str, str], *folders: Path, bucket: str = "") -> list[str]:
    """Return every key that a file or an object of the bucket holds, with its place."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 50, "a session and a store have more files than that"
    contents = {str(path): path.read_bytes() for path in files}
    if bucket.startswith("s3://"):
        client = BucketClient(bucket)
        objects = {meta.key: client.read(meta.key).content for meta in client.list("")}
        assert objects, "the files of the trials that have begun"
        contents |= objects
    return [
        f"{name} in {place}"
        for place, content in contents.items()
        for name, key in keys.items()
        if key.encode() in content
    ]
