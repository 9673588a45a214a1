"""The two ceilings of the device: matrix products in bf16, and bytes of its memory."""

from __future__ import annotations

from statistics import median

import torch

from bench.gpu.device import timed, warmed
from bench.gpu.setting import Setting

WIDTH = 8192
BYTES = 4 * 2**30
ON_A_CPU = 64
"""How many times narrower the product and smaller the copy are in a dry run."""


def ceilings(setting: Setting) -> dict[str, float]:
    """FLOP/s of a square product in bf16, and bytes/s of a copy: read and written ones."""
    shrink = 1 if setting.device.type == "cuda" else ON_A_CPU
    width, size = WIDTH // shrink, BYTES // shrink**2
    one, other = (
        torch.randn(width, width, device=setting.device, dtype=torch.bfloat16) for _ in range(2)
    )
    source = torch.randint(0, 255, (size,), device=setting.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    steps = {
        "product": lambda: [one @ other for _ in range(10)],
        "copy": lambda: [target.copy_(source) for _ in range(10)],
    }
    ready = {name: warmed(step, setting.device) for name, step in steps.items()}
    times = timed(ready, 3 * setting.rounds, setting.device)
    seconds = {name: median(of) for name, of in times.items()}
    return {
        "flops_per_second": 10 * 2 * width**3 / seconds["product"],
        "bytes_per_second": 10 * 2 * size / seconds["copy"],
    }
