"""A bucket of an object store, or a prefix in it: the few requests that a store of trials needs.

Every request has a limit of time and of repetitions. Credentials, region and endpoint are those of
the provider's usual variables and roles (see docs/cluster.md): they are never read here.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlsplit
from uuid import uuid4

from pipegap.trainer.base.errors import NO_TEXT, BadInput, Unavailable, short
from pipegap.trainer.base.places import path_problem

SCHEMES = ("s3", "gs", "az")  # of the library; s3 alone is promised
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
NEEDS = "needs the package obstore: pip install 'pipegap[objects]'"
NO_BUCKET = "there is no such bucket"
NO_CREDENTIALS = "no credentials were found in the provider's usual variables and roles"
METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where the machines of a cloud ask for credentials, if they were given none."""
DENIED = re.compile(r"status code: 40[13]\b|<Code>\w*(Token|AccessKeyId|SignatureDoesNotMatch)")
"""What the library passes on of wrong or expired keys, where it has no error of its own for it."""
ASKED = re.compile(r"performing \w+ (https?://[^/\s]+)")
STATUS = re.compile(r"status code: (\d{3}(?: \w+)*)")
CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
"""Whom the library asked, what that server answered, and in its details why none did."""
NO_STORE = "is it the server of this bucket? AWS_ENDPOINT_URL names it"
NUM_TRIES = 5
"""How often a request is repeated."""
CHUNK = 8 << 20
"""Bytes of a large object that one request carries."""
REQUEST, ALL_TRIES = timedelta(seconds=8), timedelta(seconds=15)
"""Limits of a request without a large object, and of all its repetitions together."""
LARGE_REQUEST, LARGE_TRIES = timedelta(seconds=60), timedelta(seconds=120)
"""Limits of a request with CHUNK bytes of a large object, and of its repetitions together."""
CLOCK = ".clock/"
"""Where the objects lie that ask for the server's time."""

Version = dict[str, str]
"""What tells one content of an object from the next: its etag, or a generation."""


class StoreAway(Unavailable):
    """The provider did not answer, or refused, in the time that a request has."""


class StoreRefuses(StoreAway):
    """The provider answers, and asking again will not help: no such bucket, no right to it."""

    exit_code = BadInput.exit_code


class Changed(Exception):
    """Another process has written the object: what was to be written was not."""


class Meta(NamedTuple):
    """An object in a listing."""

    key: str
    e_tag: str
    size: int
    modified: float
    """Seconds since 1970, by the server's clock."""


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
        scheme, _, path = url.partition("://")
        if scheme not in SCHEMES:
            raise BadInput("results", url, "must be a folder, or begin with s3://")
        if (problem := path_problem(url)) is not None:
            raise BadInput("results", url, problem)
        name, _, prefix = path.partition("/")
        parts = [part for part in prefix.split("/") if part]
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or {".", ".."} & {*parts}:
            raise BadInput("results", url, f"must be {scheme}://BUCKET/PREFIX")
        self.url = f"{scheme}://{'/'.join([name, *parts])}"

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}  # the library's stores are opened anew in another process

    def read(self, key: str) -> Content:
        """Return a small object. Raises FileNotFoundError."""
        with self._request() as library:
            response = library.get(self._small, key)
            content, meta = bytes(response.bytes()), response.meta
        return Content(content, _version(meta), meta["last_modified"].timestamp())

    def write(self, key: str, content: bytes, version_before: Version | None) -> Version:
        """Write an object in place of the version `version_before`, or where there is none.

        Raises Changed if the object has another version, is gone, or is there already.
        """
        mode = version_before or "create"  # the library's word for: only where there is none
        store = self._small if len(content) < CHUNK else self._large
        # "Not found" means that the object is gone, or, where none was expected, the bucket.
        with self._request(Changed(key) if version_before else self._refusal(NO_BUCKET)) as library:
            # In one part: a write in several has no condition.
            result = library.put(store, key, content, mode=mode, use_multipart=False)
        return _version(result)

    def upload(self, key: str, content: bytes | IO[bytes]) -> Version:
        """Write an object of any size, whatever it held before."""
        with self._request() as library:
            return _version(library.put(self._large, key, content, chunk_size=CHUNK))

    def download(self, meta: Meta, path: Path) -> None:
        """Write the content that an object had in a listing to a new file.

        Raises FileNotFoundError if it is gone, and Changed if it has another content now.
        """
        with path.open("xb") as file:
            for start in range(0, meta.size, CHUNK):
                end = min(start + CHUNK, meta.size)
                # The etag again for each part: the file must not be made of two contents.
                options = {"if_match": meta.e_tag, "range": (start, end)}
                with self._request() as library:
                    file.write(library.get(self._large, meta.key, options=options).bytes())

    def copy(self, key: str, new_key: str) -> None:
        """Copy an object within the bucket. Raises FileNotFoundError."""
        with self._request() as library:
            library.copy(self._large, key, new_key)

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
                Meta(meta["path"], meta["e_tag"], meta["size"], meta["last_modified"].timestamp())
                for page in pages
                for meta in page
            ]

    def now(self) -> float:
        """Return the time of the server's clock, in seconds since 1970.

        An object is written to ask for it, and deleted.
        """
        key = f"{CLOCK}{uuid4().hex}"
        self.write(key, b"", None)
        try:
            return self.read(key).modified
        finally:
            with suppress(StoreAway):
                self.delete([key])

    @contextmanager
    def _request(self, absent: Exception | None = None) -> Iterator[Any]:
        """Yield the library, and translate what a request raises.

        Raises `absent`, or FileNotFoundError, if there is no such object, Changed if a condition
        does not hold, StoreRefuses or StoreAway.
        """
        library = _library(self.url)
        errors = library.exceptions
        try:
            yield library
        except FileNotFoundError as error:
            raise absent or error from None
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise Changed(_reason(error)) from None
        except errors.BaseError as error:
            denied = (errors.PermissionDeniedError, errors.UnauthenticatedError)
            if isinstance(error, denied) or DENIED.search(str(error)):
                raise self._refusal(f"permission denied ({_code(error)})") from None
            if "NoSuchBucket" in str(error):
                raise self._refusal(NO_BUCKET) from None
            if any(host in str(error) for host in METADATA):
                raise self._refusal(NO_CREDENTIALS) from None
            raise StoreAway(f"results={self.url}: {_reason(error)}") from None

    def _refusal(self, why: str) -> StoreRefuses:
        return StoreRefuses(f"results={self.url}: {why}")

    @cached_property
    def _small(self) -> Any:
        return opened(self.url, REQUEST, ALL_TRIES)

    @cached_property
    def _large(self) -> Any:
        return opened(self.url, LARGE_REQUEST, LARGE_TRIES)


def opened(url: str, request: timedelta, all_tries: timedelta) -> Any:
    """Return the library's store `url`, each of whose requests has these limits.

    Raises BadInput.
    """
    _require_sound()
    errors = _library(url).exceptions
    from obstore.store import from_url

    try:
        return from_url(
            quote(url, safe=":/"),  # it would end at # and ?, and lose white space at the end
            client_options={
                "timeout": request,
                "connect_timeout": timedelta(seconds=3),
                "allow_http": True,  # of an endpoint that the environment names by http://
            },
            retry_config={"max_retries": NUM_TRIES, "retry_timeout": all_tries},
        )
    except (errors.BaseError, ValueError) as error:
        raise BadInput("results", url, f"cannot be opened ({_reason(error)})") from None


def _require_sound() -> None:
    """Raise BadInput for a variable that would end the library in a panic of a hundred lines, such
    as a key from a file that ends in a newline.

    No value of a key is shown.
    """
    for name, value in os.environ.items():
        if name.startswith("AWS_") and NO_TEXT.search(value):
            raise BadInput(name, "", "must be one line without control characters")
    for name in REGIONS:
        if not re.fullmatch(r"[\w-]*", region := os.environ.get(name, "")):
            raise BadInput(name, region, "must be the name of a region, such as us-east-1")
    for name in ENDPOINTS:
        if not _is_address(address := os.environ.get(name, "http://unset")):
            value_shown = "" if "@" in address else address  # before it a password may stand
            raise BadInput(name, value_shown, "must be http(s)://HOST[:PORT], or not be set")


def _is_address(text: str) -> bool:
    try:
        port = urlsplit(text).port
    except ValueError:
        return False
    return port != 0 and re.fullmatch(r"https?://[\w.-]+(:\d+)?(/[\w.~%/-]*)?", text) is not None


def _library(url: str) -> Any:
    """Return the library. Raises BadInput for `url` if it is not installed."""
    try:
        import obstore.exceptions
    except ImportError:
        raise BadInput("results", url, NEEDS) from None
    return obstore


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


def _reason(error: Exception) -> str:
    """Return in a line which server did what; without a server, what the library says."""
    text, _, details = str(error).partition("\n\nDebug source")
    if (request := ASKED.search(text)) is None:
        return short(" ".join(text.partition(": <")[0].split()))
    if answered := STATUS.search(text):
        answer = f"{request[1]} answers {answered[1]}"
        return answer if "<Code>" in text else f"{answer}: {NO_STORE}"
    if cause := CAUSE.search(details):
        return f"{request[1]} gives no answer ({cause[1]}): {NO_STORE}"
    how_it_ended = "none within the limit" if "TimedOut" in details else "it ended the connection"
    return f"{request[1]} gives no answer ({how_it_ended}): {NO_STORE}"


def _code(error: Exception) -> str:
    """Return the provider's name for the error, whose other words may name a key; without one,
    which server did what."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code[1] if code else _reason(error)
