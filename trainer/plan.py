"""What a trial will be, known before it runs and without its data: id, length, cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.build import build
from trainer.identity import trial_id


@dataclass(frozen=True)
class Plan:
    """`tokens` and `flops` (forward and backward) are those of the whole training."""

    trial_id: str
    data_hash: str | None
    num_parameters: int
    num_updates: int
    tokens: int
    flops: float


def plan_trial(config: Mapping[str, Any]) -> Plan:
    """The plan of a validated config; raises BadInput for a schedule or model that cannot be."""
    model = build(config["model"])
    tokens_per_update = config["batch_size"] * config["seq_len"]
    num_updates = config["num_updates"]
    if num_updates is None:
        tokens = config["tokens_per_parameter"] * model.num_parameters
        num_updates = max(1, round(tokens / tokens_per_update))
    build(config["pipeline"], num_updates)
    tokens = num_updates * tokens_per_update
    hash_of_data = build(config["data"]).hash
    return Plan(
        trial_id(config, hash_of_data),
        hash_of_data,
        model.num_parameters,
        num_updates,
        tokens,
        tokens * model.flops_per_token(config["seq_len"]),
    )
