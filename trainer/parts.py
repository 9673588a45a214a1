"""Builds the parts of a trial from its resolved config."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.build import build
from trainer.data.batches import Batches, Windows
from trainer.emulated import Emulated
from trainer.errors import BadInput
from trainer.gradients import Clip
from trainer.models.loss import cross_entropy
from trainer.operations import Schedule
from trainer.optimizers import Kind, kinds
from trainer.stage import Stage

Config = Mapping[str, Any]
RUNNERS = {"emulated": Emulated}


@dataclass(frozen=True)
class Parts:
    """What a trial is made of."""

    model: Any
    schedule: Schedule
    lr_factor: Callable[[int], float]
    batches: Batches
    validation: Windows
    executor: Emulated


def build_parts(config: Config, num_updates: int, device: torch.device) -> Parts:
    """All parts, weights initialised; raises BadInput where two of them do not fit."""
    model = build(config["model"])
    batches, validation = open_data(config)
    schedule: Schedule = build(config["pipeline"], num_updates)
    lr_factor = build(config["lr_schedule"], num_updates)
    executor = RUNNERS[config["runner"]](
        build_stages(config, model, schedule, lr_factor, device),
        schedule,
        lambda t: batches[t].to(device),
        cross_entropy,
        Clip(math.inf if config["clip_norm"] is None else config["clip_norm"]),
    )
    return Parts(model, schedule, lr_factor, batches, validation, executor)


def open_data(config: Config) -> tuple[Batches, Windows]:
    """Training batches and validation windows of verified data.

    Raises BadInput for missing, altered or too short data, or another vocabulary than the model's.
    """
    dataset, vocab_size = build(config["data"]).open(), build(config["model"]).vocab_size
    if dataset.vocab_size != vocab_size:
        allowed = f"must be that of data.path={config['data']['path']}, {dataset.vocab_size}"
        raise BadInput("model.vocab_size", vocab_size, allowed)
    batches = Batches(
        dataset.train,
        seed=config["seed"],
        batch_size=config["batch_size"],
        seq_len=config["seq_len"],
    )
    return batches, Windows(dataset.validation, config["seq_len"])


def build_stages(
    config: Config,
    model: Any,
    schedule: Schedule,
    lr_factor: Callable[[int], float],
    device: torch.device,
) -> list[Stage]:
    """The model's stages; a weight name that the first and the last both have is tied."""
    modules: list[nn.Module] = [
        model.stage(index, schedule.num_stages) for index in range(schedule.num_stages)
    ]
    names = [{name for name, _ in module.named_parameters()} for module in modules]
    tied = frozenset(names[0] & names[-1]) if len(modules) > 1 else frozenset()
    stages = []
    for module, lag in zip(modules, schedule.lags, strict=True):
        model.initialise(module, config["seed"])
        stage = Stage(
            module.to(device),
            _optimizer_of(config["optimizer"], kinds(module)),
            build(config["correction"]),
            lr_factor,
            lag=lag,
            tied=tied,
            tied_lag=schedule.tied_lag,
            dtype=getattr(torch, config["dtype"]),
            run=torch.compile if config["compile"] else _eager,
        )
        stages.append(stage)
    return stages


def _optimizer_of(
    node: Mapping[str, Any], kind: Mapping[str, Kind]
) -> Callable[[Sequence[tuple[str, nn.Parameter]]], torch.optim.Optimizer]:
    return lambda named: build(node, [(kind[name], weight) for name, weight in named])


def _eager(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return module
