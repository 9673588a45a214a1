"""How fast trials are, by what the store has of finished ones of the same shape."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from trainer.build import label
from trainer.record import Row, read_result

SHAPE = ("model", "seq_len", "batch_size", "num_replicas", "dtype", "runner", "num_threads")
"""Keys that trials of one shape share, beside the device, `compile`, stages and microbatches."""
LOOKED_AT = 2_000
"""How many trials of the store are looked at beside those of the plan, the newest first."""

Config = Mapping[str, Any]


class Throughput:
    """Tokens per second by shape, evaluation and start-up aside.

    Of a shape's trials those of the same optimizer and pipeline count, or all if there are none.
    """

    def __init__(self) -> None:
        self._speeds: dict[str, dict[str, list[float]]] = {}

    def add(self, config: Config, result: Row) -> None:
        """Takes a finished trial into account, unless it failed or diverged at once."""
        if result.get("tokens"):
            of_shape = self._speeds.setdefault(shape(config), {})
            of_shape.setdefault(_kind(config), []).append(float(result["tokens_per_second"]))

    def of(self, config: Config) -> float | None:
        """The median of the trial's shape; None if none of it has finished."""
        of_shape = self._speeds.get(shape(config), {})
        speeds = of_shape.get(_kind(config)) or [*chain.from_iterable(of_shape.values())]
        return median(speeds) if speeds else None

    def look_around(self, store: Path, wanted: Iterable[Config]) -> None:
        """Adds trials of the store until each `wanted` has one of its shape."""
        missing = {shape(config) for config in wanted if self.of(config) is None}
        for folder in _newest(store / "trials") if missing else []:
            with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
                config = json.loads((folder / "config.json").read_bytes())
                if shape(config) in missing and (result := read_result(folder)) is not None:
                    self.add(config, result)


def shape(config: Config) -> str:
    """What trials of one speed have in common, about."""
    pipeline = config["pipeline"]
    same = [config[key] for key in SHAPE]
    same += [config["device"].split(":")[0], config["compile"]]
    same += [pipeline["num_stages"], pipeline["num_microbatches"], pipeline.get("num_chunks", 1)]
    return json.dumps(same, sort_keys=True)


def _kind(config: Config) -> str:
    return f"{label(config['optimizer'])} {label(config['pipeline'])}"


def _newest(trials: Path) -> list[Path]:
    try:
        entries = [*os.scandir(trials)]
    except OSError:
        return []
    entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    return [Path(entry.path) for entry in entries[:LOOKED_AT]]
