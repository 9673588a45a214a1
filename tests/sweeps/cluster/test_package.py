"""What a job takes along: the code, allowed variables, no key; and paths that all nodes share."""

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster.jobs import job_name
from pipegap.sweeps.cluster.package import (
    EXCLUDES,
    OWN_CODE,
    Own,
    code_digest,
    runtime_env,
    sent_with,
    take_along,
)
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.store.files import require_writable
from tests.support.refusals import Refused

STRAYS = [
    ".env",
    ".git/config",
    ".venv/bin/python",
    "checkpoint.pt",
    "data/wiki/manifest.json",
    "results/trials/1/result.json",
    "pipegap/trainer/__pycache__/stage.pyc",
    "tests/trainer/test_trial.py",
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the code with all that may lie beside it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CODE_ROOT / "pipegap", tmp_path / "pipegap", ignore=ignored)
    for stray in STRAYS:
        (tmp_path / stray).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stray).write_text("stray")
    return tmp_path


def test_the_code_is_packaged_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    create_package(str(repository), package, include_gitignore=False, excludes=EXCLUDES)
    packaged = {name for name in ZipFile(package).namelist() if not name.endswith("/")}
    whole = shutil.copytree(repository / "pipegap", tmp_path / "whole" / "pipegap")
    code = {str(p.relative_to(whole.parent)) for p in whole.rglob("*") if p.is_file()}
    assert packaged == {path for path in code if "__pycache__" not in path}
    there = ("conf/config.yaml", "trainer/data/shards.py", "sweeps/cluster/driver.py")
    assert {f"pipegap/{path}" for path in there} < packaged


def test_an_id_is_the_same_for_the_same_wish_and_code(repository: Path) -> None:
    assert code_digest(repository) == code_digest()
    (repository / "pipegap" / "conf" / "config.yaml").write_text("changed")
    assert code_digest(repository) != code_digest()
    name = job_name("main-tiny", ["sweep=main", "seeds=[0]"])
    assert name == job_name("main-tiny", ["seeds=[0]", "sweep=main"])
    assert name != job_name("main-tiny", ["sweep=main", "seeds=[1]"])
    own = [
        Own(str(CODE_ROOT / folder)) for folder in ("pipegap/trainer/base", "pipegap/trainer/data")
    ]
    names = {job_name("main-tiny", ["sweep=main", "seeds=[0]"], folder) for folder in own}
    assert len(names - {name}) == 2


OWN_SWEEP = """\
base: ["code={code}", num_updates=20, pipeline.num_microbatches=2]
grid: {{optimizer: [adamw]}}
arms:
  sync: [pipeline=sync]
  delay: [pipeline=pipedream_2bw]
seeds: [0]
"""


@pytest.fixture
def own_files(tmp_path: Path) -> dict[str, str]:
    """A sweep file that names a folder of code, and a search file: the words that ask for them."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rule.py").write_text("RATE = 1\n")
    (tmp_path / "mine" / "weights.pt").write_text("large")
    sweep, search = tmp_path / "depth.yaml", tmp_path / "wide.yaml"
    sweep.write_text(OWN_SWEEP.format(code=tmp_path / "mine"))
    shutil.copy(CODE_ROOT / "pipegap" / "conf" / "search" / "optuna.yaml", search)
    return {"sweep": str(sweep), "search": str(search)}


def words_of(given: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in given.items()]


def test_the_files_and_the_code_that_a_sweep_file_names_go_with_the_job(
    own_files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read where the job runs, after what lies here is gone, the words ask for the same."""
    here = parse_request(words_of(own_files))
    words, own = take_along(own_files, here)
    with sent_with(own) as root:
        assert {path.name for path in (root / OWN_CODE).iterdir()} == {"rule.py"}
        package = tmp_path / "package.zip"
        create_package(str(root), package, include_gitignore=False, excludes=EXCLUDES)
        names = {name for name in ZipFile(package).namelist() if not name.endswith("/")}
        assert {
            f"{OWN_CODE}/rule.py",
            "own_files/sweep/depth.yaml",
            "pipegap/conf/config.yaml",
        } < names
        for path in ("mine", "depth.yaml", "wide.yaml"):
            (tmp_path / path).rename(tmp_path / f"{path}.gone")
        monkeypatch.chdir(root)
        there = parse_request(words)
        assert [*there.sweeps] == [*here.sweeps] == ["depth-few_updates"]
        [sweep] = there.sweeps.values()
        assert sweep.search == here.sweeps["depth-few_updates"].search
        [point] = points(sweep, tmp_path / "store")
        assert {config["code"] for config in point.configs.values()} == {str(root / OWN_CODE)}


def test_a_job_is_another_one_if_a_file_of_its_own_changes(
    own_files: dict[str, str], tmp_path: Path
) -> None:
    request = parse_request(words_of(own_files))
    before = job_name("depth", *take_along(own_files, request))
    assert before == job_name("depth", *take_along(own_files, request))
    (tmp_path / "wide.yaml").write_text("budget: 3\n")
    assert job_name("depth", *take_along(own_files, request)) != before


def test_the_code_of_the_command_line_wins(own_files: dict[str, str]) -> None:
    given = {"sweep": own_files["sweep"], "code": "examples/gpt2"}
    words, own = take_along(given, parse_request(words_of(given)))
    assert (own.code, words[-1]) == ("examples/gpt2", "code=own_code")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sync: [", "sync: [code=elsewhere, ", "must be in base"),
        ("optimizer: [adamw]", "code: [a, b]", "must be in base"),
    ],
)
def test_code_that_cannot_be_sent_is_refused(
    own_files: dict[str, str], old: str, new: str, says: str
) -> None:
    path = Path(own_files["sweep"])
    path.write_text(path.read_text().replace(old, new))
    given = {"sweep": str(path)}
    with pytest.raises(BadInput, match=says):
        take_along(given, parse_request(words_of(given)))


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
        (["results=s3://bucket/store"], "data.path="),
        (["results=/store", "data.path=data/wiki"], "data.path=data/wiki"),
        (["results=/store", "data.path=/data", "resume_from=a"], "resume_from=a"),
        (["results=/store", "data.path=/data", "data=text"], "data.shards="),
        (["results=/store", "data.path=/data", "address=http://127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_one_line(
    words: list[str], says: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    assert says in refused(lambda: main(["submit", "sweep=main", *words]))


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
