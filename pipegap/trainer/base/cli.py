"""Command lines: words key=value help; exit codes; durations; signals."""

import argparse
import codecs
import errno
import gc
import math
import os
import pwd
import re
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from tempfile import gettempdir
from types import FrameType
from typing import Any, NoReturn

from typing_extensions import override

from pipegap.trainer.base.errors import (
    NO_TEXT,
    OPENED_BY,
    BadInput,
    LeaseLost,
    Unavailable,
    closest_first,
)

Given = dict[str, str]
"""Key → value of the words key=value."""

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes of every command."""
UNREAD = 141
"""Exit code if nobody reads the output any more (`… | head`): that of a process that SIGPIPE
ended."""

FULL, CLOSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a file for which there is no space, and of one that this user may not open."""
IN_ASCII = {
    "±": "+-",
    "−": "-",
    "–": "-",
    "×": "x",
    "·": "*",
    "…": "...",
    "λ": "lambda",
    "τ": "tau",
}
"""Letter → its replacement on a terminal that cannot show it: a minus must not become a `?`."""
HOME = re.compile(r"~[\w.-]*/")
"""The start of a path in a home folder, which most shells do not expand after `key=`."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask to stop: Ctrl-C, a job system (Slurm, Kubernetes, `ray job stop`), a lost
terminal. Terminals and job systems send them to the whole process group."""
UNITS = (("s", 1.0, 100.0), ("min", 60.0, 100.0), ("h", 3600.0, 72.0))
"""A unit, its seconds, and the number from which the next unit is used instead; days come last."""


def end_with(main: Callable[[], int]) -> NoReturn:
    """Ends this process with the exit code of `main`.

    The code is UNREAD, without a word, if nobody reads the output; FAILED, with one line, if a disk
    is full or a file another user's; INTERRUPTED, with one line, after Ctrl-C. On a terminal or log
    that is not in UTF-8, letters that it lacks are spelt IN_ASCII.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Closed (`>&-`): the next file that is opened would get its descriptor, and be printed to.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    _name_the_user()
    codecs.register_error(spell.__name__, spell)
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, TextIOWrapper):
            file.reconfigure(errors=spell.__name__)
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()  # here, where a broken pipe is handled, and not at Python's exit
    except BrokenPipeError:
        unread = [file for file in (sys.stdout, sys.stderr) if _is_unread(file.fileno())]
        if not unread:  # another pipe, such as one to a process of ours
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for file in unread:  # Python flushes them once more at its exit
            os.dup2(nowhere, file.fileno())
        code = UNREAD
    except KeyboardInterrupt:
        say("interrupted: the same command goes on")
        code = INTERRUPTED
    except OSError as error:
        if (remedy := remedy_of(error)) is None:
            raise
        say(f"{error}: {remedy}")
        code = FAILED
    gc.freeze()  # the last collection, of all that was imported, would take half a second
    sys.exit(code)


def _name_the_user() -> None:
    """Gives a user without an entry in the password file (`docker run --user 1000`) a name and a
    home folder, without which libraries raise errors of their own."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", f"user-{os.getuid()}")
        os.environ.setdefault("HOME", os.path.join(gettempdir(), os.environ["USER"]))


def remedy_of(error: OSError) -> str | None:
    """The remedy for an error of a file; None if it is a fault of the program."""
    if error.errno in FULL:
        return "make room, or raise the limit; then the same command goes on"
    if error.errno in CLOSED and error.filename is not None:
        return OPENED_BY
    return None


def on_terminal() -> bool:
    """Whether the output goes to a terminal that can colour and redraw lines."""
    # Not by variables such as FORCE_COLOR, which make no terminal of a log.
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handles an error of encoding: letters are spelt IN_ASCII, or as escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = error.object[error.start]
    return IN_ASCII.get(letter, ascii(letter)[1:-1]), error.start + 1


def exit_code(program: str, main: Callable[[], int]) -> int:
    """Returns what `main` returns, or the exit code of an error for users, which is printed in one
    line.

    Each warning for users is printed once, in one line too.
    """
    messages: set[str] = set()

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in messages:
            messages.add(str(message))
            say(f"warning: {message}")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)  # `warn` drops repetitions, by their text
            warnings.showwarning = warn
            return main()
    except (BadInput, LeaseLost, Unavailable) as error:
        say(f"{program}: {error}")
        return error.exit_code


def _is_unread(descriptor: int) -> bool:
    """Whether the descriptor is a pipe without a reader."""
    # Without a write: one that succeeds would put something into the output.
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


def split_command(
    words: Sequence[str], commands: Collection[str], default: str
) -> tuple[str, Sequence[str]]:
    """Returns the command that the first word names, and the words after it; or the default."""
    if words and words[0] in commands:
        return words[0], words[1:]
    return default, words


class Parser(argparse.ArgumentParser):
    """A parser of argparse that raises BadInput, one line, for a mistake.

    Options and words key=value may stand in any order.
    """

    def __init__(self, command: str, does: str, keys: str) -> None:
        super().__init__(
            prog=command,
            description=does,
            epilog=keys,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    @override
    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        """Returns the options and words; raises BadInput for an option of another command."""
        for word in words:
            require_text(word)
        arguments, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            key, _, value = unknown[0].partition("=")
            raise BadInput(key, value, f"is not an option of this command, see {self.prog} --help")
        return arguments

    @override
    def error(self, message: str) -> NoReturn:
        option, _, problem = message.removeprefix("argument ").rpartition(": ")
        raise BadInput(option, "", f"{problem}, see {self.prog} --help")


def parser(command: str, does: str, keys: str, words: str = "key=value") -> Parser:
    """Returns the parser of a command such as `pipegap list`.

    `--help` prints what the command `does`, its `keys`, and the form of its `words`.
    """
    command_parser = Parser(command, does, keys)
    command_parser.add_argument("keys", nargs="*", metavar=words)
    return command_parser


def require_text(word: str) -> None:
    """Raises BadInput for a word that has control characters or is no valid UTF-8."""
    if NO_TEXT.search(word):
        key, _, value = word.partition("=")
        raise BadInput(key, value, "must be text without control characters, in UTF-8")


def split_word(word: str) -> tuple[str, str]:
    """Returns key and value of a word key=value; a value such as ~/runs begins with a home folder.

    Raises BadInput for any other word.
    """
    require_text(word)
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise BadInput(key, value, "must be key=value")
    return key, os.path.expanduser(value) if HOME.match(value) else value


def parse(words: Sequence[str], command: str, does: str, keys: str) -> Given:
    """Returns key → last value. Raises BadInput for a word that is not key=value."""
    values = dict(map(split_word, parser(command, does, keys).parse_args(words).keys))
    for key, value in values.items():
        if not value:
            raise BadInput(key, value, f"must have a value, see {command} --help")
    return values


def refuse_others(values: Given, command: str) -> None:
    """Raises BadInput if `values` still has a key, which the command does not know."""
    for key, value in values.items():
        raise BadInput(key, value, f"is not a key of this command, see {command} --help")


def one_of(key: str, value: str, allowed_names: Collection[str], more: str = "") -> BadInput:
    """Returns the refusal of a value that is none of `allowed_names`; the closest come first.

    `more` says what else is allowed.
    """
    names = ", ".join(closest_first(value, allowed_names))
    return BadInput(key, value, f"must be one of {names}{more}")


def number(text: str) -> float:
    """Returns the number that `text` writes; NaN for any other text."""
    try:
        # Python itself reads 1_000 and the digits of other scripts as numbers.
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def take_flag(values: Given, key: str) -> bool:
    """Removes `key` from `values`; returns whether it is true, false if it is missing.

    Raises BadInput for another word than true or false.
    """
    return take_choice(values, key, ("false", "true")) == "true"


def take_choice(values: Given, key: str, allowed: Sequence[str]) -> str:
    """Removes `key` from `values` and returns its value; the first allowed value is the default.

    Raises BadInput for a value that is not `allowed`.
    """
    value = values.pop(key, allowed[0])
    if value not in allowed:
        raise BadInput(key, value, f"must be {' or '.join(allowed)}")
    return value


def duration(seconds: float) -> str:
    """Writes `seconds` in the unit that people would choose: 40 s, 12 min, 2.5 h, 12 days."""
    for unit, length, most in UNITS:
        if round(seconds / length) < most:  # one decimal only of hours below 10
            return f"{seconds / length:.{int(unit == 'h' and seconds < 10 * length)}f} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def say(message: str) -> None:
    """Prints on stderr. If the terminal was closed, the null device replaces it: a message that
    nobody can read must not fail the trial."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        # stdout too, if it is the same terminal; not if it is a file or another pipe.
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            if stream == 2 or os.path.sameopenfile(1, 2):
                os.dup2(null, stream)
        os.close(null)


@contextmanager
def stops_for_this_process_alone() -> Iterator[None]:
    """A context in which this process gets `STOPS`, and those that this thread starts do not."""
    over = threading.Event()
    # A process inherits the signals that are blocked in the thread that starts it. The kernel
    # delivers this process's signals to the other thread, in which they are not blocked.
    threading.Thread(target=over.wait, name="signals", daemon=True).start()
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        over.set()


@contextmanager
def stopping(says: str) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal asked to stop.

    The first signal only asks, and prints the message `says`. A second one acts as usual. In
    another thread than the main one no signal asks: Python handles signals in the main thread.
    """
    must_stop = False
    previous: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal must_stop
        must_stop = True
        signal.signal(number, previous[number])  # so that a second one acts as usual
        say(f"{signal.Signals(number).name}: {says}")

    is_main = threading.current_thread() is threading.main_thread()
    for number in STOPS if is_main else ():
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            previous[number] = signal.signal(number, ask)
    try:
        yield lambda: must_stop
    finally:
        for stop, handler in previous.items():
            signal.signal(stop, handler)
