"""The shapes of a model's weights, stage by stage, without any memory for them."""

from __future__ import annotations

import json
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from trainer.base.build import build
from trainer.models.recipe import Recipe
from trainer.optimizers.routing import EXPERTS, Kind

PRODUCTS: tuple[Kind, ...] = ("matrix", EXPERTS)
"""Kinds of weights that tokens are multiplied by; the head aside, which may be an embedding."""


class Weight(NamedTuple):
    """`shape` ends in the two widths of a matrix; those before count the matrices of a stack."""

    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def widths(self) -> int:
        """Entries that a token has in the products with all of its matrices, in and out."""
        return prod(self.shape[:-2]) * sum(self.shape[-2:])


def weights_of(config_of_model: Any, num_stages: int, seq_len: int) -> list[list[Weight]]:
    """The weights of each stage; a tied one is on both of its stages."""
    return _weights(json.dumps(config_of_model, sort_keys=True), num_stages, seq_len)


@cache
def _weights(node: str, num_stages: int, seq_len: int) -> list[list[Weight]]:
    model: Recipe = build(json.loads(node))
    split = model.split(num_stages, seq_len)
    found: list[list[Weight]] = []
    for index in range(num_stages):
        with torch.device("meta"):
            stage = model.stage(index, split)
        kinds = model.kinds(stage)
        named = stage.named_parameters()
        found.append([Weight(kinds[name], tuple(weight.shape)) for name, weight in named])
    return found
