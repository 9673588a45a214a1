"""The work of one update, counted before the update runs: FLOPs and bytes of each stage.

Products of matrices and attention are limited by FLOPs, all other kernels by the bytes that they
read and write. How fast a device does either is not known here. Trials with `compile=update` first
have their graphs compiled, each once per machine.
"""

import getpass
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipegap.trainer.base.build import locate
from pipegap.trainer.config.memory import (
    FP32,
    Stages,
    Weight,
    itemsize_of,
    num_entries,
    visited,
    weights_of,
    widths_per_token,
)
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.models.recipe import Recipe
from pipegap.trainer.optimizers.routing import MATRICES, Kind, buffers, step_flops
from pipegap.trainer.schedules.operations import Schedule

Config = Mapping[str, Any]

CAUSAL = 1 / 2
"""The share of all scores that a causal kernel makes."""
SCORED_AGAIN = 7 / 6
"""Attention kernels make the scores again in their backward: seven products in place of six."""
TOUCHES: Mapping[bool, float] = {True: 4.2, False: 19.0}
"""How often kernels beside the products read or write each entry that goes into or comes out of a
product, forward and backward together, compiled or not: norms, rotations, activations, residuals.
Fitted to one trial, 135m on an H100 (bench/README.md)."""
LOSS_TOUCHES = 4
"""How often the loss reads or writes a logit or its gradient, in the dtype of the leaves."""
LOSS_COPIES: Mapping[bool, int] = {True: 0, False: 32}
"""Bytes per logit of its fp32 copies, compiled or not."""
STARTS, PER_LAYER = 9.0, 7.0
"""CPU seconds to start the compiler, and to compile a layer's passes and evaluation, on a core of
which a small operation takes `OPERATION`."""
STEP, FEEDBACK = 6.0, 3.0
"""Those of an optimizer's step, and of Error Feedback."""
OPERATION = 0.8e-6
"""Seconds. The compiler is Python, and so is most of what surrounds an operation."""


class StageWork(NamedTuple):
    """What a stage does in one process for one update.

    FLOPs of `attention` and of all other `products`, and the `bytes` that other kernels read and
    write, are those of forward and backward of all microbatches. `update` are the bytes of the
    update of its weights, and `step` the FLOPs of its products. `launches` counts layers, each once
    per microbatch: the host has work for every one.
    """

    attention: float
    products: float
    bytes: float
    update: float
    step: float
    launches: int


def work(
    config: Config, model: Recipe, schedule: Schedule, correction: NoCorrection
) -> list[StageWork]:
    """Return the work of each stage.

    A process of a true pipeline has one replica's share of the batch, an emulated trial all of it.
    Left out: messages, and looking up embeddings.
    """
    stages = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    split = model.split(schedule.num_stages, config["seq_len"])
    num_layers, shares = sum(map(len, split)), visited(model, stages)
    (tokens, num_backwards), itemsize = _share(config), itemsize_of(config)
    mixing, linear = _mixing(model, stages, shares, config["seq_len"])
    bytes_per_sum = itemsize + 2 * FP32  # a gradient is read, its fp32 sum is read and written
    # A forward more, which is one product of three, and two of seven in attention.
    recompute_factor, in_attention = (
        (4 / 3, 9 / 7) if model.activation_checkpointing else (1.0, 1.0)
    )
    touched = recompute_factor * TOUCHES[bool(config["compile"])] * itemsize
    parts_found = []
    for stage, lag, layers in zip(stages, schedule.lags, split, strict=True):
        share = tokens * len(layers) / num_layers
        parts_found.append(
            StageWork(
                attention=in_attention * share * mixing,
                products=recompute_factor * (tokens * _flops(stage, shares) + share * linear),
                bytes=touched * tokens * widths_per_token(stage, shares)
                + num_entries(stage) * num_backwards * bytes_per_sum,
                update=_update(config, stage, lag, correction),
                step=step_flops(locate(config["optimizer"]["_target_"]), stage),
                launches=len(layers) * num_backwards,
            )
        )
    last, of_head = parts_found[-1], model.hidden_size * model.vocab_size
    of_logit = LOSS_TOUCHES * itemsize + LOSS_COPIES[bool(config["compile"])]
    in_loss = tokens * model.vocab_size * of_logit
    in_loss += _sums_of_head(config, tokens, num_backwards) * of_head * bytes_per_sum
    products = last.products + 6 * of_head * tokens
    return [*parts_found[:-1], last._replace(products=products, bytes=last.bytes + in_loss)]


def _share(config: Config) -> tuple[float, int]:
    """Return the tokens of an update that one process sees, and its backwards of a stage."""
    replicas, num_microbatches = config["num_replicas"], config["pipeline"]["num_microbatches"]
    num_processes = 1 if config["runner"] == "emulated" else replicas
    tokens = config["batch_size"] * config["seq_len"] / num_processes
    return tokens, num_microbatches * replicas // num_processes


def _sums_of_head(config: Config, tokens: float, num_backwards: int) -> int:
    """How often a loss that is fused with the head adds to the head's gradient: per chunk."""
    chunk = config["model"].get("loss_chunk")
    return 0 if chunk is None else num_backwards * ceil(tokens / num_backwards / chunk)


def _mixing(
    model: Recipe, stages: Stages, shares: Mapping[Kind, float], seq_len: int
) -> tuple[float, float]:
    """Return the FLOPs per token of the whole model that mix tokens.

    Those of attention grow with the length. Those of linear mixers are products without a weight.
    """
    at_any_length = model.flops_per_token(0)
    growing = model.flops_per_token(seq_len) - at_any_length
    every = [weight for stage in stages for weight in stage]
    vectors = 6 * sum(weight.size for weight in every if weight.kind == "vector")
    head = 6 * model.hidden_size * model.vocab_size
    linear = at_any_length - _flops(every, shares) - vectors - head
    return CAUSAL * SCORED_AGAIN * growing, max(0.0, linear)


def _update(config: Config, weights: Sequence[Weight], lag: int, correction: NoCorrection) -> float:
    """Return the bytes of an update, with division, norm and clip of gradients."""
    num_buffers = buffers(locate(config["optimizer"]["_target_"]))
    size, itemsize = num_entries(weights), itemsize_of(config)
    of_gradients = 2 + 1 + 2  # read and written, read, read and written
    optimizer = sum((3 + 2 * num_buffers(w.kind) + of_gradients) * w.size for w in weights)
    leaves = (FP32 + itemsize) * (itemsize < FP32 or lag > 0)
    leaf_bytes = (FP32 + itemsize) * bool(correction.num_leaves_ahead(lag))
    # A copy of W(t) and a difference make the update; then the earlier one is looked at, subtracted
    # from, multiplied and added to the weights (test_passes.py counts as many).
    of_correction = 5 * correction.needs_update + 9 * (correction.num_buffers(lag) > 0)
    return FP32 * optimizer + size * (leaves + leaf_bytes + FP32 * of_correction)


def _flops(weights: Sequence[Weight], shares: Mapping[Kind, float]) -> float:
    """FLOPs per token of the products with these weights, forward and backward."""
    return sum(6 * w.size * shares[w.kind] for w in weights if w.kind in MATRICES)


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
