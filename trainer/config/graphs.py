"""Which graphs trials with `compile=update` need, and which of them this machine has compiled."""

import getpass
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from pipegap.trainer.base.build import locate
from pipegap.trainer.corrections.none import NoCorrection

Config = Mapping[str, Any]

STARTS, PER_LAYER = 9.0, 7.0
"""CPU seconds to start the compiler, and to compile a layer's passes and evaluation, on a core of
which a small operation takes `OPERATION`."""
STEP, FEEDBACK = 6.0, 3.0
"""Those of an optimizer's step, and of Error Feedback."""
OPERATION = 0.8e-6
"""Seconds. The compiler is Python, and so is most of what surrounds an operation."""


def to_compile(configs: Iterable[Config], operation: float) -> dict[str, float]:
    """What this machine has to compile for these trials: key → CPU seconds on one of its cores,
    where a small operation takes `operation` seconds."""
    needed: dict[str, float] = {}
    for config in configs:
        needed |= _needed(config)
    folder = _folder()
    return {
        key: seconds * operation / OPERATION
        for key, seconds in needed.items()
        if not (folder / key).exists()
    }


def note_compiled(config: Config) -> None:
    """Notes beside the graphs that they are there, after a trial that needed them."""
    folder = _folder()
    with suppress(OSError):  # a price will be too high
        for key in _needed(config) if folder.parent.is_dir() else ():
            folder.mkdir(exist_ok=True)
            (folder / key).touch()


def _needed(config: Config) -> dict[str, float]:
    if config["compile"] != "update":
        return {}
    shape = [config[key] for key in ("model", "batch_size", "seq_len", "num_threads")]
    shape += [config["pipeline"][key] for key in ("num_stages", "num_microbatches")]
    dtypes = [config["dtype"], config["eval_dtype"]]
    layers = config["model"]["num_layers"]
    needed = {
        _key("passes", shape, dtypes): STARTS + PER_LAYER * layers,
        _key("step", shape, config["optimizer"]["_target_"]): STEP,
    }
    if locate(config["correction"]["_target_"]) is not NoCorrection:
        needed[_key("feedback", shape)] = FEEDBACK
    return needed


def _key(*what: object) -> str:
    text = json.dumps([torch.__version__, *what], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def _folder() -> Path:
    """Inside the compiler's own folder, which it takes seconds to ask for."""
    default = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default) / "pipegap"
