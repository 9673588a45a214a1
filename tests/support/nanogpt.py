"""A small model of modded-nanogpt's track 3."""

WORDS = (
    *("model=nanogpt", "model.vocab_size=257", "model.hidden_size=24", "model.num_layers=4"),
    *("model.num_heads=2", "model.num_kv_heads=2", "model.intermediate_size=32"),
)
"""After those of `small`, a model as small."""
