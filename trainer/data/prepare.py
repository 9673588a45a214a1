"""Documents → a prepared folder, which appears only when it is complete."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from trainer.base.atomic import write_json
from trainer.base.errors import BadInput
from trainer.data.alone import alone, unusable
from trainer.data.manifest import FORMAT, MANIFEST, Manifest, Splits
from trainer.data.stream import Batch, State, batches
from trainer.data.tokenizers import Document, Encoder
from trainer.data.workers import mapped
from trainer.data.writer import SplitWriter

Documents = Callable[[], Iterable[str]]
MakeEncoder = Callable[[Iterable[str], Path], Encoder]
Told = Callable[[str], None]

SAVE_EVERY = 10.0
"""Seconds between two records of how far a preparation is, and two lines about it."""
PROGRESS = "progress.json"


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
    tell: Told = on_stderr,
) -> None:
    """Writes the splits and the manifest of `out`; raises BadInput unless it is new or empty.

    It stops after `num_tokens` training tokens. A tokenizer is trained on training documents only.
    `vocab_size` is stated in place of the tokenizer's, if it is larger. `tell` gets lines of
    progress. A call that was killed leaves its files in `out`.partial, and the same call goes on
    from them; of several at once, one works and the others wait.
    """
    out = out.resolve()  # fills the target of a link: a folder cannot replace the link itself
    asked = {**about, "share": validation_share, "tokens": str(num_tokens), "size": vocab_size}
    with alone(out):
        if (out / MANIFEST).is_file():  # by a process that this one waited for
            return
        folder = _make_partial(out, asked)
        try:
            texts = (text for text in documents() if not is_validation(text, validation_share))
            encoder = make_encoder(texts, folder)
            size = stated_vocab_size(encoder.vocab_size, vocab_size)
            encode = partial(_encode, encoder, validation_share)
            with Written(folder, asked, size, num_tokens, tell) as written:
                written.go_on(documents(), encode, num_workers)
                splits = written.close(validation_share)
        except BadInput:
            if not _progress(folder, asked):
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


class Written:
    """What is written of the splits of `folder`, from where an earlier process left it."""

    def __init__(
        self, folder: Path, asked: dict[str, Any], vocab_size: int, num_tokens: float, tell: Told
    ) -> None:
        self._folder, self._asked, self._num_tokens, self._tell = folder, asked, num_tokens, tell
        before = _progress(folder, asked)
        self._state: State | None = before.get("state")
        self.train, self.validation = (
            SplitWriter(folder, split, vocab_size, before.get(split))
            for split in ("train", "validation")
        )
        self._saved = self._started = time.monotonic()
        self._already = self.train.num_tokens
        if self._already:
            tell(f"{folder.name}: goes on after {self._already:,} tokens")

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
        """Writes the documents that are left."""
        if self.train.num_tokens >= self._num_tokens:
            return
        for state, encoded in mapped(encode, batches(documents, self._state), num_workers):
            for held_out, tokens in encoded:
                (self.validation if held_out else self.train).add(tokens)
            self._state = state
            if self.train.num_tokens >= self._num_tokens:
                break
            if time.monotonic() > self._saved + SAVE_EVERY:
                self._save()

    def close(self, share: float) -> Splits:
        """Finishes both splits; raises BadInput if one has no document."""
        if not self.train.num_documents + self.validation.num_documents:
            raise BadInput("data", self._asked["corpus"], "must hold text: it has none")
        for split, more in ((self.train, "smaller"), (self.validation, "larger")):
            if not split.num_documents:
                allowed = f"must be {more}, or the text longer: one part has no document"
                raise BadInput("data.validation_share", share, allowed)
        return Splits(train=self.train.close(), validation=self.validation.close())

    def _save(self) -> None:
        content = {
            "asked": self._asked,
            "state": self._state,
            "train": self.train.state(),
            "validation": self.validation.state(),
        }
        write_json(self._folder / PROGRESS, content)
        self._saved = time.monotonic()
        done = self.train.num_tokens
        speed = (done - self._already) / (self._saved - self._started)
        share = f" ({done / self._num_tokens:.0%})" if self._num_tokens < float("inf") else ""
        documents = self.train.num_documents + self.validation.num_documents
        self._tell(
            f"{self._folder.name}: {documents:,} documents, {done:,} tokens{share}, "
            f"{speed:,.0f} tokens/s"
        )


def stated_vocab_size(of_tokenizer: int, asked: int | None) -> int:
    """The vocabulary of the manifest; raises BadInput if the one asked for is too small."""
    if asked is not None and asked < of_tokenizer:
        allowed = f"must be null or at least the tokenizer's {of_tokenizer}"
        raise BadInput("data.vocab_size", asked, allowed)
    return asked or of_tokenizer


def _progress(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What was recorded of the same preparation; empty if nothing was."""
    try:
        found: dict[str, Any] = json.loads((folder / PROGRESS).read_text())
    except (OSError, ValueError):
        return {}
    return found if found["asked"] == asked else {}


def _make_partial(out: Path, asked: dict[str, Any]) -> Path:
    """Returns the folder `out`.partial: as the same preparation left it, or new.

    It fails where renaming, the last step, would otherwise fail after all the work.
    """
    folder = out.with_name(f"{out.name}.partial")
    try:
        with suppress(FileNotFoundError):
            out.rmdir()  # removes an empty folder only
        if not _progress(folder, asked):
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unusable(out, error) from None
    return folder
