"""What a sweep's first GPU is like, in ten lines, and what to change before the sweep begins."""

from collections.abc import Iterator, Mapping, Sequence

from pipegap.sweeps.plan.devices import Device, device_of
from pipegap.sweeps.plan.sizes import CONTEXT, copied_to_host, in_bytes, while_it_runs
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import some
from pipegap.trainer.base.machine import Machine
from pipegap.trainer.base.nvidia import REASONS, Clocks
from pipegap.trainer.config.names import data_place

SLOW = 0.7
"""The share of the assumed bandwidth below which hours of the plan are too few."""
SMALLEST_SHARED = 2**30
"""Bytes of /dev/shm that NCCL and Ray need to pass messages within a machine."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SLOWING: Mapping[str, Mapping[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": {"1": "unset CUDA_LAUNCH_BLOCKING: the host waits for every kernel"},
    "CUDA_DEVICE_MAX_CONNECTIONS": {
        "1": "unset CUDA_DEVICE_MAX_CONNECTIONS: with 1, messages hold up kernels; ranks take 32"
    },
    "NCCL_P2P_DISABLE": {"1": "unset NCCL_P2P_DISABLE: messages between GPUs go through the host"},
}
"""Variable → value → what to do about it."""
NVLINK = "NV"
"""How the name of a link begins that does not go through the host."""
LOWERING: Mapping[str, str] = {
    REASONS[0x2]: "reset them (nvidia-smi -rac)",
    **dict.fromkeys([REASONS[bit] for bit in (0x8, 0x20, 0x40)], "cool the GPU"),
    REASONS[0x80]: "look at the machine's power supply",
}
"""What lowers a GPU's clocks → what to do about it."""
SIGNS: Mapping[str, str] = {
    "out of memory": "take more pipeline.num_microbatches, or model.activation_checkpointing=true",
    "No space left": "make room where results= lies",
    "NCCL": "look at NCCL's own words with NCCL_DEBUG=INFO, and at its variables above",
}
"""A part of an error's text → what to change."""


def lines(machine: Machine, trial: Trial, num_gpus: float, store: str) -> Iterator[str]:
    """Yield what was found; `num_gpus` are those of the whole cluster."""
    assumed = device_of(trial.config)
    driver = f"NVIDIA {machine.driver}" if machine.driver else "no NVIDIA driver"
    yield f"driver    {driver}; torch {machine.torch}, CUDA {machine.cuda}; on {machine.host}"
    yield f"GPUs      {some(machine.gpus) or 'none'} there; {num_gpus:g} in the cluster"
    yield f"links     {_links(machine)}"
    free = f"{in_bytes(machine.free)} free of {in_bytes(machine.total)}"
    of_host = f"; {in_bytes(machine.host_free)} free of the host" * assumed.is_gpu
    yield f"memory    {free} of {'a GPU' if assumed.is_gpu else 'the host'}{of_host}"
    of_device = f"of a {assumed.name}" + ", mostly of its caches" * (not assumed.is_gpu)
    copied, plan = in_bytes(machine.bytes_per_second), in_bytes(_expected(assumed))
    yield f"bandwidth {copied}/s in a copy; the plan counts with {plan}/s {of_device}"
    yield f"clocks    {_clocks(machine.clocks)}"
    given = ", ".join(f"{name}={value}" for name, value in machine.variables.items())
    yield f"variables {given or 'none set that matter'}"
    shared = "none" if machine.shared is None else f"{in_bytes(machine.shared)} free"
    yield f"/dev/shm  {shared}"
    yield f"disk      {in_bytes(machine.disk)} free at {store}"
    known, place = (trial.plan.data_hash or "not prepared")[:16], data_place(trial.config)
    yield f"data      {place}: {known}; a trial takes {trial.plan.tokens:.3g} tokens"


def _links(machine: Machine) -> str:
    """Return how the node's GPUs are linked."""
    ways = [f"{number} pairs by {way}" for way, number in machine.links.items()]
    return some(ways) or ("none among fewer than two GPUs" if len(machine.gpus) < 2 else "not told")


def _clocks(clocks: Clocks | None) -> str:
    """Return the clocks of a GPU that works, and what lowers them."""
    if clocks is None:
        return "not told: nvidia-smi knows no clocks of this device"
    of_most = f"{clocks.now:.0f} of {clocks.most:.0f} MHz"
    allowed = f"{clocks.watts:.0f} of {clocks.usual_watts:.0f} W allowed"
    return f"{of_most}, {allowed}; lowered by {some(clocks.lowered_by) or 'nothing'}"


def _expected(device: Device) -> float:
    """Return the bytes per second that the plan counts with."""
    return device.bytes * device.achieved["bytes"]


def changes(
    machine: Machine,
    trial: Trial,
    todo: Sequence[Trial],
    needed: int | None,
    gpus_per_trial: float = 1.0,
) -> Iterator[str]:
    """Yield what to change; `needed` is the memory of a device in bytes, None if not known."""
    if needed is not None and needed + CONTEXT > machine.free:
        yield (
            f"free memory: {in_bytes(needed)} are needed beside {in_bytes(CONTEXT)} of libraries. "
            "End other processes, or take more pipeline.num_microbatches"
        )
    at_once = int(len(machine.gpus) / gpus_per_trial)
    if (copied := at_once * copied_to_host(todo)) > machine.host_free:
        yield (
            f"free the host's memory: {at_once} trials side by side take {in_bytes(copied)} of it "
            "if all write checkpoints at once. Or give Ray fewer GPUs of the node"
        )
    assumed = device_of(trial.config)
    if assumed.is_gpu and machine.bytes_per_second < SLOW * _expected(assumed):
        yield (
            "expect a longer sweep than planned: memory is slow. See that nothing else runs "
            "there and that clocks are not capped"
        )
    yield from _of_clocks(machine.clocks)
    yield from _of_variables(machine)
    if trial.plan.num_processes > 1:
        yield from _of_gang(machine)
    written = sum(t.plan.kept_bytes for t in todo) + max(map(while_it_runs, todo))
    if written > machine.disk:
        yield f"make room: the sweep writes {in_bytes(written)}; or choose another results="


def _of_clocks(clocks: Clocks | None) -> Iterator[str]:
    if clocks is None:
        return
    for reason in clocks.lowered_by:
        if (advice := LOWERING.get(reason)) is not None:
            yield f"{advice}: {reason} keeps clocks at {clocks.now:.0f} of {clocks.most:.0f} MHz"
    if clocks.watts < clocks.usual_watts:
        usual = f"{clocks.usual_watts:.0f}"
        yield f"raise the power limit (nvidia-smi -pl {usual}): {clocks.watts:.0f} W of {usual} W"


def _of_gang(machine: Machine) -> Iterator[str]:
    if (machine.shared or 0) < SMALLEST_SHARED:
        yield f"give /dev/shm {in_bytes(SMALLEST_SHARED)} or more (docker run --shm-size=8g)"
    if slow := [way for way in machine.links if not way.startswith(NVLINK)]:
        yield (
            f"expect slower messages than planned: GPUs are linked by {some(slow)}, not by NVLink; "
            "pipedream_2bw hides messages with pipeline.slack=true"
        )


def _of_variables(machine: Machine) -> Iterator[str]:
    given = machine.variables
    if "CUBLAS_WORKSPACE_CONFIG" in given:
        yield "unset CUBLAS_WORKSPACE_CONFIG: it makes every product four times as slow to launch"
    for name, values in SLOWING.items():
        if (advice := values.get(given.get(name, ""))) is not None:
            yield advice
    for name in INTERFACES:
        # NCCL takes prefixes, =NAME for a whole name, and ^NAME for all but one.
        wanted = given.get(name, "").lstrip("=").partition(",")[0]
        if (
            wanted
            and wanted[0] != "^"
            and not any(i.startswith(wanted) for i in machine.interfaces)
        ):
            yield f"correct {name}={given[name]}: there are {', '.join(machine.interfaces)}"


def cause(message: str) -> str:
    """Return what failed in one line, and what to change, from the text of an error."""
    last = (message.strip().splitlines() or ["no message"])[-1]
    for sign, advice in SIGNS.items():
        if sign in message:
            return f"{last}: {advice}"
    return last


def largest(trials: Sequence[Trial]) -> Trial:
    """Return the trial that needs most memory on a rank; of equals, one that corrects a delay."""
    return max(trials, key=lambda t: (t.plan.memory_bytes + t.plan.loss_bytes, t.plan.is_delayed))
