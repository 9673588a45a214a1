"""Errors that speak to users: entry points print them on stderr and exit with their code."""

from __future__ import annotations


class BadInput(ValueError):
    """A setting that cannot be used. One line: the key, its value, and what is allowed."""

    exit_code = 2

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key, self.value, self.allowed = key, value, allowed

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.allowed}"


class GangFailed(RuntimeError):
    """A rank of a gang died, raised or hangs; the message names it and says why."""

    exit_code = 1


class Stopped(Exception):
    """The trial was asked to stop; its checkpoint after `num_updates` is what it goes on from."""

    exit_code = 143  # as of a process that SIGTERM ended

    def __init__(self, num_updates: int) -> None:
        super().__init__(f"stopped after update {num_updates}: the same command goes on")
        self.num_updates = num_updates
