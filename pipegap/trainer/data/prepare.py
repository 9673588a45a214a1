"""Documents → a prepared folder, which appears only when it is complete.

It is written document by document, and a call goes on where a killed one stopped. Of several
processes that prepare one folder, one works and the others wait.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, TextIO

import numpy as np
import numpy.typing as npt

from pipegap.trainer.base.atomic import file_hash, write_json
from pipegap.trainer.base.children import mapped
from pipegap.trainer.base.cli import say
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data.readers import Batch, State, batches
from pipegap.trainer.data.shards import (
    FORMAT,
    MANIFEST,
    File,
    Manifest,
    Shard,
    Split,
    Splits,
    TokenType,
)
from pipegap.trainer.data.tokenizers import Document, Encoder

Documents = Callable[[], Iterable[str]]
MakeEncoder = Callable[[Iterable[str], Path], Encoder]

SHARD_TOKENS = 100_000_000
CHARACTERS_AHEAD = 2**23
"""Characters of documents that workers encode before their turn to be written."""
END = np.dtype("<i8")
"""The type of the ends of documents in a file that grows, before all of them become a .npy."""
SAVE_EVERY = 10.0
"""Seconds between two records of a preparation's progress, each with a line on stderr."""
PROGRESS = "progress.json"


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
) -> None:
    """Writes the splits and the manifest of `out`; raises BadInput unless it is new or empty.

    It stops after `num_tokens` training tokens. A tokenizer is trained on training documents only.
    The manifest states `vocab_size` in place of the tokenizer's, if it is not None. A call that was
    killed leaves its files in `out`.partial, and the same call goes on from them.
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
            with Preparation(folder, settings, size, num_tokens) as preparation:
                preparation.go_on(documents(), encode, num_workers)
                splits = preparation.close(validation_share)
        except BadInput:
            if not progress(folder, settings):  # else the call goes on once the fault is mended
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
        attribution = f"{manifest.attribution}\n{manifest.license}\n"
        (folder / "ATTRIBUTION.txt").write_text(attribution, "utf-8")
        (folder / PROGRESS).unlink(missing_ok=True)
        manifest.write(folder)  # last: a folder with a manifest is valid
        folder.rename(out)


def _encode(
    encoder: Encoder, share: float, batch: Batch
) -> tuple[State, list[tuple[bool, Document]]]:
    """The state after a batch; and of each document, whether it is held out, and its tokens."""
    held_out = [is_validation(text, share) for text in batch.texts]
    return batch.state_after, list(zip(held_out, encoder.encode(batch.texts), strict=True))


def stated_vocab_size(tokenizer_size: int, stated: int | None) -> int:
    """The vocabulary of the manifest; raises BadInput if the `stated` one is too small."""
    if stated is not None and stated < tokenizer_size:
        allowed = f"must be null or at least the tokenizer's {tokenizer_size}"
        raise BadInput("data.vocab_size", stated, allowed)
    return stated or tokenizer_size


def _make_partial(out: Path, settings: dict[str, Any]) -> Path:
    """Returns the folder `out`.partial: as an earlier call left it, or new.

    Raises BadInput now where the rename, the last step of all, would fail.
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
    """Waits until no other process has the lock of the folder `out`, and then holds the lock.

    The kernel frees the lock of a killed process. Raises BadInput where no file can be made beside
    the folder.
    """
    lock = out.with_name(f"{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(lock)
    except OSError as error:
        raise _unusable(out, error) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # before the close, which hands the lock to another process
        file.close()


def _locked(lock: Path) -> TextIO:
    """The file `lock`, held by this process until it is closed."""
    while True:
        file = lock.open("w", encoding="utf-8")
        flock(file, LOCK_EX)
        # While this process waited, the holder may have deleted the file, and another process have
        # made and locked a new one: the lock counts only on the file that has the name.
        if lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat()):
            return file
        file.close()


def _unusable(out: Path, error: OSError) -> BadInput:
    """The refusal of a folder that cannot be made."""
    allowed = f"must be a new or an empty folder that you may write to ({error.strerror})"
    return BadInput("out", out, allowed)


class SplitWriter:
    """Writes one split of `folder`. `progress_before` is the state from which a writer goes on."""

    def __init__(
        self,
        folder: Path,
        split: str,
        vocab_size: int,
        progress_before: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder, self._split, self._vocab_size = folder, split, vocab_size
        self._dtype: TokenType = "<u2" if vocab_size <= 2**16 else "<u4"
        state = progress_before or {"shards": [], "length": 0, "num_tokens": 0, "num_documents": 0}
        self._shards = [Shard(**shard) for shard in state["shards"]]
        self._length: int = state["length"]
        self.num_tokens: int = state["num_tokens"]
        self.num_documents: int = state["num_documents"]
        self._file = _open_to_append(self._path(), self._length * np.dtype(self._dtype).itemsize)
        self._ends = _open_to_append(folder / f"{split}-ends", self.num_documents * END.itemsize)

    def add(self, document: npt.NDArray[np.integer[Any]]) -> None:
        """Appends a document's tokens, its end token among them."""
        if len(document) and not 0 <= document.min() <= document.max() < self._vocab_size:
            raise ValueError(f"a token lies outside 0 … {self._vocab_size - 1}")
        self._file.write(document.astype(self._dtype).tobytes())
        self._length += len(document)
        self.num_tokens += len(document)
        self.num_documents += 1
        self._ends.write(np.array(self.num_tokens, END).tobytes())
        # A document stays whole: a shard may be longer than SHARD_TOKENS by a part of one.
        if self._length >= SHARD_TOKENS:
            self._close_shard()
            self._file = _open_to_append(self._path(), 0)

    def state(self) -> dict[str, Any]:
        """Returns how much has been written, after all of it has reached the disk."""
        for file in (self._file, self._ends):
            file.flush()
            os.fsync(file.fileno())
        return {
            "shards": [shard.model_dump() for shard in self._shards],
            "length": self._length,
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
        }

    def release(self) -> None:
        """Closes the files, whatever they hold."""
        self._file.close()
        self._ends.close()

    def close(self) -> Split:
        """Finishes the split; returns its part of the manifest."""
        self._close_shard()
        self._ends.close()
        raw = Path(self._ends.name)
        ends = self._folder / f"{self._split}-ends.npy"
        np.save(ends, np.fromfile(raw, END))
        raw.unlink()
        return Split(
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            dtype=self._dtype,
            shards=self._shards,
            document_ends=File(file=ends.name, sha256=file_hash(ends)),
        )

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05d}.tokens"

    def _close_shard(self) -> None:
        """Closes and records the shard; deletes one without tokens."""
        self._file.close()
        path = self._path()
        if not self._length:
            path.unlink()
            return
        digest = file_hash(path)
        self._shards.append(Shard(file=path.name, num_tokens=self._length, sha256=digest))
        self._length = 0


def _open_to_append(path: Path, num_bytes: int) -> BinaryIO:
    """Truncates the file to its first `num_bytes`, and opens it to append.

    Raises BadInput if the file is shorter, where `truncate` would fill it up with zeros.
    """
    file = path.open("ab")
    if not 0 <= num_bytes <= file.tell():
        file.close()
        allowed = f"has not the {num_bytes:,} bytes that {PROGRESS} says: delete {path.parent}"
        raise BadInput("file", path, allowed)
    file.truncate(num_bytes)
    return file


class Preparation:
    """Both splits of `folder` while they are written, from where an earlier process stopped.

    A process goes on with the files of an earlier one only if their `settings` are equal.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], vocab_size: int, num_tokens: float
    ) -> None:
        self._folder, self._settings, self._num_tokens = folder, settings, num_tokens
        progress_before = progress(folder, settings)
        self._state: State | None = progress_before.get("state")
        self.train, self.validation = (
            SplitWriter(folder, split, vocab_size, progress_before.get(split))
            for split in ("train", "validation")
        )
        self._saved = self._started = time.monotonic()
        self._already = self.train.num_tokens
        if self._already:
            say(f"{folder.name}: goes on after {self._already:,} tokens")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for split in (self.train, self.validation):
            split.release()

    def go_on(
        self,
        documents: Iterable[str],
        encode: Callable[[Batch], tuple[State, list[tuple[bool, Document]]]],
        num_workers: int,
    ) -> None:
        """Writes the documents after the state, until there are `num_tokens` training tokens."""
        if self.train.num_tokens >= self._num_tokens:
            return
        unread = batches(documents, self._state)
        for state, encoded in mapped(encode, unread, num_workers, Batch.size, CHARACTERS_AHEAD):
            for held_out, tokens in encoded:
                (self.validation if held_out else self.train).add(tokens)
            # Only after all documents of the batch: a state lies between two batches.
            self._state = state
            if self.train.num_tokens >= self._num_tokens:
                break
            if time.monotonic() > self._saved + SAVE_EVERY:
                self._save()

    def close(self, share: float) -> Splits:
        """Finishes both splits; raises BadInput if one has no document."""
        number = self.train.num_documents + self.validation.num_documents
        if number < 2:
            num_found = "one (in a .txt, an empty line ends a document)" if number else "none"
            needs = "must hold text, two documents to train and to validate"
            raise BadInput("data", self._settings["corpus"], f"{needs}: it has {num_found}")
        for split, more in ((self.train, "smaller"), (self.validation, "larger")):
            if not split.num_documents:
                problem = f"of {number} documents one part has none"
                allowed = f"must be {more}, or the text longer: {problem}"
                raise BadInput("data.validation_share", share, allowed)
        return Splits(train=self.train.close(), validation=self.validation.close())

    def _save(self) -> None:
        # `state()` brings the files to the disk first: the record never says more than is there.
        content = {
            "asked": self._settings,
            "state": self._state,
            "train": self.train.state(),
            "validation": self.validation.state(),
        }
        write_json(self._folder / PROGRESS, content)
        self._saved = time.monotonic()
        done = self.train.num_tokens
        speed = (done - self._already) / (self._saved - self._started)
        share = f" ({done / self._num_tokens:.0%})" if self._num_tokens < math.inf else ""
        documents = self.train.num_documents + self.validation.num_documents
        tokens = f"{done:,} tokens{share}, {speed:,.0f} tokens/s"
        say(f"{self._folder.name}: {documents:,} documents, {tokens}")


def progress(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The record in `folder` of a preparation with these settings; empty if there is none."""
    path = folder / PROGRESS
    with suppress(OSError, ValueError, LookupError, TypeError):
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if record["asked"] == settings and {"state", "train", "validation"} <= record.keys():
            return record
    return {}
