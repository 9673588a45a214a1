"""A small mixture of experts in Qwen3-MoE's shape, and tokens for it."""

from typing import Any

import torch

from pipegap.trainer.models.qwen3_moe import Qwen3Moe

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_size": 16,
    "num_experts": 8,
    "experts_per_token": 2,
    "intermediate_size": 24,
    "router": "matrix",
    "balance": "none",
    "balance_coefficient": 0.05,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.1,
    "tied_embeddings": True,
    "activation_checkpointing": False,
}
"""The keys of any small model with experts."""
MOE = Qwen3Moe(**SIZES)
TOKENS = torch.randint(0, 61, (3, 33), generator=torch.Generator().manual_seed(0))
WORDS = (
    "model=micro_moe",
    "model.num_heads=2",
    "model.head_size=8",
    "model.intermediate_size=16",
    "model.num_layers=4",
)
"""After those of `small`, a mixture as small."""
