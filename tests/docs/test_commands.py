"""Every command in the documents is one that the project understands: it is run as far as it goes
without training anything and without a cluster. Pages of findings/ are records: theirs may age."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipegap.__main__ import PROGRAMS
from pipegap.analysis.__main__ import main as analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.commands import COMMANDS
from pipegap.sweeps.commands.evaluate import parse_words
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.cli import split_command
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data import benchmarks
from pipegap.trainer.data.__main__ import CORPORA, _request
from pipegap.trainer.data.tokenizers import ENCODERS
from tests.support.make import lines_of_make
from tests.support.markdown import DOCUMENTS, ROOT, commands, write_files
from tests.support.own_code import as_in_a_new_process
from tests.support.reports import with_figures
from tests.support.synthetic_store import write_arms

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")  # wandb's
Words = Sequence[str]
ELSEWHERE = {"git", "cd", "source", "export", "tensorboard", "trackio", "wandb", "pip", "python3"}
ELSEWHERE |= {"kubectl", "ray", "sbatch"}
"""Programs that are not ours."""
NEED_A_CLUSTER: Mapping[str, Words] = {"jobs": [], "stop": ["ID"]}
"""Commands of sweeps, and the words that the documents may give them."""
MANY = {"sweep=all", "sweep=paper"}
"""Sweeps that tests/sweeps/test_sweeps.py plans: here their words are read."""
SAME = ("watch=true", "results=", "out=")
"""Words without which two commands are one: all are run on one store."""
NEED_NO_STORE = {"stability"}
"""Commands of analysis that read no results."""


def check(words: Words) -> None:
    """Raises for a command that would be refused."""
    words = [word for word in words if "…" not in word]
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program, *rest = words
    if program == "make":
        check_make(rest)
    elif program in ("pipegap", ".venv/bin/pipegap"):
        check_program(rest)
    elif program == "python" and rest[0].endswith(".py"):
        assert Path(rest[0]).is_file(), words
    elif program == "torchrun" or program.endswith("python"):
        at = rest.index("-m")
        check_module(rest[at + 1], rest[at + 2 :])
    else:
        assert program in ELSEWHERE, words


def check_make(words: Words) -> None:
    """Make knows the target; and the commands that it would run are right themselves."""
    would_run = lines_of_make(*words)
    if not re.search(r"\b(SCALE|NAME)\b(?!=)", " ".join(words)):
        for line in would_run:
            if line.startswith(".venv/bin/pipegap "):
                check(shlex.split(line))


def check_program(words: Words) -> None:
    """`pipegap`: a command that it knows, with words that the command understands."""
    if words != ["--help"]:
        module, *begin = PROGRAMS[words[0]]
        check_module(module, [*begin, *words[1:]])


def check_module(module: str, words: Words) -> None:
    package, _, inner = module.partition(".")
    if package == "mine":
        assert Path(package, f"{inner}.py").is_file(), module
    elif module in MODULES:
        MODULES[module](words)
    else:
        assert find_spec(module), module


def check_trial(words: Words) -> None:
    """Composed, validated and printed."""
    if "--help" not in words and "--config" not in words:
        assert trainer([*words, "--cfg"]) == 0


def check_corpus(words: Words) -> None:
    corpus = words[0]
    name, _, tokenizer = corpus.rpartition("_")
    known = {*CORPORA, benchmarks.NAME}
    assert corpus in known or (name in CORPORA and tokenizer in ENCODERS)
    assert _request(words)[0] == corpus


def check_sweep(words: Words) -> None:
    """Run on a small store; what would train or delete is a dry run."""
    command, rest = split_command(words, COMMANDS, "sweep")
    if command in NEED_A_CLUSTER:
        assert [*rest] == [*NEED_A_CLUSTER[command]]
        return
    rest = [word for word in rest if word not in ("--help", "watch=true", "dry_run=true")]
    if command == "evaluate":  # the small store has no weights
        assert not rest or parse_words([*rest, "results=results"])
    elif MANY.intersection(rest):
        assert parse_request(rest).sweeps
    elif command == "dashboard":
        assert sweeps([command, *rest]) == 0
    elif rest:
        name = "sweep" if command == "submit" else command
        dry = [] if command in ("status", "list") else ["dry_run=true"]
        assert sweeps([name, *rest, "results=results", *dry]) == 0


def check_analysis(words: Words) -> None:
    """Run on a small store, if it reads one."""
    asked = [word for word in words if word != "results=results"]
    store = [] if NEED_NO_STORE.intersection(asked[:1]) else ["results=results"]
    if any("=" in word for word in asked):
        assert analysis([*asked, *store]) == 0


MODULES: Mapping[str, Callable[[Words], None]] = {
    "pipegap": check_program,
    "pipegap.trainer": check_trial,
    "pipegap.trainer.data": check_corpus,
    "pipegap.sweeps": check_sweep,
    "pipegap.analysis": check_analysis,
}


def every() -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    seen = set()
    for document in DOCUMENTS:
        for words in () if "findings" in document.parts else commands(document):
            once = tuple(word for word in words if not word.startswith(SAME))
            if once not in seen:
                seen.add(once)
                yield f"{document.stem}: {' '.join(words)[:90]}", document, tuple(words)


@pytest.fixture(autouse=True, scope="module")
def no_files() -> Iterator[None]:
    """Reports have no files of pictures."""
    with with_figures():
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store, in which no command changes anything."""
    folder = tmp_path_factory.mktemp("store")
    for optimizer in ("adamw", "muon"):
        write_arms(folder, {"sync": [1.7, 1.8], "delay": [1.9, 2.0]}, optimizer=optimizer)
    return folder


@pytest.fixture(autouse=True)
def in_a_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are run in a folder of their own, which has that store."""
    (tmp_path / "results").symlink_to(store)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("document", "words"), [c[1:] for c in every()], ids=[c[0] for c in every()]
)
def test_a_command_is_understood(
    document: Path, words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(document, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.syspath_prepend(str(tmp_path))
    with as_in_a_new_process():
        check(words)


@pytest.mark.parametrize(
    "words",
    [
        "make sweep-tiny-nowhere",
        "pipegap trial optimizer.momentun=0.9",
        "pipegap sweep sweep=main seeds=[a]",
        "pipegap advise optimiser=muon",
        "pipegap data wikipedia",
        "python -m bench.nothing",
    ],
)
def test_a_wrong_command_is_noticed(words: str) -> None:
    with pytest.raises((AssertionError, BadInput, LookupError)):
        check(words.split())
