"""A small Llama and tokens for it."""

import torch

from pipegap.trainer.models.llama import Llama

SMALL = Llama(
    vocab_size=61,
    hidden_size=48,
    num_layers=4,
    num_heads=6,
    num_kv_heads=2,
    intermediate_size=80,
    rope_theta=100000.0,
    rms_norm_eps=1e-5,
    initializer_range=0.1,
    tied_embeddings=True,
    activation_checkpointing=False,
)
TOKENS = torch.randint(0, 61, (3, 18), generator=torch.Generator().manual_seed(0))
