"""The first word of a command line: a command, key=value, or a mistake that names the commands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from analysis import __main__ as analysis
from analysis.commands import COMMANDS as ANALYSES
from sweeps import __main__ as sweeps
from sweeps.commands import COMMANDS as SWEEPS
from trainer.base.cli import split_command


def test_a_command_takes_the_words_after_it_and_the_default_takes_all() -> None:
    commands = ("run", "list")
    assert split_command(["list", "a=1"], commands, "run") == ("list", ["a=1"])
    for words in ([], ["a=1", "list"], ["--help"]):
        assert split_command(words, commands, "run") == ("run", words)


@pytest.mark.parametrize(
    ("main", "commands"),
    [(sweeps.main, SWEEPS), (analysis.main, ANALYSES)],
    ids=["sweeps", "analysis"],
)
def test_a_mistyped_command_is_one_line_that_names_them_all(
    main: Callable[[Sequence[str]], int],
    commands: Collection[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["advice"]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert f"advice=: must be key=value, or a command first: {', '.join(commands)}" in said.err
