"""What a core of this machine reaches: measured in a second, once per machine and version of torch.

Trials reach shares of what plain loops of torch do, which were fitted to trials of `tiny` and
`few_updates` on one core of a Zen 4 (bench/README.md).
"""

import json
import platform
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from typing import NamedTuple

from pipegap.trainer.base.atomic import write_json
from pipegap.trainer.base.places import cache_folder

SECONDS = 0.25
"""How long each of the four loops is measured."""
SIDE, IN_CACHE, CALLS = 256, 2**18, 100
"""Rows of a product, numbers of a sum that stays in a cache, and calls of one small operation."""


class Rates(NamedTuple):
    """FLOP/s of products by dtype, bytes/s of sums in a cache, seconds of a small operation."""

    products: Mapping[str, float]
    bytes: float
    operation: float


class Shares(NamedTuple):
    """What a trial reaches of `Rates`; a layer and microbatch take so many `operations`."""

    products: float
    attention: Mapping[str, float]
    bytes: float
    operations: float


PLAIN = Shares(0.8, {"float32": 0.28, "bfloat16": 0.11}, 0.65, 2000)
COMPILED = Shares(0.97, {"float32": 0.22, "bfloat16": 0.12}, 0.2, 200)
"""With `compile=update`."""


@cache
def measured() -> Rates:
    """The rates of one core of this machine, from the cache folder if they are there."""
    import torch

    machine = f"{socket.gethostname()} {platform.processor()} {_model()} {torch.__version__}"
    path = cache_folder() / f"rates-{sha256(machine.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, TypeError):
        return Rates(**json.loads(path.read_text("utf-8")))
    rates = measure()
    with suppress(OSError):  # it is measured again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rates._asdict())
    return rates


def measure() -> Rates:
    """Measures for about a second. The fastest of many calls counts: others may use the core."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        products = {}
        for dtype in (torch.float32, torch.bfloat16):
            matrix, out = torch.ones(SIDE, SIDE, dtype=dtype), torch.empty(SIDE, SIDE, dtype=dtype)
            seconds = _fastest(partial(torch.mm, matrix, matrix, out=out))
            products[str(dtype).removeprefix("torch.")] = 2 * SIDE**3 / seconds
        one, other, total = torch.ones(3, IN_CACHE)
        moved = 3 * IN_CACHE * one.itemsize
        in_cache = moved / _fastest(lambda: torch.add(one, other, out=total))
        small = torch.zeros(16)
        calls = _fastest(lambda: [small.add_(small) for _ in range(CALLS)])
        return Rates(products, in_cache, calls / CALLS)
    finally:
        torch.set_num_threads(num_threads)


def _fastest(call: Callable[[], object]) -> float:
    call()
    end, fastest = time.perf_counter() + SECONDS, float("inf")
    while (start := time.perf_counter()) < end:
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def _model() -> str:
    """The name of the processor, where Linux says it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line for line in file if line.startswith("model name")), "")
    return ""
