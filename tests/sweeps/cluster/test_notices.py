"""What is posted of a sweep, once each, and that nothing else depends on it."""

import json
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster.notices import Notices
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request, take_url
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import Status
from pipegap.trainer.store.opened import open_store
from tests.support.records import leave_finished
from tests.support.small_sweep import SWEEP

SECRET = "T0ken-of-a-webhook"


@dataclass
class Server:
    """A webhook of a chat, which answers with `status`."""

    url: str = ""
    status: int = 200
    posts: list[dict[str, Any]] = field(default_factory=list)
    logins: set[str | None] = field(default_factory=set)

    def kinds(self) -> list[str]:
        return [post["kind"] for post in self.posts]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if made.status == 200:
                made.posts.append(body)
            made.logins.add(self.headers["Authorization"])
            self.send_response(made.status)
            self.send_header("Location", "/")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{http.server_port}/services/{SECRET}"
        yield made
        http.shutdown()


def at(folder: Path, *words: str) -> Round:
    """A sweep of adamw: sync, delay and delay with Error Feedback, as the store has them now."""
    request = parse_request([*SWEEP, "advice=null", f"results={folder}", *words])
    return Round.first(request, open_store(str(folder)))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_kind_is_posted_at_once_and_then_in_one(tmp_path: Path, server: Server) -> None:
    now = at(tmp_path, "fail_fast=3")
    with Notices(server.url, now, every=3600) as ends:
        ends("a", "adamw sync", Status.COMPLETED, "", 0.1)
        ends("b", "adamw delay", Status.FAILED, "ValueError: no matrix\nrow 3", 0.2)
        ends("c", "muon delay", Status.DIVERGED, "", 0.6)
        until(lambda: {*server.kinds()} == {"failed", "diverged", "half"})
        ends("d", "soap delay", Status.FAILED, "KeyError: 'x'", 0.7)
        ends("b", "adamw delay", Status.FAILED, "ValueError: no matrix\nrow 3", 0.7)
        assert not ends.has_failed()
        ends.end(now, stopped=False, has_run=True)
    assert len(server.posts) == 4
    [failed] = [post for post in server.posts if post["kind"] == "failed"]
    assert failed == {
        "text": "pipegap main-micro: b adamw delay failed: ValueError: no matrix",
        "kind": "failed",
        "sweep": "main-micro",
        "store": str(tmp_path),
        "lines": ["b adamw delay failed: ValueError: no matrix"],
    }
    assert server.posts[-1]["kind"] == "ended"
    assert server.posts[-1]["lines"] == ["d soap delay failed: KeyError: 'x'", "ended: 3 waiting"]


def test_the_next_driver_tells_what_a_killed_one_did_not(tmp_path: Path, server: Server) -> None:
    sync, delay, feedback = at(tmp_path).planned
    leave_finished(sync.folder, sync.config)
    leave_finished(delay.folder, delay.config, status="diverged", final_val_loss=None)
    failed = {"status": "failed", "error": "OSError: disk", "final_val_loss": None}
    leave_finished(feedback.folder, feedback.config, **failed)
    with Notices(server.url, at(tmp_path)) as ends:  # it delivered one, and was killed
        ends(feedback.trial_id, feedback.name, Status.FAILED, "OSError: disk", 0)
        until(lambda: bool(server.posts))
    path = tmp_path / "sweeps" / "told.jsonl"
    path.write_text(path.read_text() + '\n"half of a li')
    for _ in range(2):
        with Notices(server.url, (now := at(tmp_path))) as notices:
            notices.end(now, stopped=False, has_run=False)
    assert [line for post in server.posts for line in post["lines"]] == [
        f"{feedback.trial_id} {feedback.name} failed: OSError: disk",
        f"{delay.trial_id} {delay.name} diverged",
        "ended: 1 completed, 1 diverged, 1 failed",
    ]


@pytest.mark.parametrize("status", [302, 404])
def test_a_dead_server_costs_a_warning(
    status: int, tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it did not take is told when it lives again. A page elsewhere has taken nothing."""
    now, server.status = at(tmp_path), status
    with Notices(server.url, now, every=0.1) as notices:
        notices.tell("failed", "failed a", "a failed")
        notices.end(now, stopped=True, has_run=True)
    error = capsys.readouterr().err
    assert error.startswith(f"warning: notices: HTTPError {status}: ")
    assert error.count("\n") == 1
    assert SECRET not in error
    server.status = 200
    with Notices(server.url, now) as notices:
        notices.tell("failed", "failed a", "a failed")
    assert server.kinds() == ["failed"]


def test_an_error_after_the_end_is_told_with_it(tmp_path: Path, server: Server) -> None:
    def fails(now: Round) -> None:
        with Notices(server.url, now) as notices:
            notices.end(now, stopped=False, has_run=True)
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fails(at(tmp_path))
    assert [post["lines"] for post in server.posts] == [
        ["ended: 3 waiting", "stopped: OSError: disk"]
    ]


def test_a_user_and_a_password_are_no_part_of_the_host(tmp_path: Path, server: Server) -> None:
    url = server.url.replace("http://", "http://me:p%40ss@")
    for title in (
        "main-micro",
        "other",
    ):  # of another sweep with the same trials the end is told too
        with Notices(url, now := at(tmp_path)) as notices:
            notices.title = title
            notices.end(now, stopped=False, has_run=False)
    assert [post["sweep"] for post in server.posts] == ["main-micro", "other"]
    assert server.logins == {f"Basic {b64encode(b'me:p@ss').decode()}"}


@pytest.mark.parametrize("url", ["http://[::1]:8080/x", "HTTPS://a.b/%20", "http://u@a:1", ""])
def test_what_is_a_url_is_taken(url: str) -> None:
    assert take_url([f"notify={url}", "sweep=main"]) == (url, ["sweep=main"])


NO_HOST = ["hooks.slack.com/x", "ftp://a/b", "https:///x", "http://[::1/x", "http://[z]/", "ü"]
NO_HOST += ["https://a/ b", "http://a:b/", "http://a:99999/", "http://a..b/", f"http://{'a' * 64}/"]


@pytest.mark.parametrize("url", NO_HOST)
def test_what_is_no_url_is_refused_without_it(url: str) -> None:
    with pytest.raises(BadInput, match=r"must be a URL") as refused:
        take_url([f"notify={url}", "sweep=main"])
    assert url not in str(refused.value)


def test_a_job_of_ray_does_not_carry_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "sweep=main", f"notify=http://a/{SECRET}"]) == 2
    error = capsys.readouterr().err
    assert "set PIPEGAP_NOTIFY where ray start runs" in error
    assert SECRET not in error
    assert SECRET not in str(parse_request([*SWEEP, f"notify=http://a/{SECRET}"]))


def test_a_failing_sweep_stops_tells_of_it_and_keeps_the_url(
    tmp_path: Path, server: Server
) -> None:
    """Its URL is in no list of processes, and in no file or output."""
    words = [*SWEEP, "advice=null", f"results={tmp_path}"]
    for trial in at(tmp_path).planned:
        (trial.folder / "metrics.jsonl").mkdir(parents=True)  # so that it cannot write its rows
    command = [sys.executable, "-m", "pipegap", "sweep", *words]
    with subprocess.Popen(
        [*command, "fail_fast=1", f"notify={server.url}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        until((tmp_path / "sweeps").exists)
        assert SECRET not in Path(f"/proc/{driver.pid}/cmdline").read_text()
        printed, _ = driver.communicate(timeout=300)
    assert driver.returncode == 1, printed
    assert "stopped by fail_fast=1" in printed
    assert " failed: file=" in printed
    assert [*{*server.kinds()}] != []
    assert server.kinds()[-1] == "stopped"
    told = "\n".join(line for post in server.posts for line in post["lines"])
    assert "metrics.jsonl" in told
    assert SECRET not in printed
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in _text(path)]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")
