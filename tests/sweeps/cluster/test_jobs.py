"""Following a job: its log, its end, and the exit code that scripts read."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package
from ray.job_submission import JobStatus

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster import jobs
from pipegap.sweeps.cluster.jobs import (
    EXCLUDES,
    OWN_CODE,
    Own,
    code_digest,
    job_name,
    runtime_env,
    sent_with,
    take_along,
)
from pipegap.sweeps.commands import jobs as command
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.trainer.base.errors import BadInput, Unavailable
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.store.files import require_writable
from tests.support import buckets, small_sweep
from tests.support.clusters import head
from tests.support.own_files import leaks, new_keys
from tests.support.processes import Refused
from tests.support.small_sweep import LENGTH, SWEEP, BucketSweep, SmallSweep


class Client:
    """Stands for Ray's: a log, and what the job is at each look."""

    def __init__(self, *looks: Any, breaks: BaseException | None = None) -> None:
        self._looks: Iterator[Any] = iter(looks)
        self._breaks = breaks

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        yield f"the log of {job_id}\n"
        if self._breaks:
            raise self._breaks

    def get_job_info(self, job_id: str) -> Any:
        return next(self._looks)


def job(status: JobStatus, code: int | None = None) -> Any:
    return SimpleNamespace(status=status, driver_exit_code=code, message="why")


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (job(JobStatus.SUCCEEDED, 0), 0),
        (job(JobStatus.FAILED, 2), 2),
        (job(JobStatus.FAILED, -15), 143),  # 128 + SIGTERM, as in a shell
        (job(JobStatus.STOPPED), 143),
        (job(JobStatus.FAILED), 1),
    ],
)
def test_a_job_that_is_followed_to_its_end_gives_its_exit_code(
    ended: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "POLL_EVERY", 0.0)
    client: Any = Client(job(JobStatus.RUNNING), ended)
    assert jobs.follow(client, "one") == code
    said = capsys.readouterr().out.splitlines()
    ends = f"job one: {ended.status.lower()}"
    if ended.status != JobStatus.SUCCEEDED:
        ends += ": the same command submits it again and resumes it"
    assert said[:2] == ["the log of one", ends]


@pytest.mark.parametrize(
    ("breaks", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "detached: job one runs on"),
        (RuntimeError("the head is gone"), 1, "lost job one (the head is gone)"),
    ],
)
def test_a_job_that_is_no_longer_followed_runs_on(
    breaks: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = Client(breaks=breaks)
    assert jobs.follow(client, "one") == code
    heard = capsys.readouterr()
    assert said in heard.out + heard.err


def test_a_cluster_without_sweeps_is_said_to_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "jobs_of", nullcontext)
    monkeypatch.setattr(command, "sweep_jobs", lambda client: [])
    assert command.main([]) == 0
    assert capsys.readouterr().out == "the cluster has no jobs that are sweeps\n"


@pytest.mark.parametrize("address", ["HEAD:8265", "auto", "silent"])
def test_an_address_that_is_no_jobs_api_ends_in_a_line(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ANSWER_WITHIN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        if address == "silent":
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
        with pytest.raises(BadInput, match=f"address={address}: must be a cluster's Jobs API"):
            jobs.jobs_of("").__enter__()


class Head:
    """Stands for the client of a head that answers `answers` one after the other to a job."""

    def __init__(self, *answers: str) -> None:
        self._answers, self.jobs = iter(answers), list[str]()

    def list_jobs(self) -> list[Any]:
        return [
            SimpleNamespace(submission_id=job, metadata={"sweep": "main"}, start_time=0)
            for job in self.jobs
        ]

    def submit_job(self, entrypoint: str, submission_id: str, **_: object) -> None:
        if answer := next(self._answers, ""):
            raise RuntimeError(answer)
        self.jobs.append(submission_id)


STARTS = "Request failed with status code 500: Traceback\n  File x\nException: no agent yet\n."


def test_a_head_whose_agent_starts_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "POLL_EVERY", 0.0)
    head: Any = Head(STARTS, STARTS)
    job_id = jobs.submit(head, "main", ["sweep=main"], resubmit=False)
    assert head.jobs == [job_id]
    waits = "waits for the cluster's head, which does not take jobs yet"
    assert capsys.readouterr().out.splitlines() == [waits, f"job {job_id}: submitted"]


@pytest.mark.parametrize("answer", [STARTS, "Request failed with status code 400: no agent yet"])
def test_what_a_head_refuses_is_a_line(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "AGENT_WITHIN", -1.0)
    monkeypatch.setattr(jobs, "_client", lambda where: Head(answer))
    said = r"the cluster at http://head answers with status \d00: .*no agent yet"
    with pytest.raises(Unavailable, match=said) as refused, jobs.jobs_of("http://head") as client:
        jobs.submit(client, "main", ["sweep=main"], resubmit=False)
    assert "\n" not in str(refused.value)


def test_a_job_runs_by_the_interpreter_of_ray_whatever_the_path_has() -> None:
    """This process has imported Ray, as the one has which starts a job."""
    command = f"{jobs.INTERPRETER} -c 'import sys; print(sys.executable)'"
    done = subprocess.run(
        command,
        shell=True,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).samefile(sys.executable)
    assert Path(done.stdout.strip()).parent.parent.samefile(sys.prefix)


# What a job takes along: the code, allowed variables, no key; and paths that all nodes share.

STRAYS = [
    *(".env", ".git/config", ".venv/bin/python", "checkpoint.pt", "data/wiki/manifest.json"),
    *("results/trials/1/result.json", "pipegap/trainer/__pycache__/stage.pyc"),
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


# Keys of the environment are in no file that a sweep leaves, however it ends.

KEYS = new_keys()


@pytest.fixture
def session() -> Iterator[Path]:
    """A folder for Ray's, whose path is short enough for its sockets."""
    folder = Path(mkdtemp(prefix="k-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["folder", "bucket"])
def sweep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallSweep]:
    words = small_sweep.overrides(tmp_path, *LENGTH, "tracking=wandb")
    words = [word for word in words if "results=" not in word]
    if request.param == "folder":
        yield SmallSweep(tmp_path / "store", words)
        return
    request.getfixturevalue("moto_server")
    yield BucketSweep(tmp_path / "store", words, bucket=f"s3://{buckets.BUCKET}")


@pytest.fixture
def environment(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in {**KEYS, "RAY_TMPDIR": str(session), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, key)


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_no_key_is_left_by_a_killed_driver(
    sweep: SmallSweep, session: Path, tmp_path: Path
) -> None:
    """Ray's logs stay."""
    with sweep.start() as driver:
        while sweep.num_updates() < 20:
            assert driver.poll() is None, driver.communicate()
            time.sleep(0.05)
        driver.kill()
    [left] = session.glob("pipegap-ray-*")
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert not leaks(KEYS, session, tmp_path, bucket=sweep.store)
    for process in sweep.processes():
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_no_key_is_left_after_the_end(sweep: SmallSweep, tmp_path: Path) -> None:
    sweep.finish()
    assert not leaks(KEYS, tmp_path, bucket=sweep.store)


@pytest.mark.slow
def test_no_key_is_left_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes, one job that ends and one driver that is killed; Ray's logs stay in both cases."""
    for name, key in {**KEYS, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, key)
    words = [*SWEEP, *small_sweep.overrides(tmp_path, *LENGTH, "tracking=wandb")]
    with head(num_cpus=1, num_others=1) as (environment, files):
        deadline = time.monotonic() + 120
        while len(list(files.glob("session_latest/logs/raylet*.out"))) < 2:
            assert time.monotonic() < deadline, (files / "start.log").read_text()
            time.sleep(0.1)
        submit = [sys.executable, "-m", "pipegap", "submit", *words]
        done = subprocess.run(submit, env=environment, check=False, capture_output=True, text=True)
        assert "completed" in done.stdout, done
        environment["RAY_ADDRESS"] = (files / "ray_current_cluster").read_text()
        killed = SmallSweep(tmp_path / "killed", [w for w in words if "results=" not in w])
        with killed.start(**environment) as driver:
            while killed.num_updates() < 20:
                assert driver.poll() is None, driver.communicate()
                time.sleep(0.05)
            driver.kill()
        assert not leaks(KEYS, files, tmp_path)
