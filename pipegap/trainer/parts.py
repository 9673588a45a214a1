"""Builds the parts of a trial from its resolved config."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipegap.trainer.base.build import build, label, locate, made, use_code
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.compiled.passes import StagePlace, loss_of
from pipegap.trainer.compiled.stage import CompiledStage
from pipegap.trainer.data.batches import Batches, Prefetched, Windows
from pipegap.trainer.data.shards import Dataset
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Clip, Loss, practise
from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.models.decoder import Recipe, Split, compiled, compiled_stage
from pipegap.trainer.models.export import start_from
from pipegap.trainer.models.layers import loss_by
from pipegap.trainer.optimizers.routing import Parameters, is_entrywise
from pipegap.trainer.optimizers.state import optimizer_in_parts
from pipegap.trainer.ranks.groups import Gang
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.stages.backward import microbatches_of
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.tracing.trace import Clock

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Parts:
    """The parts of a trial, except its stages and their executor."""

    model: Recipe
    schedule: Schedule
    lr_factor: Callable[[int], float]
    batches: Batches
    validation: Windows


def build_parts(config: Config, num_updates: int) -> Parts:
    """Builds the parts that a resolved config names. Raises BadInput if two do not fit."""
    use_code(config.get("code"))
    batches, validation = open_data(config)
    schedule, lr_factor = (build(config[k], num_updates) for k in ("pipeline", "lr_schedule"))
    return Parts(build(config["model"]), schedule, lr_factor, batches, validation)


def build_emulated(config: Config, parts: Parts, device: torch.device) -> Emulated:
    """Builds the executor of all stages in this process, on `device`, weights initialised."""
    schedule = parts.schedule
    indices = range(schedule.num_stages)
    stages = build_stages(config, parts.model, schedule, parts.lr_factor, device, indices)
    _say_without_graph(config, stages)
    batch, replicas = _batch(parts, device), config["num_replicas"]
    return Emulated(stages, schedule, batch, _loss(config), _clip(config), replicas)


def _say_without_graph(config: Config, stages: Iterable[Stage]) -> None:
    """Prints one line if a compiled update does not contain the optimizer or the correction."""
    compiled_stages = (stage for stage in stages if isinstance(stage, CompiledStage))
    groups = dict.fromkeys(group for stage in compiled_stages for group in stage.without_graph)
    if groups:
        names = " and ".join(f"{group}={label(config[group])}" for group in groups)
        print(f"compile=update: {names}: not compiled, run as with false", file=sys.stderr)


def build_pipelined(config: Config, parts: Parts, gang: Gang) -> Pipelined:
    """Builds the executor of this rank's stages of the pipeline, weights initialised."""
    schedule, device = parts.schedule, gang.device
    # Rows of a microbatch, the unit that stages send each other.
    rows = config["batch_size"] // (schedule.num_microbatches * gang.num_replicas)
    stages_here = schedule.stages(gang.place)
    stages = build_stages(config, parts.model, schedule, parts.lr_factor, device, stages_here)
    loss, message = _loss(config), torch.Size([rows, config["seq_len"], parts.model.hidden_size])
    # Before `Pipelined` connects the stages, which sends their first messages.
    practise(dict(zip(stages_here, stages, strict=True)), schedule.num_stages - 1, loss, message)
    return Pipelined(
        stages,
        schedule,
        _batch(parts, device),
        loss,
        _clip(config),
        gang,
        Clock(device, config["trace"]),
        message,
        Path(config["out"] or config["results"]),
    )


def _batch(parts: Parts, device: torch.device) -> Callable[[int], Tensor]:
    """Returns the reader of batches by number, which on a GPU reads them ahead of their turn."""
    read_batch = parts.batches.__getitem__
    # On a CPU reading ahead gains nothing: the core that would read is the one that computes.
    return Prefetched(read_batch, device) if device.type == "cuda" else read_batch


def _clip(config: Config) -> Clip:
    norm = math.inf if config["clip_norm"] is None else config["clip_norm"]
    # Without a limit both scopes give the same numbers, and the global one reports them earlier.
    return Clip(norm, by_stage=config["clip_scope"] == "stage" and norm < math.inf)


def _loss(config: Config) -> Loss:
    """Returns the loss of a microbatch, compiled if the stages are."""
    losses: Mapping[bool | str, Callable[[], Loss]] = {
        False: lambda: loss_by(lambda function: function),
        True: lambda: loss_by(compiled),
        "update": lambda: loss_of,
    }
    return losses[config["compile"]]()


def open_data(config: Config) -> tuple[Batches, Windows]:
    """Opens verified data; returns the batches to train on and the windows to validate on.

    Raises BadInput if the data is missing, altered or too short, or its vocabulary is not the
    model's.
    """
    source = build(config["data"])
    # A source that knows its vocabulary is checked before it is opened, which can take hours.
    if (vocab_size := getattr(source, "known_vocab_size", None)) is not None:
        _require_vocabulary(config, vocab_size)
    dataset: Dataset = source.open()
    _require_vocabulary(config, dataset.vocab_size)
    sizes = {key: config[key] for key in ("seed", "batch_size", "seq_len")}
    return Batches(dataset.train, **sizes), Windows(dataset.validation, config["seq_len"])


def _require_vocabulary(config: Config, data_size: int) -> None:
    """Raises BadInput unless the model has the vocabulary of the data."""
    if (vocab_size := build(config["model"]).vocab_size) != data_size:
        path = config["data"].get("path")
        data = "the data" if path is None else f"data.path={path}"
        allowed = f"must be that of {data}, {data_size}"
        raise BadInput("model.vocab_size", vocab_size, allowed)


def build_stages(
    config: Config,
    model: Recipe,
    schedule: Schedule,
    lr_factor: Callable[[int], float],
    device: torch.device,
    indices: Iterable[int],
) -> list[Stage]:
    """Builds the model's stages with these `indices`, on `device`, weights initialised.

    A weight that both the first and the last stage name is tied.
    """
    split = model.split(schedule.num_stages, config["seq_len"])
    # Of the model, whatever `indices` are: a rank may hold one of the two copies.
    ends = (empty_stage(model, index, split).named_parameters() for index in (0, len(split) - 1))
    first, last = (frozenset(name for name, _ in pairs) for pairs in ends)
    tied = first & last if len(split) > 1 else frozenset()
    start = start_from(config.get("from_pretrained"))
    make = _stages_of(config, model, split)
    stages = []
    for index in indices:
        # Drawn on the CPU and moved then: the same weights on every device.
        module = empty_stage(model, index, split).to_empty(device="cpu")
        start(model, module, config["seed"])
        stage = make(index)(
            module.to(device),
            model.kinds(module),
            optimizer_of(config["optimizer"]),
            lambda lags: build(config["correction"], schedule.num_updates, lags),
            lr_factor,
            lag=schedule.lags[index],
            tied=tied,
            tied_lag=schedule.tied_lag,
            dtype=getattr(torch, config["dtype"]),
            eval_dtype=getattr(torch, config["eval_dtype"]),
            microbatch=microbatches_of(schedule),
        )
        stages.append(stage)
    return stages


def _stages_of(
    config: Config, model: Recipe, split: Split
) -> Callable[[int], Callable[..., Stage]]:
    """Returns a function from the number of a stage to the class, or a partial of it, that makes
    it of its module and the other arguments."""
    ways: Mapping[bool | str, Callable[[int], Callable[..., Stage]]] = {
        False: lambda index: Stage,
        True: lambda index: partial(Stage, run=compiled_stage),
        "update": lambda index: partial(
            CompiledStage, place=StagePlace(model, index, split), num_threads=config["num_threads"]
        ),
    }
    return ways[config["compile"]]


def empty_stage(model: Recipe, index: int, split: Split) -> nn.Module:
    """Returns a stage on the meta device, so that no weights are drawn that nobody uses."""
    with torch.device("meta"):
        return model.stage(index, split)


def optimizer_of(node: Mapping[str, Any]) -> Callable[[Parameters], torch.optim.Optimizer]:
    """Returns the maker of the chosen optimizer, for weights of all kinds."""
    make = partial(made, "optimizer", node, torch.optim.Optimizer)
    by_entry = is_entrywise(locate(node["_target_"]))
    return lambda parameters: optimizer_in_parts(make, parameters, is_entrywise=by_entry)
