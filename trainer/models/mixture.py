"""Decoders with a mixture of experts in every layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from trainer.base.errors import BadInput
from trainer.base.ranges import Few, NonNegative, Rows
from trainer.models.balance import AuxiliaryLoss, Bias, NoBalance
from trainer.models.decoder import Decoder, LayerSize
from trainer.models.experts import Experts, Router

BALANCES: Mapping[str, Callable[[float, int], NoBalance]] = {
    "none": NoBalance,
    "loss": AuxiliaryLoss,
    "bias": Bias,
}


@dataclass(frozen=True, kw_only=True)
class MixtureDecoder(Decoder):
    """The recipe of a decoder with experts in every layer and attention heads of any size."""

    head_size: Rows
    num_experts: Few
    experts_per_token: Few
    intermediate_size: Rows
    router: Literal["matrix", "vector"]
    balance: Literal["none", "loss", "bias"]
    balance_coefficient: NonNegative

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not go together."""
        super().__post_init__()
        for key in ("hidden_size", "intermediate_size"):
            if getattr(self, key) % 8:  # rows of 16 bytes, which torch's grouped products need
                raise BadInput(f"model.{key}", getattr(self, key), "must be a multiple of 8")
        if self.experts_per_token > self.num_experts:
            allowed = f"must not exceed num_experts={self.num_experts}"
            raise BadInput("model.experts_per_token", self.experts_per_token, allowed)

    @property
    def not_exported(self) -> str | None:
        """Why transformers cannot hold this model; None if they can."""
        return self._balance().not_exported

    def mixture_parts(self) -> tuple[Router, Experts, NoBalance, int]:
        """The arguments of `MixtureOfExperts`: router, experts, balance, experts per token."""
        n, d = self.num_experts, self.hidden_size
        experts = Experts(n, d, self.intermediate_size)
        return Router(d, n, self.router), experts, self._balance(), self.experts_per_token

    def mixture_size(self) -> LayerSize:
        """Parameters and work of a mixture of these parts."""
        expert = 3 * self.hidden_size * self.intermediate_size
        router = self.num_experts * self.hidden_size
        return LayerSize(
            matrices=router + self.experts_per_token * expert,
            vectors=sum(bias.numel() for bias in self._balance().parameters()),
            attention=0,
            idle=(self.num_experts - self.experts_per_token) * expert,
        )

    @override
    def shared_config(self) -> dict[str, Any]:
        """What transformers' configs of all these decoders have in common."""
        return {
            "head_dim": self.head_size,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.experts_per_token,
            "moe_intermediate_size": self.intermediate_size,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            **super().shared_config(),
        }

    def _balance(self) -> NoBalance:
        return BALANCES[self.balance](self.balance_coefficient, self.num_experts)


def joined(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with each pair of gate and up stacks as one stack, as transformers has them."""
    tensors = {}
    for name, weight in weights.items():
        experts, _, part = name.rpartition(".experts.")
        if part == "gate_proj":
            up = weights[f"{experts}.experts.up_proj"]
            tensors[f"{experts}.experts.gate_up_proj"] = torch.cat((weight, up), 1)
        elif part != "up_proj":
            tensors[name] = weight
    return tensors
