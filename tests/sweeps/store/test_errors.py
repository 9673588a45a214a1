"""A store that does not answer, or refuses: each command says so in a line, and how it ended."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from findings.__main__ import main as findings
from pipegap.analysis.__main__ import main as analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.store import bucket as requests
from pipegap.trainer.store.bucket import BucketClient
from tests.support import moto, small
from tests.support.bucket import URL

Main = Callable[[Sequence[str]], int]
RESULTS = f"results={URL}"


def publish(words: Sequence[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["findings", *words])
        return findings()


COMMANDS: dict[str, tuple[Main, list[str]]] = {
    "report": (analysis, []),
    "figures": (analysis, ["figures"]),
    "advise": (analysis, ["advise", "optimizer=adamw", "stages=2", "microbatches=4"]),
    "list": (sweeps, ["list"]),
    "prune": (sweeps, ["prune", "checkpoints=all"]),
    "rerun": (sweeps, ["rerun", "status=failed"]),
    "overview": (sweeps, ["status"]),
    "publish": (publish, ["publish", "study=momentum"]),
}
OF_SWEEPS = {"run": [], "price": ["dry_run=true"], "status": ["status"]}
FAULTS = {
    "403 AccessDenied": (2, "permission denied (AccessDenied)"),
    "400 ExpiredToken": (2, "permission denied (ExpiredToken)"),
    "500 InternalError": (1, "500 Internal Server Error"),
    "404 NoSuchBucket": (2, "there is no such bucket"),
    "403": (
        2,
        "permission denied (http://127.0.0.1:{port} answers 403 Forbidden: is it the",
    ),
    "404": (1, "http://127.0.0.1:{port} answers 404 Not Found: is it the server of this bucket?"),
    "cut": (1, "http://127.0.0.1:{port} gives no answer (it ended the connection): is it the"),
}
"""What a server does of every request, with a status and a code or by ending the connection → how
a command ends, and says."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A server on loopback that does these things in turn, the last one for ever."""
    left: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer == "cut":
                return
            status, _, code = answer.partition(" ")
            error = f"<Error><Code>{code}</Code></Error>" if code else "of a proxy"
            content = error if status != "200" else code
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(content.encode())

        do_PUT = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        moto.found(monkeypatch, server.server_address[1])
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield left
        server.shutdown()


@pytest.fixture
def asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "NUM_TRIES", 0)


def said_in_a_line(
    name: str,
    results: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> tuple[int, str]:
    """How a command of this `name` ended, and its line on stderr."""
    if name in OF_SWEEPS:
        words = small.overrides(tmp_path_factory.mktemp("small"), "sweep=main", "scale=micro")
        words = [*OF_SWEEPS[name], *(word for word in words if "results=" not in word)]
        code = sweeps([*words, results])
    else:
        main, words = COMMANDS[name]
        code = main([*words, results])
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    assert not printed.out
    return code, printed.err


@pytest.mark.usefixtures("asked_once")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [*COMMANDS, *OF_SWEEPS])
def test_each_command_ends_each_fault_in_a_line(
    name: str,
    fault: str,
    answers: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers.append(fault)
    code, says = FAULTS[fault]
    ended, line = said_in_a_line(name, RESULTS, tmp_path_factory, capsys)
    assert ended == code
    assert f"{RESULTS}: " in line
    assert says.format(port=os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]) in line


@pytest.mark.usefixtures("asked_once")
@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://no.invalid", "failed to lookup"),
    ],
)
def test_a_server_that_nobody_reaches_is_named(
    server: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    moto.found(monkeypatch, 9)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    assert sweeps(["list", RESULTS]) == 1
    line = capsys.readouterr().err
    assert f"{RESULTS}: {server} gives no answer ({why}" in line
    assert line.endswith("AWS_ENDPOINT_URL names it\n")


def test_a_store_that_is_throttled_now_and_then_is_no_trouble(answers: list[str]) -> None:
    answers += ["503 SlowDown", "cut", "500 InternalError", "200 whole"]
    assert BucketClient(URL).read("a").content == b"whole"


@pytest.mark.parametrize("name", [*COMMANDS, *OF_SWEEPS])
def test_each_command_refuses_what_is_no_folder(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path_factory.mktemp("place") / "store"
    place.touch()
    code, line = said_in_a_line(name, f"results={place}", tmp_path_factory, capsys)
    assert (code, f"{place}: must be a folder, not a file" in line) == (2, True), line


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("AWS_ENDPOINT_URL", "nonsense", "AWS_ENDPOINT_URL=nonsense: must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://me:secret@h", "AWS_ENDPOINT_URL=: must be http(s)://HOST"),
        ("AWS_REGION", "a b", "AWS_REGION=a b: must be the name of a region"),
        ("AWS_ACCESS_KEY_ID", "secret\n", "AWS_ACCESS_KEY_ID=: must be one line"),
        ("AWS_SESSION_TOKEN", "secret\n", "AWS_SESSION_TOKEN=: must be one line"),
    ],
)
def test_a_variable_that_would_end_the_library_is_refused(
    variable: str,
    value: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert sweeps(["list", RESULTS]) == 2
    errors = capfd.readouterr().err
    assert (errors.count("\n"), says in errors, "secret" in errors) == (1, True, False)
