"""Errors that speak to users."""

from __future__ import annotations


class BadInput(ValueError):
    """A setting that cannot be used. One line: the key, its value, and what is allowed.

    Entry points print it on stderr and exit with code 2.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key, self.value, self.allowed = key, value, allowed

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.allowed}"


class GangFailed(RuntimeError):
    """A rank of a gang died, raised or hangs; the message names it and says why."""
