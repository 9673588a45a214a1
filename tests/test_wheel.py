"""What an installed wheel gives: every command runs outside a checkout, with its configs."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package

from pipegap.trainer.__main__ import main as trial
from pipegap.trainer.base.places import CODE_ROOT, CONF
from tests.support import small_sweep
from tests.support.processes import python

SOURCE = ("pyproject.toml", "README.md", "pipegap")
PROJECT = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text())["project"]
OTHERS = ("trainer", "sweeps", "analysis")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")
RELEASE = f"{PROJECT['name']} {PROJECT['version']}"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed wheel alone, in a git repository and beside a conf/ of somebody else."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = copy_of_the_source(folder / "checkout")
    pip("wheel", *OFFLINE, "--wheel-dir", str(folder), str(checkout))
    shutil.rmtree(checkout)
    [wheel] = folder.glob("*.whl")
    pip("install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel))
    git(folder, "init")
    git(folder, "commit", "--allow-empty", "--message", "not ours")
    (folder / "site" / "conf").mkdir()
    (folder / "site" / "conf" / "config.yaml").write_text("of: somebody else\n")
    return folder / "site"


def copy_of_the_source(folder: Path) -> Path:
    """setuptools leaves `build` beside what it builds."""
    folder.mkdir()
    for name in SOURCE:
        if (CODE_ROOT / name).is_dir():
            shutil.copytree(CODE_ROOT / name, folder / name, symlinks=True)
        else:
            shutil.copy(CODE_ROOT / name, folder / name)
    return folder


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True)


def git(folder: Path, *words: str) -> None:
    somebody = ("-c", "user.name=somebody", "-c", "user.email=")
    subprocess.run(["git", *somebody, *words, "--quiet"], cwd=folder, check=True)


def run(site: Path, cwd: Path, *words: str) -> str:
    """What `python WORDS` prints, run in `cwd` where only the installed code is known."""
    environment = {k: v for k, v in os.environ.items() if k != "PIPEGAP_COMMIT"}
    environment["PYTHONPATH"] = str(site)
    process = python(*words, cwd=cwd, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_every_config_is_installed_and_no_file_is_forgotten(site: Path) -> None:
    assert files(site / "pipegap") == files(CODE_ROOT / "pipegap")


def files(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix() for path in paths}


def test_the_wheel_has_one_package(site: Path) -> None:
    [record] = site.glob("pipegap-*.dist-info/top_level.txt")
    assert record.read_text().split() == ["pipegap"]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Somebody else's packages, each with a name that a folder of ours has too."""
    folder = tmp_path_factory.mktemp("others")
    for name in OTHERS:  # by hand: to build them would take seconds
        about = f"other_{name}-1.dist-info"
        texts = {
            f"{name}/__init__.py": f"MINE = {name!r}\n",
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: other-{name}\nVersion: 1\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        texts[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in texts)
        with ZipFile(folder / f"other_{name}-1-py3-none-any.whl", "w") as wheel:
            for path, text in texts.items():
                wheel.writestr(path, text)
    return [str(wheel) for wheel in folder.glob("*.whl")]


def test_packages_of_its_folders_names_break_nothing(
    site: Path, others: list[str], tmp_path: Path
) -> None:
    """PyPI has a `trainer`, and wandb has an extra that installs a `sweeps`. In either order both
    are whole; a trial names the release that made it."""
    [ours] = site.parent.glob("*.whl")
    first, last = tmp_path / "first", tmp_path / "last"
    shutil.copytree(site, first)  # where ours was installed first
    shutil.rmtree(first / "conf")
    for folder, wheels in ((first, others), (last, others), (last, [str(ours)])):
        pip("install", "--no-deps", "--no-index", "--upgrade", "--target", str(folder), *wheels)
    assert contents(first) == contents(last)
    words = small_sweep.overrides(tmp_path, "num_updates=2", f"results={tmp_path / 'results'}")
    run(first, tmp_path, "-m", "pipegap", "trial", *words)
    [trial] = json.loads(run(first, tmp_path, "-m", "pipegap", "list", "format=json"))
    assert trial["status"] == "completed"
    [result] = (tmp_path / "results").glob("trials/*/result.json")
    assert json.loads(result.read_text())["git"] == RELEASE
    ask = "import analysis, sweeps, trainer; print(trainer.MINE, sweeps.MINE, analysis.MINE)"
    assert run(first, tmp_path, "-c", ask).split() == [*OTHERS]


def contents(folder: Path) -> dict[str, bytes]:
    """What is installed there, but for what pip notes of it."""
    return {name: (folder / name).read_bytes() for name in files(folder) if "dist-info" not in name}


def test_sweeps_are_planned_by_name_and_by_path(site: Path, tmp_path: Path) -> None:
    path = shutil.copy(CONF / "sweep" / "main.yaml", tmp_path / "mine.yaml")
    words = ("scale=micro", "dry_run=true", f"data.path={small_sweep.corpus(tmp_path)}")
    plan = run(site, tmp_path, "-m", "pipegap", "sweep", f"sweep=main,{path}", *words)
    assert "48 asked, 24 unique" in plan


def test_one_program_has_every_command(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(site / "bin" / "pipegap")
    composed = run(site, tmp_path, program, "trial", "--cfg", "optimizer=muon")
    assert trial(["--cfg", "optimizer=muon"]) == 0
    assert composed == capsys.readouterr().out
    text = run(site, tmp_path, program, "--help")
    assert text == run(site, tmp_path, "-m", "pipegap")


def test_a_job_takes_the_installed_code_along(site: Path, tmp_path: Path) -> None:
    ask = (
        "import json; from pipegap.sweeps.cluster.jobs import runtime_env; "
        "print(json.dumps(runtime_env()))"
    )
    environment = json.loads(run(site, tmp_path, "-c", ask))
    assert environment["env_vars"]["PIPEGAP_COMMIT"] == RELEASE
    package, node = tmp_path / "package.zip", tmp_path / "node"
    excludes = environment["excludes"]
    create_package(environment["working_dir"], package, include_gitignore=False, excludes=excludes)
    ZipFile(package).extractall(node)
    assert {path.name for path in node.iterdir()} == {"pipegap"}
    composed = run(node, node, "-m", "pipegap", "trial", "--cfg", "optimizer=muon")
    assert json.loads(composed)["optimizer"]["_target_"].endswith("muon")
