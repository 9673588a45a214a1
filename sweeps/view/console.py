"""Consoles that know what to do when nobody reads them any more (`… | head`)."""

from __future__ import annotations

from rich.console import Console
from typing_extensions import override


class ReadConsole(Console):
    """Of a command that only shows: it ends, by a BrokenPipeError."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich's own raises SystemExit(1)


class DriverConsole(Console):
    """Of a driver: it falls silent, and the trials go on."""

    @override
    def on_broken_pipe(self) -> None:
        self.quiet = True
