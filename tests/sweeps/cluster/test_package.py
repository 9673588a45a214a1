"""What a job takes along: the code, allowed variables, no key; and paths that all nodes share."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package

from sweeps.__main__ import main
from sweeps.cluster.jobs import job_name
from sweeps.cluster.package import CODE, EXCLUDES, code_digest, runtime_env
from sweeps.store.results import require_writable
from trainer.base.errors import BadInput
from trainer.base.places import CODE_ROOT

STRAYS = [
    ".env",
    ".git/config",
    ".venv/bin/python",
    "checkpoint.pt",
    "data/wiki/manifest.json",
    "results/trials/1/result.json",
    "trainer/__pycache__/stage.pyc",
    "tests/trainer/test_trial.py",
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the code with all that may lie beside it."""
    for folder in CODE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CODE_ROOT / folder, tmp_path / folder, ignore=ignored)
    for stray in STRAYS:
        (tmp_path / stray).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stray).write_text("stray")
    return tmp_path


def test_the_code_is_packaged_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    create_package(str(repository), package, include_gitignore=False, excludes=EXCLUDES)
    packaged = {name for name in ZipFile(package).namelist() if not name.endswith("/")}
    code = {
        str(path.relative_to(repository))
        for folder in CODE
        for path in (repository / folder).rglob("*")
        if path.is_file()
    }
    assert packaged == code - set(STRAYS)
    assert {"conf/config.yaml", "trainer/data/shards.py", "sweeps/cluster/driver.py"} < packaged


def test_an_id_is_the_same_for_the_same_wish_and_code(repository: Path) -> None:
    assert code_digest(repository) == code_digest()
    (repository / "conf" / "config.yaml").write_text("changed")
    assert code_digest(repository) != code_digest()
    name = job_name("main-tiny", ["sweep=main", "seeds=[0]"])
    assert name == job_name("main-tiny", ["seeds=[0]", "sweep=main"])
    assert name != job_name("main-tiny", ["sweep=main", "seeds=[1]"])
    own = [str(CODE_ROOT / folder) for folder in ("trainer/base", "trainer/data")]
    names = {job_name("main-tiny", ["sweep=main", "seeds=[0]"], folder) for folder in own}
    assert len(names - {name}) == 2


def test_variables_are_passed_on_by_name_and_keys_never(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "RAY_AUTH_TOKEN", "HF_TOKEN", "WANDB_ENTITY"):
        monkeypatch.setenv(name, "told")
    variables = runtime_env()["env_vars"]
    assert variables["WANDB_ENTITY"] == "told"
    assert list(variables.values()).count("told") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "results=results"),
        (["results=store"], "results=store"),
        (["results=s3://bucket/store"], "results=s3://bucket/store"),
        (["results=/store"], "data.path="),
        (["results=/store", "data.path=data/wiki"], "data.path=data/wiki"),
        (["results=/store", "grid.data.path=[/data/wiki,data/wiki]"], "data.path=data/wiki"),
        (["results=/store", "data.path=/data", "resume_from=a"], "resume_from=a"),
        (["results=/store", "data.path=/data", "data=text"], "data.shards="),
        (["results=/store", "data.path=/data", "follow=perhaps"], "follow=perhaps"),
        (["results=/store", "data.path=/data", "dry_run=true"], "dry_run=true"),
        (["results=/store", "data.path=/data", "sweep=nowhere"], "sweep=nowhere"),
        (["results=/store", "data.path=/data", "address=http://127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_one_line(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    assert main(["submit", "sweep=main", *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    assert says in told


@pytest.mark.parametrize("words", [["dry_run=true"], []])
def test_an_object_store_cannot_be_a_store(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep=main", "results=s3://bucket/store", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("python -m sweeps: results=s3://bucket/store: must be a folder")
    assert told.count("\n") == 1


def test_a_file_system_that_makes_a_file_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_writable(tmp_path)
    assert list((tmp_path / "trials").iterdir()) == []
    opened = Path.open

    def overwrites(path: Path, mode: str) -> object:
        """As a file system does that does not know O_EXCL."""
        return opened(path, mode.replace("x", "w"))

    monkeypatch.setattr(Path, "open", overwrites)
    with pytest.raises(BadInput, match="a file was created twice"):
        require_writable(tmp_path)
    assert list((tmp_path / "trials").iterdir()) == []
