"""Buckets in the memory of this process, of obstore's own, in which a test looks and breaks things.

Their writes are conditional as those of S3 are. What only a server can do wrong, moto's shows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from pipegap.trainer.store import bucket as requests

URL = "s3://bucket/a/store"
Fault = Callable[[str, str], Literal["away", "lost"] | None]
"""Method and key of a request → what goes wrong: `away`, it has no effect; `lost`, its answer gets
lost; None, nothing."""


class Bucket:
    """What lies at URL; it stands in place of the library that asks for it."""

    exceptions = obstore.exceptions

    def __init__(self) -> None:
        self._stores: dict[str, MemoryStore] = {}
        self.requests = Counter[str]()
        self.fault: Fault = lambda method, key: None

    def store(self, url: str, *_: object) -> MemoryStore:
        """The library's store of a URL."""
        return self._stores.setdefault(url, MemoryStore())

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._request, method)

    def _request(self, method: str, store: MemoryStore, key: Any, *args: Any, **more: Any) -> Any:
        self.requests[method] += 1
        fault = self.fault(method, str(key))
        if fault == "away":
            raise GenericError("away")
        answer = getattr(obstore, method)(store, key, *args, **more)
        if fault == "lost":
            raise GenericError("lost")
        return answer

    @property
    def objects(self) -> dict[str, bytes]:
        """Every object by its key."""
        pages = obstore.list(self.store(URL))
        keys = [meta["path"] for page in pages for meta in page]
        return {key: bytes(obstore.get(self.store(URL), key).bytes()) for key in keys}

    def write(self, key: str, content: bytes) -> None:
        """Stores an object, with a new etag."""
        obstore.put(self.store(URL), key, content)

    def remove(self, key: str) -> None:
        """Deletes an object."""
        obstore.delete(self.store(URL), key)

    def restore(self, objects: Mapping[str, bytes]) -> None:
        """Makes the bucket have these objects alone."""
        for key in self.objects:
            self.remove(key)
        for key, content in objects.items():
            self.write(key, content)


@contextmanager
def served(patch: pytest.MonkeyPatch, cache: Path) -> Iterator[Bucket]:
    """Yields a bucket, empty, to which every URL of this process leads; copies lie in `cache`."""
    made = Bucket()
    patch.setattr(requests, "opened", made.store)
    patch.setattr(requests, "_library", lambda url: made)
    patch.setenv("XDG_CACHE_HOME", str(cache))
    yield made
