"""What is posted of a sweep, once each, and that nothing else depends on it."""

import os
import random
import signal
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster import connection
from pipegap.sweeps.cluster.first_trial import cause, largest
from pipegap.sweeps.cluster.notices import Notices
from pipegap.sweeps.plan.devices import require_room
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request, take_url
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput, Status, Unavailable
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.store.opened import open_store
from tests.support import small_sweep, tracked
from tests.support.processes import python
from tests.support.small_sweep import GANG, LENGTH, SWEEP, SmallSweep, check, disturb
from tests.support.tracked import SECRET, Webhook
from tests.support.trials import leave_finished


@pytest.fixture
def server() -> Iterator[Webhook]:
    with tracked.served() as made:
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


DAMAGE = {"other JSON": b'[]\n{"a": 1}\n12\nnull', "bytes": b'\xff\xfe"x"\0\0'}


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
NO_HOST += ["https://a/ b", "http://a:b/", "http://a:99999/"]


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


# How Ray starts, which trial is tried before a sweep, what is told where one of them fails.

NICENESS = "RAY_worker_niceness"  # a setting, which stays
ROOM = {"CPU": 1.0, "GPU": 1.0}


def trial_of(folder: Path, *words: str) -> Trial:
    config = small_sweep.config(folder, *words)
    config = {**config, "device": "cuda"}  # this machine need not have one
    return Trial("sync", config, plan_trial(config))


def test_an_error_becomes_one_line_with_what_to_change() -> None:
    message = "rank 1 raised:\nTraceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    assert cause(message) == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB: take more "
        "pipeline.num_microbatches, or model.activation_checkpointing=true"
    )
    assert cause("one line") == "one line"


def test_the_largest_trial_is_tried(tmp_path: Path) -> None:
    words = "correction=error_feedback", "pipeline=pipedream_2bw"
    trials = [trial_of(tmp_path), trial_of(tmp_path, *words), trial_of(tmp_path, *words[1:])]
    assert largest(trials) is trials[1]


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        ([{"CPU": 2.0}], "num_threads=2.0: a trial needs 2 CPU, Ray has 1"),
        ([{}, *[{"GPU": 1.0}] * 2], "device=2.0: a trial needs 2 GPU for its 2 ranks, Ray has 1"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(needed: list[dict[str, float]], says: str) -> None:
    require_room([{"CPU": 1.0, "GPU": 1.0}], ROOM)
    with pytest.raises(BadInput) as refused:
        require_room(needed, ROOM)
    assert str(refused.value) == says


@pytest.mark.parametrize("num_failures", [0, 1, 2])
@pytest.mark.parametrize("address", ["", "127.0.0.1:6379"])
def test_ray_is_started_twice_where_it_fails_and_says_so_where_it_is_slow(
    address: str,
    num_failures: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cluster of somebody else is joined once. What says that a cluster exists is unseen in one
    of our own."""
    folders, said = list[str | None](), ""

    def init(**options: Any) -> None:
        nonlocal said
        deadline = time.monotonic() + 60
        while "Ray has not started or answered yet: " not in said:  # from another thread
            assert time.monotonic() < deadline
            said += capsys.readouterr().err
        folders.append(options.get("_temp_dir"))
        assert ("RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ) == bool(address)
        assert (os.environ.get("RAY_OVERRIDE_JOB_RUNTIME_ENV") == "1") == bool(address)
        assert os.environ[NICENESS] == "3"
        if len(folders) <= num_failures:
            raise Exception("The node\ntimed out")  # as Ray does

    for name, value in {
        "RAY_ADDRESS": address,
        "RAY_JOB_CONFIG_JSON_ENV_VAR": "of a job",
        NICENESS: "3",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_OVERRIDE_JOB_RUNTIME_ENV", raising=False)
    monkeypatch.setattr(connection, "SLOW_START", 0.01)
    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    for require in ("_require_listening", "_require_answer"):
        monkeypatch.setattr(connection, require, lambda address: None)
    num_tries = 1 if address else 2
    if num_failures >= num_tries:
        with pytest.raises(
            Unavailable, match=r"Ray does not start or answer .*: The node timed out"
        ):
            connection.cluster().__enter__()
    else:
        with connection.cluster():
            assert os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] == "of a job"
            assert "RAY_OVERRIDE_JOB_RUNTIME_ENV" not in os.environ
    assert len({*folders}) == len(folders) == min(num_tries, num_failures + 1)
    said += capsys.readouterr().err
    again = "Ray did not start (The node timed out): it is started once more\n"
    assert said.count(again) == (len(folders) == 2)


# Whatever is killed at whatever moment: nothing is lost, nothing runs twice, nothing is left.

MATRIX = [
    ("driver", signal.SIGKILL),
    ("driver", signal.SIGTERM),
    ("trial", signal.SIGKILL),
    ("rank", signal.SIGKILL),
    ("raylet", signal.SIGKILL),
]
"""One moment each; `python -m bench.sweep kills` has more."""


@pytest.fixture(scope="module")
def small_words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    words = small_sweep.overrides(tmp_path_factory.mktemp("data"), *LENGTH)
    return tuple(word for word in words if not word.startswith("results="))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], SmallSweep]:
    """The sweep with some words that ran undisturbed."""

    @cache
    def run(words: tuple[str, ...]) -> SmallSweep:
        sweep = SmallSweep(tmp_path_factory.mktemp("whole"), words)
        sweep.finish()
        return sweep

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("target", "how"), MATRIX)
def test_a_sweep_survives(
    target: str,
    how: signal.Signals,
    small_words: tuple[str, ...],
    whole: Callable[[tuple[str, ...]], SmallSweep],
    tmp_path: Path,
) -> None:
    words = (*small_words, *GANG) if target == "rank" else small_words
    undisturbed, sweep = whole(words), SmallSweep(tmp_path, words)
    moment = random.Random(target + how.name).randrange(undisturbed.num_updates())
    is_killed, _ = disturb(sweep, target, how, moment)
    assert is_killed
    sweep.finish()
    check(sweep, undisturbed)
