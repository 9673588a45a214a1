"""A small hybrid in Qwen3-Next's shape."""

from pipegap.trainer.models.qwen3_next import Qwen3Next
from tests.support.moe import SIZES

HYBRID = Qwen3Next(
    **SIZES,
    full_attention_every=4,
    partial_rotary_factor=0.25,
    num_key_heads=2,
    num_value_heads=4,
    key_head_size=8,
    value_head_size=12,
    conv_size=4,
    chunk_size=12,
    shared_intermediate_size=40,
)
WORDS = (
    "model=tiny_hybrid",
    "model.num_heads=2",
    "model.head_size=8",
    "model.num_key_heads=1",
    "model.num_value_heads=2",
    "model.key_head_size=8",
    "model.value_head_size=8",
    "model.chunk_size=8",
    "model.num_experts=4",
    "model.intermediate_size=16",
    "model.shared_intermediate_size=16",
    "model.num_layers=4",
    "model.full_attention_every=2",
)
"""After those of `small`, a hybrid as small."""
