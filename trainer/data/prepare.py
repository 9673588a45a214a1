"""Documents → a prepared folder, which appears only when it is complete.

Of several processes that prepare one folder, one works and the others wait.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data.readers import Batch, State
from pipegap.trainer.data.shards import FORMAT, MANIFEST, Manifest
from pipegap.trainer.data.tokenizers import Document, Encoder
from pipegap.trainer.data.writer import PROGRESS, Preparation, progress

Documents = Callable[[], Iterable[str]]
MakeEncoder = Callable[[Iterable[str], Path], Encoder]

LOCK = ".lock"
"""What the name of a folder's lock adds to that of the folder."""


def on_stderr(line: str) -> None:
    """Prints a line of progress."""
    print(line, file=sys.stderr, flush=True)


def is_validation(text: str, share: float) -> bool:
    """Whether a document is held out: a function of its text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) < share * 2**64


def prepare(
    documents: Documents,
    make_encoder: MakeEncoder,
    out: Path,
    *,
    validation_share: float,
    num_tokens: float,
    about: dict[str, Any],
    vocab_size: int | None = None,
    num_workers: int = 1,
    tell: Callable[[str], None] = on_stderr,
) -> None:
    """Writes the splits and the manifest of `out`; raises BadInput unless it is new or empty.

    It stops after `num_tokens` training tokens. A tokenizer is trained on training documents only.
    `vocab_size` is stated in place of the tokenizer's, if it is larger. `tell` gets lines of
    progress. A call that was killed leaves its files in `out`.partial, and the same call goes on
    from them.
    """
    out = out.resolve()  # fills the target of a link: a folder cannot replace the link itself
    settings = {**about, "share": validation_share, "tokens": str(num_tokens), "size": vocab_size}
    with _alone(out):
        if (out / MANIFEST).is_file():  # by a process that this one waited for
            return
        folder = _make_partial(out, settings)
        try:
            texts = (text for text in documents() if not is_validation(text, validation_share))
            encoder = make_encoder(texts, folder)
            size = stated_vocab_size(encoder.vocab_size, vocab_size)
            encode = partial(_encode, encoder, validation_share)
            with Preparation(folder, settings, size, num_tokens, tell) as preparation:
                preparation.go_on(documents(), encode, num_workers)
                splits = preparation.close(validation_share)
        except BadInput:
            if not progress(folder, settings):
                shutil.rmtree(folder)
            raise
        manifest = Manifest(
            format=FORMAT,
            **about,
            tokenizer_sha256=encoder.sha256,
            vocab_size=size,
            num_tokens=num_tokens,
            splits=splits,
        )
        (folder / "ATTRIBUTION.txt").write_text(f"{manifest.attribution}\n{manifest.license}\n")
        (folder / PROGRESS).unlink(missing_ok=True)
        manifest.write(folder)
        folder.rename(out)


def _encode(
    encoder: Encoder, share: float, batch: Batch
) -> tuple[State, list[tuple[bool, Document]]]:
    """The state behind a batch; whether each of its documents is held out, and its tokens."""
    held_out = [is_validation(text, share) for text in batch.texts]
    return batch.after, list(zip(held_out, encoder.encode(batch.texts), strict=True))


def stated_vocab_size(of_tokenizer: int, stated: int | None) -> int:
    """The vocabulary of the manifest; raises BadInput if the `stated` one is too small."""
    if stated is not None and stated < of_tokenizer:
        allowed = f"must be null or at least the tokenizer's {of_tokenizer}"
        raise BadInput("data.vocab_size", stated, allowed)
    return stated or of_tokenizer


def _make_partial(out: Path, settings: dict[str, Any]) -> Path:
    """Returns the folder `out`.partial: as an earlier call left it, or new.

    Raises BadInput where renaming, the last step, would otherwise fail after all the work.
    """
    folder = out.with_name(f"{out.name}.partial")
    try:
        with suppress(FileNotFoundError):
            out.rmdir()  # removes an empty folder only
        if not progress(folder, settings):
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _unusable(out, error) from None
    return folder


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Waits until no other process holds the folder `out`, and holds it; a killed one holds none.

    Raises BadInput where no file can be made beside it.
    """
    lock = out.with_name(out.name + LOCK)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(lock)
    except OSError as error:
        raise _unusable(out, error) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()


def _locked(lock: Path) -> TextIO:
    """The file `lock`, held by this process until it is closed."""
    while True:
        file = lock.open("w")
        flock(file, LOCK_EX)
        if lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat()):
            return file
        file.close()  # of a holder that has deleted it


def _unusable(out: Path, error: OSError) -> BadInput:
    """The refusal of a folder that cannot be made."""
    allowed = f"must be a new or an empty folder where one may write ({error.strerror})"
    return BadInput("out", out, allowed)
