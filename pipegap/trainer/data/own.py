"""A user's own text: files, or a data set of the Hugging Face hub; prepared when first opened."""

import hashlib
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Interval
from tokenizers import Tokenizer

from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.cli import say
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Place, Positive
from pipegap.trainer.data import readers
from pipegap.trainer.data.hub import CACHE, HubDocuments, newest_commit
from pipegap.trainer.data.prepare import prepare, stated_vocab_size
from pipegap.trainer.data.readers import OPENERS, READERS, Named
from pipegap.trainer.data.shards import Dataset, Prepared
from pipegap.trainer.data.tokenizers import Chosen, chosen

Share = Annotated[float, Interval(gt=0, lt=1)]
Size = Annotated[int, Gt(0)]
Recipe = dict[str, Any]
"""What identifies a text, as JSON."""
USUAL = {reader: kind for kind, reader in reversed([*READERS.items()])}  # the first kind stays
"""Reader → the usual end of the names of its files."""
KINDS = (
    f"{', '.join(f'*{kind}' for kind in READERS if USUAL[READERS[kind]] == kind)}, or text in "
    f"{', '.join(OPENERS)}; JSON lines are .jsonl"
)
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class OwnText(ABC):
    """A source whose shards lie in `place`, in a folder that its hash names."""

    COUNTED_BY_HASH: ClassVar[tuple[str, ...]]
    """Keys that name a place: in a trial's id the hash stands for them."""

    text: str
    tokenizer: str
    vocab_size: Size | None
    validation_share: Share
    num_tokens: Positive | None
    end_of_document: str | None = None
    skip_bad_rows: bool = False

    @property
    @abstractmethod
    def place(self) -> Path:
        """The folder of all shards."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The name by which people know the text; no path."""

    @abstractmethod
    def origin(self) -> Recipe | None:
        """Returns what identifies the text; None if the text is not there."""

    @abstractmethod
    def documents(self) -> Iterable[str]:
        """Yields documents; raises BadInput if the text cannot be read."""

    @abstractmethod
    def left_out(self) -> list[Path]:
        """Files and folders that do not count, though a user may expect that they do."""

    @property
    def hash(self) -> str | None:
        """SHA-256 over all that the tokens depend on; None if the text is not there."""
        if (origin := self.origin()) is None:
            return None
        recipe = {  # without `skip_bad_rows`: where it is needed, there are no tokens without it
            **origin,
            "tokenizer": self._chosen.identity,
            "vocab_size": self.vocab_size,
            "validation_share": self.validation_share,
            "num_tokens": self.num_tokens,
        }
        return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()

    @property
    def known_vocab_size(self) -> int | None:
        """The vocabulary, if it is known before the text is read.

        Raises BadInput for a `vocab_size` below the tokenizer's.
        """
        vocab_size = self._chosen.vocab_size
        return vocab_size if vocab_size is None else stated_vocab_size(vocab_size, self.vocab_size)

    @property
    def num_validation_tokens(self) -> int:
        """Tokens of the validation split; 0 before they are prepared."""
        shards = self._shards(str(self.hash))
        return 0 if shards.hash is None else shards.num_validation_tokens

    @property
    def num_training_tokens(self) -> int | None:
        """Tokens of the training split; None before they are prepared."""
        shards = self._shards(str(self.hash))
        return None if shards.hash is None else shards.num_training_tokens

    def read_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of the tokens; raises BadInput before they are prepared."""
        return self._shards(str(self.hash)).read_tokenizer()

    def open(self) -> Dataset:
        """Prepares missing shards, with progress on stderr; then verifies and opens them."""
        if (digest := self.hash) is None:
            self.documents()  # raises BadInput with the reason, if it knows one
            raise BadInput("data.path", self.label, "must be there")
        if self._shards(digest).hash is None:
            self._prepare(digest)
        return self._shards(digest).open()

    @property
    def _chosen(self) -> Chosen:
        return chosen(self.tokenizer, self.end_of_document)

    def _folder(self, digest: str) -> Path:
        return self.place / digest[:16]

    def _shards(self, digest: str) -> Prepared:
        shards = Prepared(path=str(self._folder(digest)))
        shards.remedy = "the same command"  # any that needs them prepares them
        return shards

    def _prepare(self, digest: str) -> None:
        encoder = self._chosen
        # Before a tokenizer is trained, which may take long.
        if next(iter(self.documents()), None) is None:
            raise BadInput("data", self.label, "must hold text: it has none")
        say(f"prepares {self.label} in {self._folder(digest)}")
        if left_out := self.left_out():
            say(readers.sentence(left_out))
        prepare(
            self.documents,
            lambda texts, folder: encoder.make(texts, folder, CACHE),
            self._folder(digest),
            validation_share=self.validation_share,
            num_tokens=self.num_tokens or math.inf,
            about={
                "corpus": self.label,
                "tokenizer": encoder.identity,
                "license": "not stated",
                "attribution": self.label,
            },
            vocab_size=self.vocab_size,
            num_workers=num_cores(),
        )


@dataclass(frozen=True, kw_only=True)
class TextFiles(OwnText):
    """Text files: one, those of a folder, or those of a pattern, in the order of their paths."""

    COUNTED_BY_HASH = ("shards", "tokenizer", "end_of_document")

    path: Place
    shards: Place

    @property
    def place(self) -> Path:
        """The folder `shards`, because the folder of the files may be read-only."""
        return Path(self.shards)

    @property
    def label(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    def origin(self) -> Recipe | None:
        """The contents of the files, in order, without their names and how they are compressed."""
        if not (files := self._named().files):
            return None
        # a.txt and a.txt.gz with one content are one text; a.jsonl with it would be another.
        kinds = [USUAL[READERS[readers.kind_of(file)]] for file in files]
        digests = readers.digests_of(files, readers.text_hash)
        return {"kinds": kinds, "files": digests, "text": self.text}

    def documents(self) -> Iterable[str]:
        """Raises BadInput if there is no file, or one that cannot be read."""
        if not (files := self._named().files):
            raise BadInput("data.path", self.path, f"must be files that are there: {KINDS}")
        return readers.documents(files, self.text, skip=self.skip_bad_rows)

    def left_out(self) -> list[Path]:
        """Files that are hidden or of another kind, and links back to a folder above them."""
        return self._named().left_out

    def _named(self) -> Named:
        paths = readers.named(self.path, READERS)
        for file in paths.files:
            if readers.kind_of(file) not in READERS:
                raise BadInput("data.path", file, f"must be one of {KINDS}")
        return paths


@dataclass(frozen=True, kw_only=True)
class HubText(OwnText):
    """A data set of the Hugging Face hub at one commit, or a folder with a copy of it."""

    COUNTED_BY_HASH = ("name", "tokenizer", "end_of_document")

    path: Place
    name: str
    config: str | None
    split: str
    revision: str | None

    @property
    def place(self) -> Path:
        """The path, since the text itself lies elsewhere."""
        return Path(self.path)

    @property
    def label(self) -> str:
        """The name of the data set."""
        return Path(self.name).name if os.path.isdir(self.name) else self.name

    def origin(self) -> Recipe:
        """The commit, or the contents of the copy; raises BadInput if `revision` is no commit."""
        if os.path.isdir(self.name):
            files = sorted(readers.named(self.name).files)
            names = [file.name for file in files]
            where: Recipe = {"files": readers.digests_of(files), "names": names}
        else:
            if self.revision is None or not COMMIT.fullmatch(self.revision):
                allowed = f"must be a commit, such as the newest: {newest_commit(self.name)}"
                raise BadInput("data.revision", self.revision, allowed)
            where = {"name": self.name, "revision": self.revision}
        return {**where, "config": self.config, "split": self.split, "text": self.text}

    def documents(self) -> Iterable[str]:
        """Streams the data set; raises BadInput where the hub or a field is missing."""
        for file in readers.named(self.name).files if os.path.isdir(self.name) else ():
            if file.suffix.lower() == ".txt" and readers.has_mark(file):
                allowed = "must not begin with a mark of byte order: data=text reads such files"
                raise BadInput("data.name", file, allowed)
        return HubDocuments(
            self.name,
            config=self.config,
            split=self.split,
            revision=self.revision,
            field=self.text,
            skip=self.skip_bad_rows,
        )

    def left_out(self) -> list[Path]:
        """The hidden files of a copy."""
        return readers.named(self.name).left_out if os.path.isdir(self.name) else []
