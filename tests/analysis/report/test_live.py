"""`python -m analysis serve` follows its store, for this machine alone, and leaves nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from analysis.report import live
from analysis.report.live import HOST, LiveReport, PageServer, state
from tests.support.synthetic_store import config, ids, result, write, write_arms
from trainer.base.errors import BadInput
from trainer.folder.lease import leased

ROOT = Path(__file__).parents[3]
DEADLINE = 300


class Served(NamedTuple):
    store: Path
    place: Path
    report: LiveReport
    address: str


@pytest.fixture(scope="module")
def served(few_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A report that is served, and made again when a test looks at its store."""
    folder = tmp_path_factory.mktemp("live")
    store, place = folder / "results", folder / "place"
    write_arms(store, {"sync": [1.0], "delay": [1.2]})
    place.mkdir()
    report = LiveReport(store, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "SHARE", 1.0)  # no pause between two reports
        report.look()
        with PageServer(report, 0) as server, server.serving():
            yield Served(store, place, report, server.address)


def get(address: str, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return str(answer.read().decode())


def refusal(request: urllib.request.Request) -> int:
    """The status with which it is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=DEADLINE)
    refused.value.close()
    return refused.value.code


def now(address: str) -> dict[str, str]:
    """What a page asks for every few seconds."""
    answer: dict[str, str] = json.loads(get(f"{address}now"))
    return answer


def test_a_new_result_is_a_new_report_and_no_change_is_none(served: Served) -> None:
    num_trials = len(ids(served.store))
    version = int(now(served.address)["version"])
    assert f"{num_trials} trials" in get(served.address)
    assert served.report.look() == "", "nothing changed"
    assert now(served.address)["version"] == str(version)
    settings = config("delay", seed=1)
    write(served.store, settings, result(settings, 1.3))
    assert f"{num_trials + 1} trials" in served.report.look()
    assert now(served.address)["version"] == str(version + 1)
    text = get(served.address)
    assert f"{num_trials + 1} trials" in text
    assert f'data-live="{version + 1}"' in text
    assert [path.name for path in served.place.iterdir()] == [str(version + 1)], "the old is gone"


def test_a_running_trial_is_shown_with_its_newest_update(served: Served) -> None:
    settings = config("delay", seed=2)
    folder = write(served.store, settings, None)
    with leased(folder, lambda: "completed"):
        for update in (3, 4):
            with (folder / "metrics.jsonl").open("a") as file:
                row = {"update": update, "train_loss": 2.5, "tokens_per_second": 1234.5}
                file.write(json.dumps(row) + "\n")
            served.report.look()
            shown = f"<td>{update + 1} of 400</td><td>2.5000</td><td>1,234</td>"
            assert shown in now(served.address)["running"]
            assert f'[{update}, 2.5, "training"]' in get(f"{served.address}trials/00.js")
    served.report.look()
    assert "button" not in now(served.address)["running"]


def test_only_this_machine_may_read_and_nobody_may_write(served: Served) -> None:
    port = served.address.rsplit(":", 1)[1].strip("/")
    for name in (f"localhost:{port}", "localhost", "127.0.0.1"):  # browsers leave out port 80
        assert get(served.address, Host=name)
    for name in (f"elsewhere.org:{port}", "elsewhere.org", "", "localhost:80.elsewhere.org"):
        request = urllib.request.Request(served.address, headers={"Host": name})
        assert refusal(request) == 403
    before = sorted(path for path in served.store.rglob("*"))
    for method in ("POST", "PUT", "DELETE"):
        assert refusal(urllib.request.Request(served.address, data=b"x", method=method)) == 501
    config_file = f"results/trials/{ids(served.store)[0]}/config.json"
    for path in (f"../{config_file}", f"..%2f{config_file}", "trials/zz.js", "trials/"):
        assert refusal(urllib.request.Request(served.address + path)) == 404
    assert sorted(path for path in served.store.rglob("*")) == before
    assert HOST == "127.0.0.1"


def test_a_store_that_cannot_be_read_is_said_and_the_page_stays(served: Served) -> None:
    served.report.look()
    away = served.store.with_name("away")
    served.store.rename(away)
    try:
        served.report.look()
        assert "The store cannot be read: results=" in now(served.address)["problem"]
        assert "trials: " in get(served.address)
    finally:
        away.rename(served.store)
    assert "trials: " in served.report.look()
    assert now(served.address)["problem"] == ""


def test_a_taken_port_is_bad_input(served: Served) -> None:
    port = int(served.address.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(BadInput, match=f"port={port}: is taken"):
        PageServer(served.report, port)


def test_the_command_serves_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    store, temporary = tmp_path / "results", tmp_path / "tmp"
    write(store, config(), None)  # nothing to draw, which takes time
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "analysis", "serve", f"results={store}", "port=0"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)))[0]
        assert "1 trials: 1 unfinished" in get(address)
        assert now(address)["version"] == "1"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert (process.returncode, error) == (0, "")
    assert not [*temporary.iterdir()]
    host, _, port = address.removeprefix("http://").strip("/").partition(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0, "nobody listens any more"


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0]})
    before = state(tmp_path)
    (tmp_path / "trials" / "0000" / "metrics.jsonl").write_text("")
    assert state(tmp_path) == before, "a running trial writes there all the time"
    path = tmp_path / "trials" / "0000" / "result.json"
    os.utime(path, ns=(1, 1))
    assert state(tmp_path) != before
    before = state(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "main-tiny.json").write_text("{}")
    assert state(tmp_path) != before
    assert state(tmp_path / "none") == {}
