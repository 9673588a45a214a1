"""Errors for users, with their exit codes; and the status of a trial, in one word."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import StrEnum

# Errors for users: entry points print them on stderr and exit with their `exit_code`.

NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""A character that ends a line, controls a terminal, or is no valid UTF-8."""
SHOWN = 200
"""Characters of a value that a message shows."""

OPENED_BY = "its owner opens a folder by chmod -R a+rX, and by a+rwX to run trials in it"
"""The remedy for files that this user may not read."""
NAMED = 3
"""How many names are written before the rest is only counted."""


def one_line(text: object) -> str:
    """Returns `text` with characters that are NO_TEXT written as escapes."""
    return NO_TEXT.sub(lambda match: ascii(match[0])[1:-1], str(text))


def short(value: object) -> str:
    """Returns `value` on one line; a long value loses its middle."""
    text = str(value)
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}…{text[-SHOWN // 2 :]}"
    return one_line(text)


def some(names: Sequence[object]) -> str:
    """Returns the first NAMED names, and the number of the others."""
    ending = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(map(str, names[:NAMED])) + ending


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if there is none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def closest_first(word: str, names: Iterable[str]) -> list[str]:
    """Returns the `names` words, first the words that look most like `word`."""
    # `word` is b, of which SequenceMatcher keeps an index for all names.
    matcher = SequenceMatcher(b=word[:SHOWN], autojunk=False)

    def unlikeness(name: str) -> float:
        matcher.set_seq1(name)
        return -matcher.ratio()

    return sorted(names, key=unlikeness)


class BadInput(ValueError):
    """A setting that cannot be used.

    The error's text is one line: key, value (shortened) and what is allowed.
    """

    exit_code = 2

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)  # all three: pickle makes it anew from `args`
        self.key, self.value, self.allowed = key, value, allowed

    def __str__(self) -> str:
        return f"{short(self.key)}={short(self.value)}: {one_line(self.allowed)}"


class GangFailed(RuntimeError):
    """A rank of a gang died, raised or hangs. The message says which rank, and why."""

    exit_code = 1


class LeaseLost(RuntimeError):
    """Another process took the trial over: this one must write nothing more."""

    exit_code = 1


class Unavailable(RuntimeError):
    """Something that this machine or a cluster has to provide is not there."""

    exit_code = 1


class Stopped(Exception):
    """The trial was asked to stop. It resumes from its checkpoint after `num_updates`."""

    exit_code = 143  # that of a process which SIGTERM ended

    def __init__(self, num_updates: int) -> None:
        super().__init__(f"stopped after update {num_updates}: the same command resumes it")
        self.num_updates = num_updates


class Status(StrEnum):
    """The status of a trial: the same word in result.json, tables, lists and live views."""

    COMPLETED = "completed"
    """It trained to the end."""
    DIVERGED = "diverged"
    """It trained until a loss or gradient was not finite, or the validation loss too high."""
    FAILED = "failed"
    """An error ended it. The same command runs it again."""
    RUNNING = "running"
    """A process runs it."""
    ELSEWHERE = "elsewhere"
    """A process of another driver runs it."""
    STOPPED = "stopped"
    """Its process saved a checkpoint because it was asked to stop. Only an attempt has this status:
    the trial is interrupted from then on."""
    INTERRUPTED = "interrupted"
    """It was started, has no result, and no process runs it."""
    WAITING = "waiting"
    """It has not been started."""
    UNFINISHED = "unfinished"
    """It has no result. For callers that do not look up whether a process runs it."""


FINAL = (Status.COMPLETED, Status.DIVERGED)
"""Statuses of a trial with a result that stays: it does not run again."""
ENDED = (*FINAL, Status.FAILED)
"""Statuses of a trial with a result.json."""
ACTIVE = (Status.RUNNING, Status.ELSEWHERE)
"""Statuses of a trial that a process runs."""
