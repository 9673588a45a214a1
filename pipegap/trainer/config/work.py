"""What an update needs, counted before it runs: the memory of a rank; the FLOPs and bytes of each
stage.
"""

import getpass
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.optim import Optimizer

from pipegap.trainer.base.build import build, locate
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.models.decoder import Recipe
from pipegap.trainer.optimizers import routing
from pipegap.trainer.optimizers.routing import EXPERTS, MATRICES, Kind
from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.proof import interleave

Config = Mapping[str, Any]

FP32 = 4
WALKED = 3
"""Batches of each phase whose operations are followed; later ones repeat them."""
KEPT: Mapping[bool, float] = {True: 0.85, False: 1.22}
"""Entries that a forward keeps for its backward, per entry that goes into or comes out of a product
with a matrix, compiled or not. Counted for Llama's layers; mixtures keep a tenth more, a delta net
up to twice as much."""
Number = TypeVar("Number", int, float)


def largest_rank(
    config: Config,
    schedule: Schedule,
    correction: NoCorrection,
    stages: "Stages",
    states: Sequence[int],
) -> int:
    """Returns the bytes of the rank that needs most, in a delayed update, without activations.

    All stages of an emulated pipeline are on one rank. Each weight has the fp32 master, the leaves
    of its versions, the fp32 sum of gradients, the states of optimizer and correction. In fp32 the
    newest leaf is the master. In a true pipeline a delayed update waits with its gradients while
    the next gradients are summed. A tied weight counts on both of its stages.
    """
    is_true, dtype = config["runner"] != "emulated", getattr(torch, config["dtype"])
    of_stages = [
        num_entries(stage) * _shared(dtype, lag, correction, is_true=is_true) + FP32 * state_entries
        for stage, state_entries, lag in zip(stages, states, schedule.lags, strict=True)
    ]
    return max(by_rank(schedule, of_stages)) if is_true else sum(of_stages)


def by_rank(schedule: Schedule, of_stages: Sequence[Number]) -> list[Number]:
    """Returns, for each rank of one replica, the sum over its stages."""
    ranks = map(schedule.stages, range(schedule.num_ranks))
    return [sum(of_stages[stage] for stage in stages) for stages in ranks]


def loss_bytes(config: Config, model: Recipe) -> int:
    """Returns the bytes at the peak of one microbatch's loss: logits and all that is made of them.

    Compiled, these are the logits and their gradient, else also fp32 copies. A loss that is fused
    with the head (`model.loss_chunk`) has the logits of one chunk alone, and also the gradients of
    the head's weight and input.
    """
    itemsize, chunk = itemsize_of(config), config["model"].get("loss_chunk")
    tokens = _microbatch_tokens(config)
    if chunk is None:
        of_logit = 2 * itemsize if config["compile"] else 3 * FP32
        return tokens * model.vocab_size * of_logit
    # Logits, their fp32 copy if they are in bf16, their fp32 gradient, and `is_target` of
    # `chunk_loss`, as bool (1 byte) and in fp32.
    copies = itemsize + FP32 * (itemsize < FP32) + FP32 + 1 + FP32
    of_logit = 2 * itemsize if config["compile"] else copies
    gradients = model.hidden_size * (FP32 * model.vocab_size + itemsize * tokens)
    return min(tokens, chunk) * model.vocab_size * of_logit + gradients


def _microbatch_tokens(config: Config) -> int:
    num_microbatches = config["pipeline"]["num_microbatches"] * config["num_replicas"]
    return config["batch_size"] // num_microbatches * config["seq_len"]


def _shared(dtype: torch.dtype, lag: int, correction: NoCorrection, *, is_true: bool) -> int:
    """Bytes per parameter without the states of the optimizer."""
    # In fp32 the newest version is the master, which counts below.
    num_leaves = lag + correction.num_leaves_ahead(lag) + (dtype != torch.float32)
    num_gradients = 2 if is_true and lag else 1
    fp32 = 1 + num_gradients + correction.num_buffers(lag)
    return FP32 * fp32 + dtype.itemsize * num_leaves


class Weight(NamedTuple):
    """A weight without its numbers.

    `shape` ends in the two widths of a matrix; earlier sizes count the matrices of a stack.
    """

    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def widths(self) -> int:
        """Entries of one token that go into and come out of products with all of its matrices."""
        return prod(self.shape[:-2]) * sum(self.shape[-2:])


Stages = Sequence[Sequence[Weight]]


def weights_of(config_of_model: Any, num_stages: int, seq_len: int) -> list[list[Weight]]:
    """Returns the weights of each stage; a tied weight is on both of its stages.

    The weights take no memory.
    """
    # `cache` needs a key that can be hashed.
    return _weights(json.dumps(config_of_model, sort_keys=True), num_stages, seq_len)


@cache
def _weights(node: str, num_stages: int, seq_len: int) -> list[list[Weight]]:
    model: Recipe = build(json.loads(node))
    split = model.split(num_stages, seq_len)
    weights: list[list[Weight]] = []
    for index in range(num_stages):
        with torch.device("meta"):
            stage = model.stage(index, split)
        kinds = model.kinds(stage)
        pairs = stage.named_parameters()
        weights.append([Weight(kinds[name], tuple(weight.shape)) for name, weight in pairs])
    return weights


def states_of(optimizer: Callable[..., Optimizer], stages: Stages) -> list[int]:
    """Returns how many fp32 numbers the optimizer keeps for each stage."""
    num_entries_kept = routing.kept_entries(optimizer)
    return [sum(num_entries_kept(*weight) for weight in stage) for stage in stages]


def visited(model: Recipe, stages: Stages) -> dict[Kind, float]:
    """For each kind of matrix, the share of its entries that one token is multiplied by."""
    experts = sum(w.size for stage in stages for w in stage if w.kind == EXPERTS)
    idle = model.num_parameters - model.num_active_parameters
    return {"matrix": 1.0, EXPERTS: 1 - idle / experts if experts else 1.0}


def widths_per_token(weights: Sequence[Weight], shares: Mapping[Kind, float]) -> float:
    """Returns the entries of one token that go into or come out of products with these weights."""
    return sum(w.widths * shares[w.kind] for w in weights if w.kind in MATRICES)


def num_entries(weights: Sequence[Weight]) -> int:
    """Returns the number of entries of all these weights."""
    return sum(weight.size for weight in weights)


@dataclass(frozen=True)
class _Costs:
    """Bytes that each stage needs in addition to weights and optimizer states.

    `activations`: those of one microbatch, from its forward to its backward. `loss`: logits and
    their gradient on the last stage, at the start of a backward. `recomputed`: the activations of
    the layer that a backward recomputes. `gradients`: the gradients of a microbatch, at the end of
    its backward. `update`: temporary tensors of an optimizer step.
    """

    activations: tuple[int, ...]
    recomputed: tuple[int, ...]
    gradients: tuple[int, ...]
    update: tuple[int, ...]
    loss: int


def peak_bytes(config: Config, num_updates: int) -> int:
    """Returns the most bytes that any rank of a validated config has in use in any of its updates.

    Counted are weights, gradients and states (`largest_rank`), activations between forward and
    backward, the loss, recomputed layers, temporary tensors of the optimizer's step, and those of a
    comparison (`diagnostics`). Not counted are the context of the GPU and its libraries (about
    1 GB), messages between ranks, and holes between blocks of memory.
    """
    model, schedule = build(config["model"]), build(config["pipeline"], num_updates)
    correction = build(config["correction"], num_updates, schedule.lags)
    optimizer = locate(config["optimizer"]["_target_"])
    stages = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    states = states_of(optimizer, stages)
    made_in_steps = [routing.made_in_step(optimizer, stage) for stage in stages]
    is_true, itemsize = config["runner"] != "emulated", itemsize_of(config)
    entries = list(map(num_entries, stages))
    times = 1 if is_true else config["num_replicas"]  # one process has the microbatches of all
    fresh, held_entries = _held(config, schedule, correction, entries, states)
    activation_bytes, recomputed_bytes = _activations(config, model, stages)
    costs = _Costs(
        activations=tuple(times * number for number in activation_bytes),
        recomputed=tuple(recomputed_bytes),
        gradients=tuple(itemsize * number for number in entries),
        update=tuple(
            FP32 * sum(of_stage) for of_stage in zip(held_entries, made_in_steps, strict=True)
        ),
        loss=loss_bytes(config, model),
    )
    waiting = FP32 * (fresh + (0 if is_true else sum(entries) * (times - 1)))
    weights = largest_rank(config, schedule, correction, stages, states)
    return weights + waiting + _beside(schedule, costs, is_true)


def _activations(config: Config, model: Recipe, stages: Stages) -> tuple[list[int], list[int]]:
    """The bytes that a microbatch keeps on each stage until its backward, without logits, and the
    bytes that its backward recomputes there for one layer."""
    size = _microbatch_tokens(config) * itemsize_of(config)
    shares, share = visited(model, stages), KEPT[bool(config["compile"])]
    whole = [round(size * share * widths_per_token(stage, shares)) for stage in stages]
    if not model.activation_checkpointing:
        return whole, [0] * len(stages)
    # A checkpointed layer keeps its input alone, and recomputes the rest layer by layer.
    layers = list(map(len, model.split(len(stages), config["seq_len"])))
    inputs = [size * model.hidden_size * number for number in layers]
    return inputs, [of // max(1, number) for of, number in zip(whole, layers, strict=True)]


def itemsize_of(config: Config) -> int:
    """Returns the bytes of an entry of the leaves."""
    dtype: torch.dtype = getattr(torch, config["dtype"])
    return dtype.itemsize


def _held(
    config: Config,
    schedule: Schedule,
    correction: NoCorrection,
    entries: Sequence[int],
    states: Sequence[int],
) -> tuple[int, list[int]]:
    """How many fp32 numbers a rank holds for fresh updates, and how many for each stage's update.

    A stage's update u is held where a correction needs it. With `diagnostics` the rank holds fresh
    updates during the whole batch that is compared. Then each stage's update holds u and a copy of
    the rank's weights, and each fresh update a copy of the stage's optimizer state.
    """
    if config["diagnostics"] is None:
        return 0, [correction.needs_update * number for number in entries]
    is_true = config["runner"] != "emulated"
    fresh = max(by_rank(schedule, entries)) if is_true else sum(entries)
    pairs = zip(states, entries, strict=True)
    return fresh, [max(num_kept, fresh + number) for num_kept, number in pairs]


@cache
def _beside(schedule: Schedule, costs: _Costs, is_true: bool) -> int:
    """The most bytes in use on one rank beside weights, gradients and states."""
    most, ends = 0, schedule.num_stages - 1
    for first, last in pairwise(schedule.phases):
        operations = schedule.operations(first, min(last, first + WALKED))
        # One list per process: an emulated trial runs all ranks' operations in one.
        lists = operations if is_true else [[op for _, op in interleave(operations)]]
        most = max(most, *(level for ops in lists for level in _levels(ops, costs, ends)))
    return most


def _levels(ops: Sequence[Op], costs: _Costs, last: int) -> Iterator[int]:
    """Yields the bytes in use during each operation of one process."""
    living = 0  # bytes of microbatches between forward and backward
    for op in ops:
        if op.kind == "F":
            living += costs.activations[op.stage]
        if op.kind in ("F", "B", "I"):
            # Not both: the loss is gone when a backward recomputes its layers.
            yield living + max(costs.recomputed[op.stage], costs.loss * (op.stage == last))
        if op.kind in ("B", "I"):
            living -= costs.activations[op.stage]
        yield living + costs.update[op.stage] * (op.kind == "U")
        yield living + costs.gradients[op.stage] * (op.kind in ("B", "W"))


# Products of matrices and attention are limited by FLOPs, all other kernels by the bytes that
# they read and write. How fast a device does either is not known here. Trials with
# `compile=update` first have their graphs compiled, each once per machine.

CAUSAL = 1 / 2
"""The share of all scores that a causal kernel computes."""
SCORED_AGAIN = 7 / 6
"""Attention kernels recompute the scores in their backward: seven products in place of six."""
TOUCHES: Mapping[bool, float] = {True: 4.2, False: 19.0}
"""How often kernels other than products (norms, rotations, activations, residuals) read or write
each entry that goes into or comes out of a product, forward and backward together, compiled or not.
Fitted to one trial, 135m on an H100 (bench/README.md)."""
LOSS_TOUCHES = 4
"""How often the loss reads or writes a logit or its gradient, in the dtype of the leaves."""
LOSS_COPIES: Mapping[bool, int] = {True: 0, False: 32}
"""Bytes per logit of its fp32 copies, compiled or not."""
STARTS, PER_LAYER = 9.0, 7.0
"""CPU seconds to start the compiler, and to compile a layer's passes and evaluation, on a core on
which a small operation takes `OPERATION`."""
STEP, FEEDBACK = 6.0, 3.0
"""CPU seconds to compile an optimizer's step, and Error Feedback, on the same core."""
OPERATION = 0.8e-6
"""Seconds. The compiler is Python, and so is most of the time of a small operation."""


class StageWork(NamedTuple):
    """What a stage does in one process for one update.

    `attention` and `products` are the FLOPs of attention and of all other products, `bytes` those
    that other kernels read and write, in forward and backward of all microbatches. `update` are the
    bytes of the update of its weights, and `step` the FLOPs of the update's products, in
    `step_dtype` (None: in the trial's dtype). `launches` is the number of layers times
    microbatches: the host launches kernels for each.
    """

    attention: float
    products: float
    bytes: float
    update: float
    step: float
    launches: int
    step_dtype: str | None = None


def work(
    config: Config, model: Recipe, schedule: Schedule, correction: NoCorrection
) -> list[StageWork]:
    """Returns the work of each stage.

    A process of a true pipeline has one replica's share of the batch, an emulated trial all of it.
    Messages and the lookup of embeddings do not count.
    """
    stages = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    split = model.split(schedule.num_stages, config["seq_len"])
    num_layers, shares = sum(map(len, split)), visited(model, stages)
    (tokens, num_backwards), itemsize = _share(config), itemsize_of(config)
    mixing, linear = _mixing(model, stages, shares, config["seq_len"])
    bytes_per_sum = itemsize + 2 * FP32  # a gradient is read, its fp32 sum is read and written
    # Recomputation adds a forward: one product to three, and two to seven in attention.
    recompute_factor, in_attention = (
        (4 / 3, 9 / 7) if model.activation_checkpointing else (1.0, 1.0)
    )
    touched = recompute_factor * TOUCHES[bool(config["compile"])] * itemsize
    optimizer = locate(config["optimizer"]["_target_"])
    # A compiled update has rules of its own in place of a library's products in another dtype.
    step_dtype = None if config["compile"] == "update" else routing.step_dtype(optimizer)
    works: list[StageWork] = []
    for stage, lag, layers in zip(stages, schedule.lags, split, strict=True):
        share = tokens * len(layers) / num_layers  # of work that is known for the whole model alone
        works.append(
            StageWork(
                attention=in_attention * share * mixing,
                products=recompute_factor * (tokens * _flops(stage, shares) + share * linear),
                bytes=touched * tokens * widths_per_token(stage, shares)
                + num_entries(stage) * num_backwards * bytes_per_sum,
                update=_update(config, stage, lag, correction),
                step=routing.step_flops(optimizer, stage),
                launches=len(layers) * num_backwards,
                step_dtype=step_dtype,
            )
        )
    # The head has no kind `matrix`, so its products, and the loss, come here.
    last, of_head = works[-1], model.hidden_size * model.vocab_size
    of_logit = LOSS_TOUCHES * itemsize + LOSS_COPIES[bool(config["compile"])]
    in_loss = tokens * model.vocab_size * of_logit
    if (chunk := config["model"].get("loss_chunk")) is not None:
        # A loss that is fused with the head adds to the head's gradient at each chunk.
        num_sums = num_backwards * ceil(tokens / num_backwards / chunk)
        in_loss += num_sums * of_head * bytes_per_sum
    products = last.products + 6 * of_head * tokens
    return [*works[:-1], last._replace(products=products, bytes=last.bytes + in_loss)]


def _share(config: Config) -> tuple[float, int]:
    """Returns the tokens of an update that one process sees, and its backwards of each stage."""
    replicas, num_microbatches = config["num_replicas"], config["pipeline"]["num_microbatches"]
    num_processes = 1 if config["runner"] == "emulated" else replicas
    tokens = config["batch_size"] * config["seq_len"] / num_processes
    return tokens, num_microbatches * replicas // num_processes


def _mixing(
    model: Recipe, stages: Stages, shares: Mapping[Kind, float], seq_len: int
) -> tuple[float, float]:
    """Returns the FLOPs per token of attention and of linear mixers, in the whole model.

    Attention is what grows with the length. Linear mixers are the products without a weight, which
    remain when the products with weights are subtracted.
    """
    at_any_length = model.flops_per_token(0)
    growing = model.flops_per_token(seq_len) - at_any_length
    weights = [weight for stage in stages for weight in stage]
    # `flops_per_token` counts 6 per parameter, vectors among them.
    vectors = 6 * sum(weight.size for weight in weights if weight.kind == "vector")
    head = 6 * model.hidden_size * model.vocab_size
    linear = at_any_length - _flops(weights, shares) - vectors - head
    return CAUSAL * SCORED_AGAIN * growing, max(0.0, linear)


def _update(config: Config, weights: Sequence[Weight], lag: int, correction: NoCorrection) -> float:
    """Returns the bytes of an update, with division, norm and clip of gradients."""
    num_buffers = routing.buffers(locate(config["optimizer"]["_target_"]))
    size, itemsize = num_entries(weights), itemsize_of(config)
    of_gradients = 2 + 1 + 2  # division: read and written; norm: read; clip: read and written
    # 3: the weight is read and written, the gradient read; each buffer is read and written.
    optimizer = sum((3 + 2 * num_buffers(w.kind) + of_gradients) * w.size for w in weights)
    # The master is copied to a leaf of another dtype, or W(t) to the slot of version t + 1.
    leaves = (FP32 + itemsize) * (itemsize < FP32 or lag > 0)
    leaf_bytes = (FP32 + itemsize) * bool(correction.num_leaves_ahead(lag))
    # A copy of W(t) and a difference make the update, 5. Then the norm of the earlier update is
    # taken, the update is subtracted from it, and it is scaled and added to the weights, 9.
    of_correction = 5 * correction.needs_update + 9 * (correction.num_buffers(lag) > 0)
    return FP32 * optimizer + size * (leaves + leaf_bytes + FP32 * of_correction)


def _flops(weights: Sequence[Weight], shares: Mapping[Kind, float]) -> float:
    """FLOPs per token of the products with these weights, forward and backward."""
    return sum(6 * w.size * shares[w.kind] for w in weights if w.kind in MATRICES)


def to_compile(configs: Iterable[Config], operation: float) -> dict[str, float]:
    """The graphs that this machine has to compile for these trials: key → CPU seconds on one of its
    cores, on which a small operation takes `operation` seconds."""
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
    """Notes beside the compiled graphs that they exist, after a trial that needed them."""
    folder = _folder()
    with suppress(OSError):  # without the note only the next price is too high
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
    """A folder in that of torch's compiler, computed here: to import the compiler takes seconds."""
    default = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default) / "pipegap"
