"""Following a job: its log, its end, and the exit code that scripts read."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.job_submission import JobStatus

from pipegap.sweeps.cluster import jobs
from pipegap.sweeps.commands import jobs as command
from pipegap.trainer.base.errors import BadInput, Unavailable


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
