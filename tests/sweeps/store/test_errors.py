"""A store that does not answer, or refuses: each command says so in a line, and how it ended."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from findings.__main__ import main as findings
from pipegap.analysis.__main__ import main as analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.store import provider
from tests.support import s3_server, small
from tests.support.stored import URL

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
IN_THE_WAY: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (Path.touch, "must be a folder, not a file"),
}
FAULTS = {
    "403": (2, "permission denied (AccessDenied)"),
    "403 key": (2, "permission denied (InvalidAccessKeyId)"),
    "403 secret": (2, "permission denied (SignatureDoesNotMatch)"),
    "400 token": (2, "permission denied (ExpiredToken)"),
    "500": (1, "500 Internal Server Error"),
    "cut": (1, "error sending request"),
    "no bucket": (2, "there is no such bucket"),
}
PLACES = {"no bucket": "s3://nowhere/store"}


@pytest.fixture(autouse=True)
def asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "NUM_TRIES", 0)


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


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [*COMMANDS, *OF_SWEEPS])
def test_each_command_ends_each_fault_in_a_line(
    name: str,
    fault: str,
    server: s3_server.ServedBucket,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.fault = lambda method, key: fault
    code, says = FAULTS[fault]
    results = f"results={PLACES.get(fault, URL)}"
    ended, line = said_in_a_line(name, results, tmp_path_factory, capsys)
    assert ended == code
    assert f"{results}: " in line
    assert says in line


@pytest.mark.parametrize("name", [*COMMANDS, *OF_SWEEPS])
@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_each_command_refuses_what_is_no_folder(
    kind: str,
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path_factory.mktemp("place") / "store"
    make, says = IN_THE_WAY[kind]
    make(place)
    code, line = said_in_a_line(name, f"results={place}", tmp_path_factory, capsys)
    assert (code, f"{place}: {says}" in line) == (2, True), line


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("AWS_ENDPOINT_URL", "nonsense", "AWS_ENDPOINT_URL=nonsense: must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "", "AWS_ENDPOINT_URL=: must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://", "must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://h:99999", "must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://me:secret@h", "AWS_ENDPOINT_URL=: must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://h/ä", "AWS_ENDPOINT_URL=: must be one line of ASCII"),
        ("AWS_ENDPOINT_URL", "http://h/<", "must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1.1:9", "must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://[:]", "must be http(s)://HOST"),
        ("AWS_ENDPOINT_URL", "http://xn--a", "must be http(s)://HOST"),
        ("AWS_REGION", "a b", "AWS_REGION=a b: must be the name of a region"),
        ("AWS_SESSION_TOKEN", "secretä", "AWS_SESSION_TOKEN=: must be one line"),
        ("AWS_ACCESS_KEY_ID", "secret\n", "AWS_ACCESS_KEY_ID=: must be one line"),
        ("AWS_SESSION_TOKEN", "secret\n", "AWS_SESSION_TOKEN=: must be one line"),
    ],
)
def test_a_variable_that_would_end_the_library_is_refused(
    variable: str,
    value: str,
    says: str,
    server: s3_server.ServedBucket,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert sweeps(["list", RESULTS]) == 2
    errors = capfd.readouterr().err
    assert (errors.count("\n"), says in errors, "secret" in errors) == (1, True, False)
