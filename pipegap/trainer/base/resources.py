"""The process that a trial runs in: device, threads, determinism, memory, random streams; and the
machine's memory and speed."""

import gc
import hashlib
import os
import platform
import re
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from pipegap.trainer.base.errors import BadInput

FOR_RANKS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
"""Variables that CUDA reads when it starts, unless the environment sets them. 32 hardware queues,
the most there are: an inner rank has a stream per message group besides its computation, and with
CUDA's own 8 a waiting receive could block a kernel. All kernels of torch are loaded at the start:
at a kernel's first launch CUDA would wait for all running kernels, messages among them."""
SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL's own variable, which lets several ranks share one GPU."""
MANY_OBJECTS = 20_000
"""So many objects the garbage collector traverses within a few milliseconds."""
COPIED = {"cuda": 2**30, "cpu": 2**26}
"""Type of device → bytes of a copy that is timed."""
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
    """Raises BadInput if the weights and states of a trial, `num_bytes`, do not fit on a device.
    Activations come on top."""
    if device.type == "cuda":
        has = torch.cuda.get_device_properties(device).total_memory
    else:
        has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > has:
        needs = f"{num_bytes / 1e9:,.0f} GB for the weights and states of this model"
        raise BadInput("device", device, f"has {has / 1e9:,.0f} GB, too few: it needs {needs}")


def rank_device(name: str, local_rank: int, num_ranks: int) -> torch.device:
    """The device of process `local_rank` on this machine, of `num_ranks` on all machines.

    `cuda` means one GPU per process, `cuda:N` the same GPU for all. Processes that share a GPU take
    turns: they show that a pipeline is right, not how fast it is. CUDA must not have started in
    this process, since it reads FOR_RANKS at its start. Raises BadInput for a device that is not
    here, and for a shared GPU where NCCL does not allow it.
    """
    if name != "cpu" and num_ranks > 1:
        os.environ.update({**FOR_RANKS, **os.environ})  # the user's own values win
    if name.startswith("cuda:") and num_ranks > 1 and not ranks_may_share_a_gpu():
        fix = f"for one GPU set {SHARED}=1, with NCCL 2.30 or newer"
        raise BadInput("device", name, f"must be cuda, a GPU per rank: {fix}")
    return require_device(f"cuda:{local_rank}" if name == "cuda" else name)


def ranks_may_share_a_gpu() -> bool:
    """Whether NCCL was told to take several ranks on one GPU; before 2.30 it raises an error."""
    # By the variable alone: torch tells the NCCL that it was built with, not the one that runs.
    return os.environ.get(SHARED) == "1"


def device_name(device: torch.device) -> str:
    """The name of the GPU's model, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@cache
def processor_name() -> str:
    """The kind of this machine's processor: its model, family and number, as far as Linux says
    them, and the vectors for which torch chooses its kernels. Two machines of one kind give the
    same bits."""
    values = dict[str, str]()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            values.setdefault(key.strip(), value.strip())  # of the first core
    of_model = [values.get("model name", platform.machine())]
    # Virtual machines hide the name: family and number still tell generations apart.
    of_model += [f"{key} {values[key]}" for key in ("cpu family", "model") if key in values]
    return ", ".join([*of_model, torch.backends.cpu.get_cpu_capability()])


@contextmanager
def reproducible(seed: int, num_threads: int, deterministic: bool = True) -> Iterator[None]:
    """A context in which one seed gives the same bits on one machine, on a GPU if `deterministic`.

    At its end the process has its settings and the states of its random generators back.
    """
    # CUBLAS_WORKSPACE_CONFIG is not needed, since torch gives cuBLAS a workspace of its own, and
    # must not be set: torch reads it again for every product, which takes longer than the launch.
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cpu_state = torch.get_rng_state()
    # `torch.random.fork_rng` would start CUDA in a process that does not use it.
    gpu_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(deterministic)
    # On by default in deterministic mode, it would fill every new tensor with NaN: a pass each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(cpu_state)
        if gpu_states is None:  # GPUs that start later get the CPU's seed, as before the context
            torch.cuda.manual_seed_all(torch.initial_seed())
        else:
            torch.cuda.set_rng_state_all(gpu_states)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(was_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def reset_peak_memory(device: torch.device) -> None:
    """Sets the peak to the memory in use: a process may run several trials one after the other."""
    gc.collect()
    # Imported modules stay alive: to traverse their objects again would take 0.1 to 0.3 s of each
    # trial, so they are frozen, and again after a trial has imported more. What else a trial
    # leaves is little.
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.freeze()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # 5 resets VmHWM. Where the system has no such file, the peak is that of the whole process.
        with suppress(OSError):
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

    Tensors in the same memory, as the master and its newest version may be, become one tensor. A
    part of a vector gets its own memory: a pickle would hold all of the vector, once per part.
    """
    copies: dict[tuple[object, ...], torch.Tensor] = {}

    def on_host(tensor: torch.Tensor) -> torch.Tensor:
        is_part = tensor.untyped_storage().nbytes() > tensor.nbytes
        if not tensor.is_cuda and not is_part:
            return tensor  # not a copy
        key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        if key not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
        return copies[key]

    return tree_map_only(torch.Tensor, on_host, state)


def stream_seed(seed: int, *name: str) -> int:
    """A 63-bit seed for the stream `name` of a trial with `seed`; streams are independent.

    Every random number of a trial is a function of its seed and of the name of its stream.
    """
    digest = hashlib.sha256("/".join([str(seed), *name]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def stream(seed: int, *name: str) -> torch.Generator:
    """A CPU generator for the stream `name`: its numbers depend on no device."""
    return torch.Generator().manual_seed(stream_seed(seed, *name))


class Machine(NamedTuple):
    """A machine as a process sees it; memory and disk in bytes.

    `free` and `total` are the memory of the device, `disk` is the free space where the store lies.
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
    if device.type == "cuda":
        name, (free, total) = torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)
    else:
        name, page = "the host's cores", os.sysconf("SC_PAGE_SIZE")
        free, total = (os.sysconf(f"SC_{which}_PAGES") * page for which in ("AVPHYS", "PHYS"))
    return Machine(
        host=socket.gethostname(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device=name,
        free=free,
        total=total,
        disk=shutil.disk_usage(store).free,
    )


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copied_per_second(device: torch.device) -> float:
    """The median bytes per second, read plus written, of copies in the device's memory."""
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
