"""Routes parameters to library optimizers, by the module that they belong to.

Positional arguments come from the trial, keywords from conf/optimizer/. Vectors never decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import nn
from torch.optim import Optimizer

Kind = Literal["matrix", "embedding", "vector"]
"""Weight of a hidden nn.Linear; of an nn.Embedding or the head; the rest (norms, biases)."""

Parameters = Sequence[tuple[Kind, nn.Parameter]]
Decay = Annotated[float, Interval(ge=0, lt=1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]

HEAD = "lm_head"


def kinds(module: nn.Module) -> dict[str, Kind]:
    """The kind of every parameter of `module`, by name; a tied weight is an embedding."""
    found: dict[str, Kind] = {}
    for path, submodule in module.named_modules():
        for name, _ in submodule.named_parameters(path, recurse=False):
            found[name] = _kind(submodule, path, name)
    return {name: found[name] for name, _ in module.named_parameters()}


def _kind(submodule: nn.Module, path: str, name: str) -> Kind:
    if isinstance(submodule, nn.Embedding) or path.endswith(HEAD):
        return "embedding"
    is_weight = isinstance(submodule, nn.Linear) and name.endswith("weight")
    return "matrix" if is_weight else "vector"


def _groups(parameters: Parameters, **options: dict[str, Any]) -> list[dict[str, Any]]:
    """A parameter group a kind with that kind's `options`; kinds without parameters are skipped.

    Raises KeyError for a parameter whose kind has no options, so that the groups are a partition.
    """
    members: dict[str, list[nn.Parameter]] = {kind: [] for kind in options}
    for kind, parameter in parameters:
        members[kind].append(parameter)
    return [{"params": members[kind], **options[kind]} for kind in options if members[kind]]


def adamw(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
    fused: bool,
) -> Optimizer:
    """AdamW (arXiv 1711.05101), torch's."""
    decay, no_decay = {"weight_decay": weight_decay}, {"weight_decay": 0.0}
    return torch.optim.AdamW(
        _groups(parameters, matrix=decay, embedding=decay, vector=no_decay),
        lr=lr,
        betas=(momentum, variance_decay),
        eps=eps,
        fused=fused,
    )


def sgd(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    weight_decay: NonNegative,
    fused: bool,
) -> Optimizer:
    """SGD with momentum, torch's; `weight_decay` is added to the gradient (L2), as torch does."""
    decay, no_decay = {"weight_decay": weight_decay}, {"weight_decay": 0.0}
    return torch.optim.SGD(
        _groups(parameters, matrix=decay, embedding=decay, vector=no_decay),
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        fused=fused,
    )


def muon(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Annotated[int, Gt(0)],
    scaling: Literal["original", "match_rms_adamw"],
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Muon for hidden matrices, AdamW for the rest (Jordan 2024; arXiv 2502.16982).

    pytorch_optimizer's, which orthogonalises all matrices of a shape in one batch, in bf16.
    `match_rms_adamw` scales by 0.2 sqrt(max(rows, columns)), so that one lr fits both halves.
    """
    from pytorch_optimizer import Muon  # imported late: it costs a second

    half = {"use_muon": False, "lr": lr if auxiliary_lr is None else auxiliary_lr}
    auxiliary = {**half, "betas": (auxiliary_momentum, variance_decay), "eps": eps}
    optimizer: Optimizer = Muon(
        _groups(
            parameters,
            matrix={"use_muon": True, "weight_decay": weight_decay},
            embedding={**auxiliary, "weight_decay": weight_decay},
            vector={**auxiliary, "weight_decay": 0.0},
        ),
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        ns_steps=newton_schulz_steps,
        use_adjusted_lr=scaling == "match_rms_adamw",
    )
    return optimizer
