"""A bucket of an object store, or a prefix in it: the few requests that a store of trials needs.

Every request has a limit of time and of repetitions. Credentials, region and endpoint are those of
the provider's usual variables and roles (see docs/cluster.md): they are never read here.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import IO, Any, NamedTuple
from uuid import uuid4

from pipegap.trainer.base.errors import BadInput, Unavailable, short
from pipegap.trainer.base.places import path_problem
from pipegap.trainer.store.provider import library_of, opened, reason

SCHEMES = ("s3", "gs", "az")  # of the library; s3 alone is promised
NO_BUCKET = "there is no such bucket"
UNLISTED = "no listing goes past an object of such a name: delete it by hand: {}"
NO_CREDENTIALS = "no credentials were found in the provider's usual variables and roles"
UNREADABLE = re.compile(r'invalid path: (?:Error parsing )?Path "(.+?)"')
"""What the library says of a key that it can neither list nor delete, as with `a//b`."""
METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where the machines of a cloud ask for credentials, if they were given none."""
DENIED = re.compile(r"status code: 40[13]\b|<Code>\w*(Token|AccessKeyId|SignatureDoesNotMatch)")
"""What the library passes on of wrong or expired keys, where it has no error of its own for it."""
CHUNK = 8 << 20
"""Bytes of a large object that one request carries."""
REQUEST, ALL_TRIES = timedelta(seconds=8), timedelta(seconds=15)
"""Limits of a request without a large object, and of all its repetitions together."""
LARGE_REQUEST, LARGE_TRIES = timedelta(seconds=60), timedelta(seconds=120)
"""Limits of a request with CHUNK bytes of a large object, and of its repetitions together."""
CLOCK, CLOCK_HOLDS = ".clock/", 60.0
"""Where the objects lie that ask for the server's time; seconds for which an answer counts."""

Version = dict[str, str]
"""What tells one content of an object from the next: its etag, or a generation."""


class StoreAway(Unavailable):
    """The provider did not answer, or refused, in the time that a request has."""


class StoreRefuses(StoreAway):
    """The provider answers, and asking again will not help: no such bucket, no right to it."""

    exit_code = BadInput.exit_code


class Torn(FileNotFoundError):
    """The object does not have the size that it was written with: it counts as one that is gone."""


class Changed(Exception):
    """Another process has written the object: what was to be written was not."""


class Meta(NamedTuple):
    """An object in a listing."""

    key: str
    e_tag: str
    size: int

    @property
    def is_folder(self) -> bool:
        """Whether it only marks a folder, for a console."""
        return self.size == 0


class Content(NamedTuple):
    """A small object."""

    content: bytes
    version: Version
    modified: float
    """Seconds since 1970, by the server's clock."""


class BucketClient:
    """The objects whose keys begin with the path of `url`. It may be sent to other processes.

    Raises BadInput for what is no such address. Every method raises StoreAway if the provider does
    not answer.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES:
            allowed = "must be a folder, or begin with s3://"
            raise BadInput("results", url, allowed)
        if (problem := path_problem(url)) is not None:
            raise BadInput("results", url, problem)
        name, _, prefix = rest.partition("/")
        parts = [part for part in prefix.split("/") if part]
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or {".", ".."} & {*parts}:
            raise BadInput("results", url, f"must be {scheme}://BUCKET/PREFIX")
        self.url = f"{scheme}://{'/'.join([name, *parts])}"
        self._asked_at, self._server_time = -CLOCK_HOLDS, 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_asked_at": -CLOCK_HOLDS, "_server_time": 0.0}

    def read(self, key: str) -> Content:
        """Return a small object. Raises FileNotFoundError."""
        with self._request() as library:
            response = library.get(self._small, key)
            content, meta = bytes(response.bytes()), response.meta
        return Content(content, _version(meta), meta["last_modified"].timestamp())

    def create(self, key: str, content: bytes) -> Version:
        """Write an object that does not exist. Raises Changed if it does."""
        return self._put(key, content, "create", self._refusal(NO_BUCKET))

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        """Replace this version of an object. Raises Changed if it has another one, or is gone."""
        return self._put(key, content, version, Changed(key))

    def _put(self, key: str, content: bytes, mode: str | Version, absent: Exception) -> Version:
        with self._request(absent) as library:
            made = library.put(self._small, key, content, mode=mode, use_multipart=False)
        return _version(made)

    def upload(self, key: str, content: bytes | IO[bytes]) -> None:
        """Write an object of any size, whatever it held before."""
        with self._request() as library:
            library.put(self._large, key, content, chunk_size=CHUNK)

    def download(self, key: str, path: Path, size: int) -> None:
        """Write the `size` bytes of an object to a new file. Raises FileNotFoundError, or Torn."""
        with path.open("xb") as file:
            for start in range(0, size, CHUNK):
                length = min(CHUNK, size - start)
                try:
                    with self._request() as library:
                        part = library.get_range(self._large, key, start=start, length=length)
                except StoreAway:
                    if self._size(key) != size:
                        raise Torn(key) from None
                    raise
                if len(part) != length:
                    raise Torn(key)
                file.write(part)

    def _size(self, key: str) -> int:
        with self._request() as library:
            size: int = library.head(self._small, key)["size"]
        return size

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, some of which may be gone."""
        if keys:
            with suppress(FileNotFoundError), self._request() as library:
                library.delete(self._small, [*keys])

    def list(self, prefix: str) -> Sequence[Meta]:
        """Return the objects whose keys begin with the path `prefix`; 1,000 take one request."""
        with self._request(self._refusal(NO_BUCKET)) as library:
            pages = library.list(self._small, prefix, chunk_size=1000)
            return [
                Meta(meta["path"], meta["e_tag"] or str(meta["last_modified"]), meta["size"])
                for page in pages
                for meta in page
            ]

    def now(self) -> float:
        """Return the server's time in seconds since 1970, by an object that is written for it.

        For a minute after, this process counts the seconds itself.
        """
        if monotonic() - self._asked_at > CLOCK_HOLDS:
            key, before = f"{CLOCK}{uuid4().hex}", monotonic()
            self.create(key, b"")
            try:
                modified = self.read(key).modified
            finally:
                with suppress(StoreAway):  # `prune` finds it
                    self.delete([key])
            self._asked_at, self._server_time = before, modified
        return self._server_time + monotonic() - self._asked_at

    @contextmanager
    def _request(self, absent: Exception | None = None) -> Iterator[Any]:
        """Yield the library, and translate what a request raises.

        Raises `absent`, or FileNotFoundError, if there is no such object, Changed if a condition
        does not hold, StoreRefuses or StoreAway.
        """
        library = library_of(self.url)
        errors = library.exceptions
        try:
            yield library
        except FileNotFoundError as error:
            raise absent or error from None
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise Changed(reason(error)) from None
        except errors.BaseError as error:
            denied = (errors.PermissionDeniedError, errors.UnauthenticatedError)
            if isinstance(error, denied) or DENIED.search(str(error)):
                raise self._refusal(f"permission denied ({_code(error)})") from None
            if unreadable := UNREADABLE.search(str(error)):
                raise self._refusal(UNLISTED.format(short(unreadable[1]))) from None
            if "NoSuchBucket" in str(error):
                raise self._refusal(NO_BUCKET) from None
            if any(host in str(error) for host in METADATA):
                raise self._refusal(NO_CREDENTIALS) from None
            raise StoreAway(f"results={self.url}: {reason(error)}") from None

    def _refusal(self, why: str) -> StoreRefuses:
        return StoreRefuses(f"results={self.url}: {why}")

    @cached_property
    def _small(self) -> Any:
        return opened(self.url, REQUEST, ALL_TRIES)

    @cached_property
    def _large(self) -> Any:
        return opened(self.url, LARGE_REQUEST, LARGE_TRIES)


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


def _code(error: Exception) -> str:
    """Return the provider's name for the error. The rest of its answer may name a key."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code[1] if code else type(error).__name__
