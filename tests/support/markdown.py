"""The documents of the project, and what their code blocks say."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipegap.trainer.base.places import CODE_ROOT

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted((ROOT / "findings").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
IS_COMMAND = re.compile(r"([A-Z_]+=\S+ )*(make|python -m|(\S+/)?pipegap) ")


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    text: str

    @property
    def path(self) -> str | None:
        """Of the file that the block is, if its first line names one: `# mine/claim.py`."""
        named = re.match(r"# ([\w/]+\.(?:py|yaml))\n", self.text)
        return named[1] if named else None


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in its order."""
    return [Block(*found) for found in FENCE.findall(document.read_text())]


def write_files(document: Path, folder: Path) -> None:
    """Writes every block that names a file into `folder`."""
    for block in blocks(document):
        if block.path is not None:
            path = folder / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def shell_lines(document: Path) -> Iterator[list[str]]:
    """The words of each line of its `sh` blocks; a line that ends in \\ goes on in the next."""
    for block in blocks(document):
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                yield shlex.split(line, comments=True)


def spans(document: Path) -> list[str]:
    """Its inline code, outside of blocks."""
    return SPAN.findall(FENCE.sub("", document.read_text()))


def commands(document: Path) -> list[list[str]]:
    """The words of every command: lines of `sh` blocks, and inline code that is one."""
    inline = (shlex.split(span) for span in spans(document) if IS_COMMAND.match(span))
    lines = (words for line in shell_lines(document) for words in _parts(line))
    return [words for words in (*lines, *inline) if words]


def _parts(line: list[str]) -> Iterator[list[str]]:
    """The commands of a line, which && separates."""
    part: list[str] = []
    for word in line:
        if word == "&&":
            yield part
            part = []
        else:
            part.append(word)
    yield part


# What `make` would run.


def lines_of_make(*words: str) -> list[str]:
    """Lines of `make -n WORDS`, untouched by the words of the `make test` that runs this."""
    env = {key: value for key, value in os.environ.items() if key not in ("ARGS", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", *words],
        cwd=CODE_ROOT,
        env=env,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
