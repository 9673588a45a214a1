"""What is posted of a sweep, once each, and that nothing else depends on it."""

import os
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster.notices import Notices
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request, take_url
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import Status
from pipegap.trainer.store.opened import open_store
from tests.support import webhook
from tests.support.processes import python
from tests.support.records import leave_finished
from tests.support.small_sweep import SWEEP
from tests.support.webhook import SECRET, Webhook


@pytest.fixture
def server() -> Iterator[Webhook]:
    with webhook.served() as made:
        yield made


def at(folder: Path, *words: str) -> Round:
    """A sweep of adamw: sync, delay and delay with Error Feedback, as the store has them now."""
    request = parse_request([*SWEEP, "advice=null", f"results={folder}", *words])
    return Round.first(request, open_store(str(folder)))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_kind_is_posted_at_once_and_then_in_one(tmp_path: Path, server: Webhook) -> None:
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


def test_the_next_driver_tells_what_a_killed_one_did_not(tmp_path: Path, server: Webhook) -> None:
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
    status: int, tmp_path: Path, server: Webhook, capsys: pytest.CaptureFixture[str]
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


@pytest.mark.parametrize("is_quick", [True, False])
def test_at_the_end_all_is_told_at_once(is_quick: bool, tmp_path: Path, server: Webhook) -> None:
    """Also what came within the minute of its kind, whether the report takes long or not."""
    now = at(tmp_path)
    with Notices(server.url, now, every=3600) as ends:
        ends("a", "adamw delay", Status.FAILED, "KeyError: 'a'", 0.1)
        until(lambda: bool(server.posts))
        ends("b", "muon delay", Status.FAILED, "KeyError: 'b'", 0.2)
        ends.end(now, stopped=False, has_run=True)
        if not is_quick:
            until(lambda: len(server.posts) == 2)
            assert server.posts[1]["lines"] == [
                "b muon delay failed: KeyError: 'b'",
                "ended: 3 waiting",
            ]
        ends("c", "soap delay", Status.FAILED, "KeyError: 'c'", 0.3)
    told = [line for post in server.posts for line in post["lines"]]
    failed = [f"{name} delay failed: KeyError" for name in ("a adamw", "b muon", "c soap")]
    assert [line.partition(": '")[0] for line in told if "failed" in line] == failed
    assert told.count("ended: 3 waiting") == 1


def test_a_text_is_never_longer_than_a_server_takes(tmp_path: Path, server: Webhook) -> None:
    """However many trials fail, for reasons however long; it says how the sweep ended."""
    now = at(tmp_path)
    with Notices(server.url, now, every=3600) as ends:
        ends.title = "a sweep, " * 400
        for number in range(40):
            ends(f"{number:016x}", f"muon seed={number}", Status.FAILED, "E: " + "x" * 9000, 0.1)
        ends.end(now, stopped=True, has_run=True)
    *_, last = server.posts
    assert last["kind"] == "stopped"
    assert last["lines"][-1] == "stopped: 3 waiting"
    assert [post["kind"] for post in server.posts if len(post["text"]) > 2000] == []
    shown = sum("failed: E: x" in line for post in server.posts for line in post["lines"])
    more = [
        int(line.split()[1]) for post in server.posts for line in post["lines"] if "more" in line
    ]
    assert shown + sum(more) == 40
    keys = (tmp_path / "sweeps" / "told.jsonl").read_text().split("\n")
    assert len([key for key in keys if key.startswith('"failed ')]) == 40


DAMAGE = {
    "other JSON": b'[]\n{"a": 1}\n12\nnull',
    "bytes": b'\xff\xfe"x"\0\0',
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_list_of_what_was_told_ends_no_sweep(
    kind: str, tmp_path: Path, server: Webhook, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can be read of it counts."""
    now, path = at(tmp_path), tmp_path / "sweeps" / "told.jsonl"
    path.parent.mkdir()
    path.write_bytes(DAMAGE[kind] + b'\n"failed a"\n')
    with Notices(server.url, now) as notices:
        notices.tell("failed", "failed a", "a failed")
        notices.tell("failed", "failed b", "b failed")
    assert [line for post in server.posts for line in post["lines"]] == ["b failed"]
    assert not capsys.readouterr().err


def test_an_error_after_the_end_is_told_with_it(tmp_path: Path, server: Webhook) -> None:
    def fails(now: Round) -> None:
        with Notices(server.url, now) as notices:
            notices.end(now, stopped=False, has_run=True)
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fails(at(tmp_path))
    assert [post["lines"] for post in server.posts] == [
        ["ended: 3 waiting", "stopped: OSError: disk"]
    ]


def test_a_user_and_a_password_are_no_part_of_the_host(tmp_path: Path, server: Webhook) -> None:
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
NO_HOST += [
    "https://a/ b",
    "http://a:b/",
    "http://a:99999/",
]


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


@pytest.mark.parametrize("by_word", [True, False])
@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_no_other_process_can_read_it(by_word: bool, flags: list[str]) -> None:
    """The command begins anew, and finds modules as before."""
    url = f"http://a/{SECRET}"
    environment = {**os.environ, **({} if by_word else {"PIPEGAP_NOTIFY": url})}
    words = ["sweep=main", *([f"notify={url}"] if by_word else []), "seeds=[0]"]
    done = python(*flags, "-c", TAKES, *words, env=environment)
    assert done.stdout.splitlines() == [
        str((url, ["sweep=main", "seeds=[0]"])),
        f"{bool(flags)} False",
    ], done.stderr


TAKES = r"""
import os, sys
from pathlib import Path
os.environ["PYTHONSAFEPATH"] = "1"  # as `pipegap` does
from pipegap.sweeps.request.command_line import take_url
url, words = take_url(sys.argv[1:])
print((url, words))
seen = Path("/proc/self/cmdline").read_text() + Path("/proc/self/environ").read_text()
print(bool(sys.flags.safe_path), url in seen)
"""
