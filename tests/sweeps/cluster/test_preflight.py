"""How Ray starts, which trial is tried before a sweep, what is told where one of them fails."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.cluster import connection
from pipegap.sweeps.cluster.first_trial import cause, largest
from pipegap.sweeps.plan.devices import require_room
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput, Unavailable
from pipegap.trainer.config.plan import plan_trial
from tests.support import small

NICENESS = "RAY_worker_niceness"  # a setting, which stays
ROOM = {"CPU": 1.0, "GPU": 1.0}


def trial_of(folder: Path, *words: str) -> Trial:
    config = small.config(folder, *words)
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
    for check in ("_require_listening", "_require_answer"):
        monkeypatch.setattr(connection, check, lambda address: None)
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
