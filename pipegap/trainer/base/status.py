"""What is known of a trial: one word, the same in result.json, tables, lists and live views."""

from enum import StrEnum


class Status(StrEnum):
    """Written to JSON and CSV, and compared, as its word."""

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
    """It has no result. Said where nobody looks up whether a process runs it."""


FINAL = (Status.COMPLETED, Status.DIVERGED)
"""Statuses of a trial with a result that stays: it does not run again."""
ENDED = (*FINAL, Status.FAILED)
"""Statuses of a trial with a result.json."""
ACTIVE = (Status.RUNNING, Status.ELSEWHERE)
"""Statuses of a trial that a process runs."""
