"""Notices of a sweep: one JSON to a URL when it ends, stops or is half done, and when a trial fails
for good or diverges."""

import hashlib
import http.client
import json
import threading
import time
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from typing_extensions import override

from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.plan.sweep_record import FOLDER
from pipegap.trainer.base.cli import say
from pipegap.trainer.base.errors import Status
from pipegap.trainer.folder.wellformed import why_failed
from pipegap.trainer.store.bucket import StoreAway

TOLD = "told.jsonl"
"""File of a store's records: a line of JSON for each notice that was delivered."""
TIMEOUT = 10.0
"""Seconds that a server has to answer."""
EVERY = 60.0
"""Seconds at least between two notices of a kind: what happens between them comes in one notice."""
LOOK_EVERY = 0.5
"""Seconds between two looks at whether something is due."""
LISTED, LONGEST_LINE, LONGEST_TEXT = 10, 300, 2000
"""How many lines one notice has at most; characters of a line, and of all. Discord refuses a text
that is longer, and would do so each time."""
ENDS = ("stopped", "ended")
"""Kinds of a notice after which none is expected: it takes all along that still waits."""


class Direct(HTTPRedirectHandler):
    """Makes an error of a redirect, after which urllib would ask for a page and post nothing."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def post(url: str, content: Mapping[str, object]) -> None:
    """Send the content as JSON, with the user and password that the URL may have.

    Raises OSError, HTTPException or ValueError.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "pipegap"}
    parts = urlsplit(url)
    _, has_user, host = parts.netloc.rpartition("@")
    if has_user:
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    plain = urlunsplit(parts._replace(netloc=host))
    request = Request(plain, json.dumps(content).encode(), headers)
    with build_opener(Direct).open(request, timeout=TIMEOUT):
        pass


class Ends:
    """Follows the trials that end here: stops a sweep of which `fail_fast` failed; 0: never."""

    def __init__(self, fail_fast: int = 0) -> None:
        self._fail_fast, self._failed = fail_fast, set[str]()

    def has_failed(self) -> bool:
        """Whether so many failed that the sweep stops."""
        return 0 < self._fail_fast <= len(self._failed)

    def __call__(self, trial_id: str, name: str, status: Status, error: str, share: float) -> None:
        """Take the end of a trial, after which a share of the sweep's work is done."""
        if status == Status.FAILED:
            self._failed.add(trial_id)


class Notices(Ends):
    """A context in which notices are posted, by a thread that nobody waits for until the end.

    A notice has a kind and a key, and is told once: keys that were delivered stand in a file of the
    store. A kill between a delivery and its line there repeats that one; what a killed driver did
    not deliver, the next one finds in the store, but that it was stopped.
    """

    def __init__(self, url: str, sweep_round: Round, every: float = EVERY) -> None:
        super().__init__(sweep_round.request.fail_fast)
        self._url, self._store, self._every = url, sweep_round.store, every
        self.title = sweep_round.title
        self._trials = _digest([trial.trial_id for trial in sweep_round.planned])
        self._path = sweep_round.request.results / FOLDER / TOLD
        self._due: dict[str, dict[str, str]] = {}  # kind → key → line
        self._sent_at: dict[str, float] = {}
        self._has_warned = False
        self._known = _told(self._path) if url else set()
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="notices", daemon=True)

    def __enter__(self) -> "Notices":
        if self._url:
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is not None:
            why = why_failed(f"{type(error).__name__}: {error}".removesuffix(": "))
            self.tell("stopped", f"stopped {time.time_ns()}", f"stopped: {why}")
        if self._url:
            self._end.set()
            self._thread.join(2 * TIMEOUT + 2 * LOOK_EVERY)  # one notice may be on its way

    @override
    def __call__(self, trial_id: str, name: str, status: Status, error: str, share: float) -> None:
        super().__call__(trial_id, name, status, error, share)
        self._ended(trial_id, name, status, error)
        if share >= 0.5:
            self.tell("half", f"half {self._trials}", "half of the work is done")

    def tell(self, kind: str, key: str, line: str) -> None:
        """Have a line told soon, unless its key was told before."""
        with self._lock:
            if self._url and key not in self._known:
                self._known.add(key)
                self._due.setdefault(kind, {})[key] = line

    def _ended(self, trial_id: str, name: str, status: Status, error: str) -> None:
        """Have a line told if a trial failed for good or diverged."""
        if status == Status.FAILED:
            why = why_failed(error)
            key = f"failed {trial_id} {_digest(why)}"
            self.tell("failed", key, f"{trial_id} {name} failed: {why}")
        elif status == Status.DIVERGED:
            self.tell("diverged", f"diverged {trial_id}", f"{trial_id} {name} diverged")

    def end(self, sweep_round: Round, *, stopped: bool, has_run: bool) -> None:
        """Have a line told that says that the sweep was stopped, or how it ended, if trials ran or
        if no driver has told it before. Lines on trials that failed or diverged, and that a killed
        driver did not deliver, come first."""
        words = []
        for trial in sweep_round.planned:
            row = sweep_round.snapshot.result(trial.folder) or {"status": Status.WAITING}
            words.append(Status(row["status"]))
            self._ended(trial.trial_id, trial.name, words[-1], row.get("error") or "")
        counts = ", ".join(f"{words.count(s)} {s}" for s in dict.fromkeys(Status) if s in words)
        what = "stopped" if stopped else "ended"
        state = [*zip((trial.trial_id for trial in sweep_round.planned), words, strict=True)]
        key = f"{what} {_digest([self.title, state])}"
        if stopped or has_run:
            self._known.discard(key)  # the same end of another run is told again
        self.tell(what, key, f"{what}: {counts}")

    def _work(self) -> None:
        while not self._end.wait(LOOK_EVERY):
            self._send(is_last=False)
        self._send(is_last=True)

    def _send(self, *, is_last: bool) -> None:
        """Posts what is due, of each kind if its minute is over; if it `is_last`, at once."""
        with self._lock:
            # The notice of the end, or else any one, takes along the lines of all other kinds.
            kinds = [kind for kind in ENDS if kind in self._due] or [*self._due] * is_last
            for last in kinds[:1]:
                for kind in self._due.keys() - {last}:
                    self._due[last] = {**self._due.pop(kind), **self._due[last]}
        time_now = time.monotonic()
        for kind in [*self._due]:
            too_early = time_now - self._sent_at.get(kind, -self._every) < self._every
            if not is_last and (too_early or self._end.is_set()):
                continue
            with self._lock:
                lines = self._due.pop(kind)
            self._sent_at[kind] = time_now
            what = {"kind": kind, "sweep": self.title, "store": self._store.name}
            listed_lines = _listed([*lines.values()], LONGEST_TEXT - len(_text(self.title, [])))
            text = _text(self.title, listed_lines)
            try:
                post(self._url, {"text": text, **what, "lines": listed_lines})
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._warn(error, "tried again each minute")
                with self._lock:  # it is tried again a minute later
                    self._due[kind] = {**lines, **self._due.get(kind, {})}
            else:
                self._note(lines)

    def _note(self, keys: Mapping[str, str]) -> None:
        """Write down what was delivered."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # A line begins with its break: the last one of a killed driver may have been cut.
                file.write("".join(f"\n{json.dumps(key)}" for key in keys))
            self._store.push(self._path)
        except (OSError, StoreAway) as error:
            self._warn(error, "the next command tells again what was told")

    def _warn(self, error: Exception, consequence: str) -> None:
        """Say once that a notice was not delivered or noted, without the error's text, which may
        have the URL."""
        if not self._has_warned:
            self._has_warned = True
            code = f" {error.code}" if isinstance(error, HTTPError) else ""
            why = f"{type(error).__name__}{code}"
            say(f"warning: notices: {why}: {consequence} (this does not affect the trials)")


def _text(title: str, lines: Sequence[str]) -> str:
    return f"pipegap {_cut(title)}: " + "\n".join(lines)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def _listed(lines: Sequence[str], most: int) -> list[str]:
    """Return as many of the lines as have `most` characters together, the first ones and always
    the last, which may say how a sweep ended; and how many more there are."""
    *first_lines, last = map(_cut, lines)
    for number in reversed(range(min(len(first_lines), LISTED - 1) + 1)):
        more = [f"and {len(first_lines) - number} more"] if number < len(first_lines) else []
        lines_listed = [*first_lines[:number], *more, last]
        if len("\n".join(lines_listed)) <= most:
            break
    return lines_listed


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _told(path: Path) -> set[str]:
    """Return the keys in the file; a line that a kill has cut, or that is none of ours, has none.

    Warns if it cannot be read.
    """
    keys = set[str]()
    try:
        content = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return keys
    except OSError as error:
        warnings.warn(f"notices: {error}: what was told is told again", stacklevel=1)
        return keys
    for line in content.splitlines():
        with suppress(ValueError):
            key = json.loads(line)
            keys |= {key} if isinstance(key, str) else set()
    return keys
