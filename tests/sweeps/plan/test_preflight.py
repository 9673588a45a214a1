"""What a preflight says of a machine, and what it tells people to change."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pipegap.sweeps.plan import preflight
from pipegap.sweeps.plan.devices import known_devices
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.machine import Machine, look
from pipegap.trainer.base.nvidia import Clocks
from pipegap.trainer.config.plan import plan_trial
from tests.support import small

GB = 10**9
FAST = known_devices()["H100"].bytes
SOUND = Machine(
    host="node",
    torch="2.13.0",
    cuda="13.0",
    driver="580.65",
    gpus=["NVIDIA H100 80GB HBM3"] * 8,
    links={"NV18": 28},
    free=79 * GB,
    total=80 * GB,
    host_free=900 * GB,
    bytes_per_second=0.9 * FAST,
    clocks=Clocks(1980, 1980, 700, 700, []),
    variables={},
    interfaces=["lo", "eth0"],
    shared=64 * GB,
    disk=100 * GB,
)
GANG = ("runner=pipelined", "pipeline.num_stages=2")
SET = "clocks that were set for applications"
OF_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_P2P_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "ib0",
    "NCCL_SOCKET_IFNAME": "=ib0",
}
HARMLESS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "NCCL_SOCKET_IFNAME": "=eth0",
    "GLOO_SOCKET_IFNAME": "eth",
    "NCCL_P2P_DISABLE": "0",
}


def trial_of(folder: Path, *words: str) -> Trial:
    config = small.config(folder, *words)
    config = {**config, "device": "cuda"}  # this machine need not have one
    return Trial("sync", config, plan_trial(config))


def changes(folder: Path, machine: Machine, *words: str, needed: int = 30 * GB) -> Sequence[str]:
    trial = trial_of(folder, *words)
    return [*preflight.changes(machine, trial, [trial], needed)]


def test_a_sound_machine_needs_no_change_and_ten_lines(tmp_path: Path) -> None:
    assert changes(tmp_path, SOUND._replace(variables=HARMLESS)) == []
    lines = [*preflight.lines(SOUND, trial_of(tmp_path), 8, "results")]
    assert [line.split()[0] for line in lines] == [
        *("driver", "GPUs", "links", "memory", "bandwidth", "clocks"),
        *("variables", "/dev/shm", "disk", "data"),
    ]
    assert lines[2] == "links     28 pairs by NV18"
    assert lines[3] == "memory    79 GB free of 80 GB of a GPU; 900 GB free of the host"
    assert "3.02 TB/s in a copy; the plan counts with 3.02 TB/s of a H100" in lines[4]
    assert lines[5] == "clocks    1980 of 1980 MHz, 700 of 700 W allowed; lowered by nothing"
    untold = SOUND._replace(links={}, clocks=None)
    assert changes(tmp_path, untold) == []
    told = [*preflight.lines(untold, trial_of(tmp_path), 8, "results")]
    assert told[2] == "links     not told"
    assert told[5] == "clocks    not told: nvidia-smi knows no clocks of this device"


@pytest.mark.parametrize(
    ("key", "value", "words", "told"),
    [
        ("free", 20 * GB, (), "free memory: 30 GB"),
        ("bytes_per_second", 0.5 * FAST, (), "memory is slow"),
        ("disk", 1000, (), "make room"),
        ("host_free", 10_000, (), "free the host's memory: 8 trials side by side take "),
        ("clocks", Clocks(1095, 1980, 700, 700, ["heat"]), (), "cool the GPU: heat keeps clocks"),
        ("clocks", Clocks(1395, 1980, 700, 700, [SET]), (), "reset them (nvidia-smi -rac): "),
        ("clocks", Clocks(1980, 1980, 500, 700, []), (), "nvidia-smi -pl 700): 500 W of 700 W"),
        ("links", {"SYS": 1}, GANG, "GPUs are linked by SYS, not by NVLink"),
        ("shared", 2**26, GANG, "give /dev/shm 1.07 GB"),
    ],
)
def test_each_lack_is_told(
    tmp_path: Path, key: str, value: object, words: Sequence[str], told: str
) -> None:
    assert changes(tmp_path, SOUND, *words) == []
    [change] = changes(tmp_path, SOUND._replace(**{key: value}), *words)
    assert told in change


@pytest.mark.parametrize("name", OF_VARIABLES)
def test_each_variable_that_harms_is_told(tmp_path: Path, name: str) -> None:
    [change] = changes(tmp_path, SOUND._replace(variables={name: OF_VARIABLES[name]}))
    assert name in change


def test_an_error_becomes_one_line_with_what_to_change() -> None:
    message = "rank 1 raised:\nTraceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    assert preflight.cause(message) == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB: take more "
        "pipeline.num_microbatches, or model.activation_checkpointing=true"
    )
    assert preflight.cause("one line") == "one line"


def test_a_machine_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "580.65, NVIDIA H100"\necho "580.65, NVIDIA H100"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth0")
    machine = look(torch.device("cpu"), tmp_path)
    assert (machine.driver, machine.gpus) == ("580.65", ["NVIDIA H100"] * 2)
    assert 0 < machine.free <= machine.total
    assert 0 < machine.host_free <= machine.total
    assert machine.bytes_per_second > 0
    assert machine.variables["NCCL_SOCKET_IFNAME"] == "=eth0"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert look(torch.device("cpu"), tmp_path).driver is None


def test_the_largest_trial_is_tried(tmp_path: Path) -> None:
    words = "correction=error_feedback", "pipeline=pipedream_2bw"
    trials = [trial_of(tmp_path), trial_of(tmp_path, *words), trial_of(tmp_path, *words[1:])]
    assert preflight.largest(trials) is trials[1]


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipegap.trainer.base.machine.LIMITS", tmp_path)
    without = look(torch.device("cpu"), tmp_path).host_free
    assert without > 10_000
    for name, text in {
        "memory.max": "9000\n",
        "memory.current": "5000\n",
        "memory.stat": "anon 2000\ninactive_file 3000\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert look(torch.device("cpu"), tmp_path).host_free == 7000
    (tmp_path / "memory.max").write_text("max\n")
    assert look(torch.device("cpu"), tmp_path).host_free > 10_000
