"""Who drives a bucket's prefix: one process at a time, by the object `driver.json`.

It is created if absent, or replaced if it still has the version that was read. The driver writes it
again every HEARTBEAT_EVERY. Another driver takes it over if it says that the driver has ended, if
the driver is known to be dead, or if it was last written more than STALE_AFTER ago. Ages are those
of the server's clock and of one process's own seconds: clocks of machines are never compared. A
driver that was taken over by mistake, as after its machine slept, cannot write it again, and stops.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from pipegap.trainer.base.children import repeated
from pipegap.trainer.base.cli import say
from pipegap.trainer.base.errors import BadInput, LeaseLost
from pipegap.trainer.folder.lease import HEARTBEAT_EVERY, STALE_AFTER, is_dead, new_attempt
from pipegap.trainer.store.bucket import BucketClient, Changed, Content, StoreAway, Version

KEY = "driver.json"
POLL_EVERY = 2.0
"""Seconds between two looks at whether another driver is alive."""
CONDITIONAL = (
    "must be of a provider with conditional writes (create if absent, replace if the etag "
    "matches): an object was written that must not be"
)


class Written:
    """An object that this process writes, each time in place of the version that it knows."""

    def __init__(self, bucket: BucketClient, key: str, version: Version | None) -> None:
        """`version`: what was read; None if there was no such object."""
        self._bucket, self._key, self._version = bucket, key, version
        self.token, self._beat = uuid4().hex, 0

    def write(self, document: Mapping[str, Any]) -> None:
        """Write a document, with this process's token.

        Raises LeaseLost if another process has written the object, or StoreAway if it is not known
        whether it was written: the next write finds that out.
        """
        self._beat += 1  # no two contents are the same, even for a provider whose etags are digests
        whole = {"format": 1, **document, "writer": self.token, "beat": self._beat}
        content = json.dumps(whole, indent=1).encode()
        try:
            try:
                self._version = self._bucket.write(self._key, content, self._version)
            except Changed:  # it may be an own write whose answer was lost
                stored_content = self._bucket.read(self._key)
                if json.loads(stored_content.content).get("writer") != self.token:
                    raise
                self._version = stored_content.version
                if stored_content.content != content:
                    self._version = self._bucket.write(self._key, content, self._version)
        except (Changed, FileNotFoundError, ValueError, AttributeError):  # or no object of ours
            message = f"{self._key} of {self._bucket.url} was written by another process"
            raise LeaseLost(message) from None


def drives(bucket: BucketClient, token: str) -> bool:
    """Return whether the prefix is still that of the driver with this token."""
    content = _read(bucket)
    who = {} if content is None else _who(content)
    return who.get("writer") == token and "ended" not in who


@contextmanager
def driving(bucket: BucketClient) -> Iterator[str]:
    """Drive the prefix while the context lasts; yield this driver's token.

    Raises BadInput if a living driver does, or if the provider has no conditional writes. A driver
    that is taken over says so and stops this process as SIGTERM does.
    """
    content_before = _left(bucket)
    facts, lease = new_attempt(1), Written(bucket, KEY, content_before and content_before.version)
    try:
        lease.write(facts)
    except LeaseLost:
        raise _refusal(bucket, _read(bucket)) from None
    _require_conditional(bucket)

    def beat() -> bool:
        try:
            lease.write(facts)
        except LeaseLost:
            say(f"results={bucket.url} was taken over by another driver: this one stops")
            # A thread cannot end the process in order; the signal's handler can.
            os.kill(os.getpid(), signal.SIGTERM)
            return False
        except StoreAway:  # for a moment, or until another driver takes over
            pass
        return True

    try:
        with repeated(beat, HEARTBEAT_EVERY, "driver"):
            yield lease.token
    finally:
        with suppress(LeaseLost, StoreAway):  # in the end it is stale
            lease.write({**facts, "ended": time.time()})


def _left(bucket: BucketClient) -> Content | None:
    """Return the object that no living driver has; None if there is none.

    Waits until the driver is stale. Raises BadInput once it gives a sign.
    """
    first = _read(bucket)
    if first is None or "ended" in _who(first) or is_dead(_who(first)):
        return first
    seconds_left = STALE_AFTER - (bucket.now() - first.modified)
    if seconds_left > 0:
        driver = f"{_process(first)}, which drives {bucket.url}"
        print(f"waiting {seconds_left:.0f} s for a sign of {driver}", flush=True)
    # The server said how old the sign is; from here on this process's own clock counts.
    deadline = monotonic() + seconds_left
    while monotonic() < deadline:
        time.sleep(POLL_EVERY)
        content_now = _read(bucket)
        if content_now is None or "ended" in _who(content_now):
            return content_now
        if content_now.version != first.version:
            raise _refusal(bucket, content_now)
    return first


def _refusal(bucket: BucketClient, content: Content | None) -> BadInput:
    who = {} if content is None else _who(content)
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(who.get("started_at", 0)))
    fix = "wait for its end, or give another prefix"
    allowed = f"{_process(content)} drives this prefix since {since}: {fix}"
    return BadInput("results", bucket.url, allowed)


def _process(content: Content | None) -> str:
    who = {} if content is None else _who(content)
    return f"process {who.get('pid', '?')} on {who.get('host', '?')}"


def _require_conditional(bucket: BucketClient) -> None:
    """Raise BadInput if the provider writes what is there already, or has another version."""
    content = bucket.read(KEY)
    # A version that the object never had; a generation is a number.
    etag = f'"{uuid4().hex}"'
    wrong_version = {key: "1" if key == "version" else etag for key in content.version}
    for version in (None, wrong_version):
        with suppress(Changed):
            bucket.write(KEY, content.content, version)
            raise BadInput("results", bucket.url, CONDITIONAL)


def _read(bucket: BucketClient) -> Content | None:
    with suppress(FileNotFoundError):
        return bucket.read(KEY)
    return None


def _who(content: Content) -> dict[str, Any]:
    """Return what the object says of its driver: nothing if it is damaged."""
    with suppress(ValueError):
        who = json.loads(content.content)
        if isinstance(who, dict):
            return who
    return {}
