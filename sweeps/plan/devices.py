"""How fast devices are: the rates in devices.yaml, and what work takes at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from trainer.config.step import Work

TABLE = Path(__file__).with_name("devices.yaml")
CORE = "core"


@dataclass(frozen=True)
class Device:
    """Peak rates per second, the share of each that trials achieve, and the seconds of the host per
    layer and microbatch. By dtype: the peak of products, and the share of it in attention.
    """

    name: str
    products: Mapping[str, float]
    bytes: float
    link: float
    achieved: Mapping[str, float]
    attention: Mapping[str, float]
    host: float

    @property
    def is_gpu(self) -> bool:
        """Whether the host works while the device does."""
        return self.name != CORE

    def seconds(self, parts: Iterable[Work], dtype: str) -> float:
        """What kernels of these works take, one after the other, in `dtype`."""
        peak, share = self.products[dtype], self.achieved
        return sum(
            work.products / (peak * share["products"])
            + work.attention / (peak * self.attention[dtype])
            + work.bytes / (self.bytes * share["bytes"])
            for work in parts
        )

    def transfer(self, num_bytes: float) -> float:
        """Seconds until so many bytes are at another rank."""
        return num_bytes / (self.link * self.achieved["link"])

    def with_host(self, kernels: float, launches: float) -> float:
        """Seconds of kernels that the host launches layer by layer."""
        host = launches * self.host
        return max(kernels, host) if self.is_gpu else kernels + host


def known(name: str) -> Device:
    """The device of the table with this name."""
    return _devices()[name]


def device_of(config: Mapping[str, Any]) -> Device:
    """What the trial of a config runs on, as far as it is known here: a core, the GPU of this
    machine, or without one the first of the table.
    """
    return known(CORE if config["device"] == "cpu" else _gpu())


@cache
def _gpu() -> str:
    import torch

    here = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    gpus = [name for name in _devices() if name != CORE]
    return next((name for name in gpus if name in here), gpus[0])


@cache
def _devices() -> dict[str, Device]:
    """The rows of the table, by name."""
    rows: dict[str, Any] = yaml.safe_load(TABLE.read_text())
    return {name: Device(name, **row) for name, row in rows.items()}
