"""The process that a trial runs in: device, threads, determinism, memory, random streams; and what
the machine offers it."""

import gc
import hashlib
import os
import re
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from pipegap.trainer.base.errors import BadInput

FOR_RANKS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
"""What CUDA reads when it starts, unless the environment has it. Hardware queues, the most there
are: an inner rank has a stream per message group and computes beside, and with CUDA's own 8 a
receive that waits could hold up a kernel. All kernels of torch are loaded at the start: at a
kernel's first launch CUDA would wait for all that run, messages among them."""
SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL's own variable, by which it takes several ranks on one GPU."""
MANY_OBJECTS = 20_000
"""Objects that the garbage collector looks at within a few milliseconds."""
COPIED = {"cuda": 2**30, "cpu": 2**26}
"""Bytes of a copy that is timed, by type of device."""
COPIES = 5


def require_device(name: str) -> torch.device:
    """Returns the torch device `name`. Raises BadInput if this machine has no such device."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", name):
        raise BadInput("device", name, "must be cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        allowed = "no such GPU is visible to torch here: use a GPU machine or device=cpu"
        raise BadInput("device", name, allowed)
    return device


def require_memory(num_bytes: int, device: torch.device) -> None:
    """Raises BadInput if the weights and states of a trial, `num_bytes`, are more than a device
    has. Activations come on top."""
    if device.type == "cuda":
        has = torch.cuda.get_device_properties(device).total_memory
    else:
        has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > has:
        needs = f"{num_bytes / 1e9:,.0f} GB for the weights and states of this model"
        raise BadInput("device", device, f"has {has / 1e9:,.0f} GB, too few: it needs {needs}")


def rank_device(name: str, local_rank: int, num_ranks: int) -> torch.device:
    """The device of process `local_rank` on this machine, of `num_ranks` on all machines.

    `cuda` means one GPU per process, `cuda:N` the same GPU for all. There they take turns: it shows
    that a pipeline is right, not how fast it is. CUDA must not have started in this process, since
    it reads what several ranks need (FOR_RANKS). Raises BadInput for a device that is not here, and
    for one GPU of several ranks where NCCL does not take that.
    """
    if name != "cpu" and num_ranks > 1:
        os.environ.update({**FOR_RANKS, **os.environ})
    if name.startswith("cuda:") and num_ranks > 1 and not ranks_may_share_a_gpu():
        allowed = (
            f"must be cuda, a GPU per rank: for one GPU set {SHARED}=1, with NCCL 2.30 or newer"
        )
        raise BadInput("device", name, allowed)
    return require_device(f"cuda:{local_rank}" if name == "cuda" else name)


def ranks_may_share_a_gpu() -> bool:
    """Whether NCCL was told to take several ranks on one GPU; it raises an error before 2.30.

    torch tells the version that it was built with, not the one that runs.
    """
    return os.environ.get(SHARED) == "1"


def device_name(device: torch.device) -> str:
    """The name of the GPU's model, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextmanager
def reproducible(seed: int, num_threads: int, deterministic: bool = True) -> Iterator[None]:
    """Same seed, same numbers, bitwise on one machine; on a GPU only if `deterministic`.

    At exit the process has its settings and the states of its random generators back.
    CUBLAS_WORKSPACE_CONFIG is not needed since torch gives cuBLAS a workspace of its own, and must
    not be set: torch reads it again for every product, which takes longer than the launch.
    """
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cpu_state = torch.get_rng_state()
    # `torch.random.fork_rng` would start CUDA in a process that does not use it.
    gpu_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(cpu_state)
        if gpu_states is None:  # GPUs that start later have the CPU's seed, as without this
            torch.cuda.manual_seed_all(torch.initial_seed())
        else:
            torch.cuda.set_rng_state_all(gpu_states)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(was_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def reset_peak_memory(device: torch.device) -> None:
    """Sets the peak to what is used now: a process may run several trials, one after the other."""
    gc.collect()
    # What was imported stays: to look at it again would take 0.1 to 0.3 s of each trial. A trial
    # may import more; what else it leaves is little. (To count what is frozen takes 40 ms.)
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.freeze()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # not on this system: the peak is that of the whole process then
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory_bytes(device: torch.device) -> int:
    """The largest memory in use since the last reset: allocated on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        if peak := re.search(r"VmHWM:\s+(\d+) kB", status):
            return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of the global generators that an optimizer may draw from."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restores what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def on_cpu(state: Any) -> Any:
    """Mappings and lists of tensors and plain values, with every tensor in the CPU's memory.

    Tensors that are the same memory, as the master and its newest version may be, are one tensor in
    what is returned. A part of a vector gets memory of its own: a pickle would hold all of the
    vector, once per part.
    """
    copies: dict[tuple[object, ...], torch.Tensor] = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        is_part = tensor.untyped_storage().nbytes() > tensor.nbytes
        if not tensor.is_cuda and not is_part:
            return tensor
        key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        if key not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
        return copies[key]

    return tree_map_only(torch.Tensor, moved, state)


def stream_seed(seed: int, *name: str) -> int:
    """A 63-bit seed for the stream `name` of a trial with `seed`; streams are independent.

    Every random number of a trial is a function of (seed, purpose)."""
    digest = hashlib.sha256("/".join([str(seed), *name]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def stream(seed: int, *name: str) -> torch.Generator:
    """A CPU generator for the stream `name`: its numbers depend on no device."""
    return torch.Generator().manual_seed(stream_seed(seed, *name))


class Machine(NamedTuple):
    """What a process found; memory and disk in bytes.

    `free` and `total` are the memory of the device, `disk` is free where the store lies.
    """

    host: str
    torch: str
    cuda: str | None
    device: str
    free: int
    total: int
    disk: int


def look(device: torch.device, store: Path) -> Machine:
    """Looks at this machine and at one of its devices."""
    is_gpu = device.type == "cuda"
    free, total = _memory(device)
    return Machine(
        host=socket.gethostname(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device=torch.cuda.get_device_name(device) if is_gpu else "the host's cores",
        free=free,
        total=total,
        disk=shutil.disk_usage(store).free,
    )


def _memory(device: torch.device) -> tuple[int, int]:
    """Free and all bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copied_per_second(device: torch.device) -> float:
    """Bytes per second of a copy in the device's memory, read and written ones: a median."""
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return 2 * source.numel() / median(seconds[1:])  # the first copy touches the memory
