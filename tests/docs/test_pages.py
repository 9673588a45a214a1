"""Every command in the documents is one that the project understands: it is run as far as it goes
without training anything and without a cluster. Pages of findings/ are records: theirs may age.
"""

import ast
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

from findings.front import JOB, NOTEBOOK, executed
from pipegap.__main__ import PROGRAMS
from pipegap.analysis import best, downstream, gaps, load
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.table.schema import BEST, DOWNSTREAM, GAP, TRIAL
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.commands import COMMANDS
from pipegap.sweeps.commands.evaluate import parse_words
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.entry import check_entry
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.cli import split_command
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data import hub
from pipegap.trainer.data.__main__ import CORPORA, _request
from pipegap.trainer.data.tokenizers import ENCODERS
from tests.support import small_sweep
from tests.support.markdown import (
    DOCUMENTS,
    FENCE,
    ROOT,
    commands,
    lines_of_make,
    shell_lines,
    spans,
    write_files,
)
from tests.support.own_files import (
    as_in_a_new_process,
    texts,
    write_jsonl,
    write_parquet,
    write_txt,
)
from tests.support.pages import with_figures
from tests.support.processes import python
from tests.support.synthetic_store import write_answers, write_arms

Words = Sequence[str]
ELSEWHERE = {"git", "cd", "source", "export", "tensorboard", "trackio", "wandb", "pip", "python3"}
ELSEWHERE |= {"kubectl", "nohup", "ray", "sbatch"}
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
        # Not `find_spec` for a package: it also asks setuptools' finder. Asked for pip, that leaves
        # distutils to the standard library from then on, and Python 3.11 warns of it.
        assert find_spec(module) if inner else PathFinder.find_spec(package), module


def check_trial(words: Words) -> None:
    """Composed, validated and printed."""
    if "--help" not in words and "--config" not in words:
        assert trainer([*words, "--cfg"]) == 0


def check_corpus(words: Words) -> None:
    corpus = words[0]
    name, _, tokenizer = corpus.rpartition("_")
    known = {*CORPORA, hub.NAME}
    assert corpus in known or (name in CORPORA and tokenizer in ENCODERS)
    assert _request(words)[0] == corpus


def check_sweep(words: Words) -> None:
    """Run on a small store; what would train or delete is a dry run."""
    command, rest = split_command(words, COMMANDS, "sweep")
    if command in NEED_A_CLUSTER:
        assert [*rest] == [*NEED_A_CLUSTER[command]]
        return
    rest = [word for word in rest if word not in ("--help", "watch=true", "dry_run=true")]
    if command in ("enter", "verify"):  # tests/sweeps/test_track.py runs them
        assert rest == [] or check_entry(Path(rest[0]))
    elif command == "evaluate":  # the small store has no weights
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


@pytest.fixture(scope="module")
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


@pytest.fixture
def in_a_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are run in a folder of their own, which has that store."""
    (tmp_path / "results").symlink_to(store)
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
@pytest.mark.usefixtures("no_files")
@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize(
    ("document", "words"), [c[1:] for c in every()], ids=[c[0] for c in every()]
)
def test_a_command_is_understood(
    document: Path, words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(document, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "entries").mkdir(exist_ok=True)
    (tmp_path / "entries" / "adamw").symlink_to(ROOT / "entries" / "adamw")
    monkeypatch.syspath_prepend(str(tmp_path))
    with as_in_a_new_process():
        check(words)


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
@pytest.mark.usefixtures("no_files")
@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize(
    "words",
    [
        *("make sweep-tiny-nowhere", "pipegap trial optimizer.momentun=0.9"),
        *("pipegap sweep sweep=main seeds=[a]", "pipegap advise optimiser=muon"),
        *("pipegap data wikipedia", "python -m bench.nothing"),
    ],
)
def test_a_wrong_command_is_noticed(words: str) -> None:
    with pytest.raises((AssertionError, BadInput, LookupError)):
        check(words.split())


# Whatever a document points at is there, what it should list is complete, and the site builds.

LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_CODE = re.compile(r"(pipegap|tests|bench|docs|deploy|findings)/[\w./-]*")
MAP = ROOT / "docs" / "map.md"
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for link in LINK.findall(prose(document)):
            if link.startswith(("http://", "https://")):
                continue
            path, _, anchor = link.partition("#")
            target = (document.parent / path).resolve() if path else document
            assert target.exists(), f"{document}: {link}"
            assert not anchor or anchor in anchors(target), f"{document}: {link}"


def test_paths_and_tests_in_code_exist() -> None:
    for document in DOCUMENTS:
        for span in spans(document):
            if IN_CODE.fullmatch(span):
                assert (ROOT / span).exists(), f"{document}: {span}"
            if re.fullmatch(r"test_\w+", span):
                assert f"def {span}(" in TESTS, f"{document}: {span}"


def test_the_map_names_what_its_files_define() -> None:
    """Each name in code belongs to the file that is linked before it."""
    defined, num_names = list[str](), 0
    for link, span in re.findall(r"\]\(\.\./(\S+\.py)\)|`([A-Za-z_.]+)`", prose(MAP)):
        if link:
            defined, file = definitions(ROOT / link), link
        elif "." not in span or span[0].isupper():
            assert span in defined, f"{span}: not in {file}"
            num_names += 1
    assert num_names > 40


def definitions(path: Path) -> list[str]:
    """The names that a module defines; of its classes those of their methods too."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        if isinstance(node, ast.ClassDef):
            names += [
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef)
            ]
    return names


def test_the_readme_lists_every_page() -> None:
    linked = set(LINK.findall(prose(ROOT / "README.md")))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize(
    ("group", "page"),
    [("pipeline", "trial"), ("correction", "semantics"), ("tracking", "tracking")],
)
def test_every_choice_is_explained(group: str, page: str) -> None:
    """In a row of a table, or as the value of its key."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for path in (ROOT / "pipegap" / "conf" / group).glob("*.yaml"):
        assert f"`{path.stem}`" in text or f"{group}={path.stem}" in text or path.stem == "none"


class _Tagged(yaml.SafeLoader):
    """Reads `!ENV […]` as None."""


_Tagged.add_constructor("!ENV", lambda loader, node: None)


@pytest.mark.long
def test_it_builds_and_links_to_the_pages_of_the_repository(tmp_path: Path) -> None:
    """Where links lead is in test_pages.py."""
    done = python("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "index.html").read_text()
    assert 'href="docs/semantics/"' in front
    assert "../bench/" in (tmp_path / "docs" / "pipeline" / "index.html").read_text()


def test_its_three_groups_name_every_page_of_docs() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Tagged)
    groups = {name: pages for entry in config["nav"] for name, pages in entry.items()}
    assert [*groups] == ["pipegap", "Use", "Understand", "Extend"]
    pages = [page for group in [*groups.values()][1:] for entry in group for page in entry.values()]
    assert sorted(pages) == sorted({*pages})
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= {*pages}


# docs/tutorial.md ends in an answer: it runs as printed, but for two of its three optimizers.

DOCUMENT = ROOT / "docs" / "tutorial.md"
SMALLER = {"trial": ["num_updates=4"], "sweep": ["grid.optimizer=[muon]"]}
"""Command → words that win over those of the page."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each line of the page prints, by its words; the lines of the installation are left out.

    A line that fails is an error of the fixture.
    """
    folder = tmp_path_factory.mktemp("tutorial")
    write_files(DOCUMENT, folder)
    lines = [words for words in shell_lines(DOCUMENT) if words[0] in ("python", "pipegap")]
    return {" ".join(words): run(folder, words) for words in lines}


def run(folder: Path, words: list[str]) -> str:
    program, name, *rest = words
    command = [name] if program == "python" else ["-m", "pipegap", name]
    given = {word.partition("=")[0]: word for word in [*rest, *SMALLER.get(name, [])]}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = python(*command, *given.values(), cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def line(said: dict[str, str], begin: str, end: str = "") -> str:
    [printed] = [
        out for words, out in said.items() if words.startswith(begin) and words.endswith(end)
    ]
    return printed


@pytest.mark.slow
def test_a_trial_trains_on_the_text(said: dict[str, str]) -> None:
    assert line(said, "pipegap trial model").startswith("completed trial")


@pytest.mark.slow
def test_the_price_is_that_of_what_then_runs(said: dict[str, str]) -> None:
    assert "20 to do" in line(said, "pipegap sweep", "dry_run=true")
    assert "20/20 completed" in line(said, "pipegap sweep", "data.path=notes")


@pytest.mark.slow
def test_the_sweep_ends_in_an_answer(said: dict[str, str]) -> None:
    """A decision, and not only a lack of data."""
    answer = line(said, "pipegap sweep", "data.path=notes")
    assert re.search(r"^Muon: (go|stay)", answer, re.MULTILINE)
    assert "Muon" in line(said, "pipegap advise", "microbatches=16")
    assert "Muon" in line(said, "pipegap advise", "optimizer=muon")


# The tables have the columns of their schema, and the notebook runs.

SECTIONS = {"load": TRIAL, "gaps": GAP, "best": BEST, "downstream": DOWNSTREAM}


def test_the_tables_have_the_dtypes_of_the_schema(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.1], "delay": [1.2, None]})
    for folder in (tmp_path / "trials").iterdir():
        write_answers(folder)
    trials = load(tmp_path)
    tables = {
        "load": trials,
        "gaps": gaps(trials),
        "best": best(trials),
        "downstream": downstream(trials),
    }
    for function, columns in SECTIONS.items():
        table = tables[function]
        assert not table.empty
        assert {name: str(table[name].dtype) for name in columns} == {
            name: dtype for name, (dtype, _) in columns.items()
        }


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """What every cell shows, pictures aside: letters are placed by the fonts of a machine."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [str(output.get("text") or output["data"].get("text/plain", "")) for output in outputs]


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_the_notebook_shows_what_the_published_trials_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs are those of its cells, on the trials of the README."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    kept = nbformat.read(NOTEBOOK, as_version=4)
    assert shown(executed()) == shown(kept), "make docs"
    assert pictures(kept) == 1
    trials = pd.read_csv(JOB)
    finals = trials.pivot_table(index=["optimizer", "seed"], columns="arm", values="final_val_loss")
    gap = (finals["delay"] - finals["sync"]).groupby("optimizer").mean()
    text = "\n".join(shown(kept))
    assert all(f"{gap[optimizer]:.6f}" in text for optimizer in ("adamw", "muon"))
    assert any(f"{one:+.4f} [" in text for one in gap)  # as advise writes it
    assert re.search("^(AdamW|Muon|SOAP): go,? against", text, re.MULTILINE)


# The commands of docs/data.md that need no hub run as they are printed.

DOCUMENT_OF_DATA = ROOT / "docs" / "data.md"
LINES = [words[1:] for words in shell_lines(DOCUMENT_OF_DATA) if words[:1] == ["pipegap"]]
TRIALS = [words for command, *words in LINES if command == "trial"]
HERE = [words for words in TRIALS if not any("HuggingFaceFW" in word for word in words)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with what the commands name."""
    monkeypatch.chdir(tmp_path)
    found = texts()
    write_txt(Path("books/one.txt"), found[:150])
    write_txt(Path("books/two.txt"), found[150:])
    write_jsonl(Path("posts.jsonl"), found, field="body")
    write_parquet(Path("table/a.parquet"), found)
    write_parquet(Path("mirror/train.parquet"), found)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", HERE, ids=" ".join)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets
def test_a_trial_prepares_and_trains(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [word for word in small_sweep.SMALL if "num_updates" not in word]
    given = [*words, *sizes, "data.validation_share=0.1"]
    assert trainer(given) == 0
    [shards] = Path("data/prepared").iterdir()
    said = capsys.readouterr()
    assert f"prepares {words[1].partition('=')[2].rpartition('/')[2]} in {shards}" in said.err
    assert said.out.startswith("completed")
    assert trainer(given) == 0
    assert capsys.readouterr().out.startswith("done before")


@pytest.mark.usefixtures("folder")
def test_the_sweep_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(HERE) == 4, "trials above, of which each was tried"
    [words] = [words for command, *words in LINES if command == "sweep"]
    assert sweeps(words) == 0
    assert "not prepared" not in capsys.readouterr().out
    assert not Path("data").exists()
