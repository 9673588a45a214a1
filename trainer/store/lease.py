"""Who runs a trial of an object store: one process at a time, by compare and swap of its register.

A holder swaps the register for one with a higher beat every HEARTBEAT_EVERY. A trial is free if its
register has no holder, if the holder is known to be dead, or if the register was last written more
than STALE_AFTER ago by the server's clock: the time of its last change beside that of an object
which is written to ask for the time. The clocks of machines are never compared, and a mistake costs
work, not truth: whoever takes a trial over swaps its register, and then no swap of the holder
before can succeed. The holder stops by itself, by its own count of seconds, before it is stale.
"""

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

from pipegap.trainer.base.children import repeated
from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder.lease import (
    HEARTBEAT_EVERY,
    STALE_AFTER,
    Held,
    attempt_name,
    is_dead,
    new_attempt,
)
from pipegap.trainer.folder.wellformed import Damaged
from pipegap.trainer.store import register
from pipegap.trainer.store.bucket import BucketClient, Changed, StoreAway
from pipegap.trainer.store.register import Register, Seen, see

STOP_AFTER = STALE_AFTER - HEARTBEAT_EVERY
"""Seconds without a heartbeat that reached the store, after which a holder counts itself out."""
POLL_EVERY = 1.0
"""Seconds between two looks at how long ago the last heartbeat was."""


def is_free(bucket: BucketClient, seen: Seen | None) -> bool:
    """Return whether nobody runs the trial whose register is `seen`."""
    if seen is None or (holder := seen.register.holder) is None or is_dead({**holder}):
        return True
    return bucket.now() - seen.modified > STALE_AFTER


def edit(
    bucket: BucketClient, trial_id: str, change: Callable[[Register], Register | None]
) -> bool:
    """Write `change(register)` of a trial that nobody runs; return whether it was written.

    Nothing is written if somebody runs the trial, or `change` returns None. Raises StoreAway.
    """
    token = uuid4().hex
    while True:
        seen = see(bucket, trial_id)
        if seen is None or seen.register.writer == token:
            return seen is not None
        changed = change(seen.register) if is_free(bucket, seen) else None
        if changed is None:
            return False
        new = changed.written_by(token, holder=None)
        with suppress(Changed):
            bucket.replace(register.key(trial_id), new.json(), seen.version)
            return True


class RegisterLease:
    """A trial that this process holds. Its methods may be called by several threads."""

    def __init__(self, bucket: BucketClient, seen: Seen | None, trial_id: str) -> None:
        """Take the trial whose register was `seen`. Raises Held if another process was faster."""
        self.before = Register(trial_id) if seen is None else seen.register
        """The register as the holder before left it."""
        self.register = self.before
        """The register as this process last wrote it."""
        self._bucket, self._key, self._token = bucket, register.key(trial_id), uuid4().hex
        self._lock, self._lost = threading.RLock(), False
        self._heard = monotonic()
        self._version = {} if seen is None else seen.version
        number = self.before.attempt + 1
        holder = new_attempt(number)
        text = json.dumps(holder, indent=1) + "\n"
        files = {**self.before.files, attempt_name(number): {"text": text}}
        take = partial(self.swap, attempt=number, holder=holder, files=files)
        try:
            try:
                take()
            except StoreAway:  # it may have been written
                take()
        except LeaseLost:
            raise Held("trial", trial_id, "another process runs this trial") from None

    def is_lost(self) -> bool:
        """Return whether this process must stop: another one has the trial, or may take it."""
        return self._lost or monotonic() - self._heard > STOP_AFTER

    def swap(self, **changes: Any) -> None:
        """Write the register with `changes`.

        Raises LeaseLost, or StoreAway if it is not known whether the register was written: then
        the next swap finds that out.
        """
        with self._lock:
            while True:
                if self.is_lost():
                    raise LeaseLost(f"{self._key} was, or may be, taken over by another process")
                sent, new = monotonic(), self.register.written_by(self._token, **changes)
                try:
                    version = (
                        self._bucket.replace(self._key, new.json(), self._version)
                        if self._version
                        else self._bucket.create(self._key, new.json())
                    )
                except Changed:
                    if not self._is_mine(new):
                        continue
                    version = self._version
                self.register, self._version, self._heard = new, version, sent
                return

    def _is_mine(self, new: Register) -> bool:
        """Return whether the register is `new` already: the answer to a write was lost.

        False if another write of this process is there, on which the next try builds. Raises
        LeaseLost if another process wrote the register.
        """
        try:
            seen = see(self._bucket, self.register.trial_id)
        except Damaged:
            seen = None
        if seen is None or seen.register.writer != self._token:
            self._lost = True
            raise LeaseLost(f"{self._key} was taken over by another process")
        self._version = seen.version
        self.register = replace(self.register, beat=seen.register.beat)
        return seen.register == new

    def heartbeat(self) -> AbstractContextManager[None]:
        """Send heartbeats from a thread while the context lasts, unless other swaps do."""
        return repeated(self._beat, POLL_EVERY, "lease")

    def _beat(self) -> bool:
        """Swap the register if the last heartbeat is old; return whether to go on."""
        if self.is_lost():
            return False
        with suppress(StoreAway), self._lock:
            try:
                if self.register.holder and monotonic() - self._heard > HEARTBEAT_EVERY:
                    self.swap()
            except LeaseLost:
                return False
        return True
