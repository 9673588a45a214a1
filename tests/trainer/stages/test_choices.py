"""Which choices of experts a delay makes stale, against sets that are made here."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support import moe, small
from tests.support.trials import ran
from trainer.models.experts import MixtureOfExperts
from trainer.parts import build_emulated, build_parts

DELAYED = ("pipeline=pipedream_2bw", "pipeline.num_microbatches=2", "optimizer.lr=0.05")
T = 5
"""The update that is looked at."""


def choices(module: nn.Module, weights: dict[str, Tensor], tokens: Tensor) -> list[list[set[int]]]:
    """The sets of experts that each token visits, by layer."""
    module.load_state_dict(weights)
    with torch.no_grad():
        module(tokens)
    layers = [layer for layer in module.modules() if isinstance(layer, MixtureOfExperts)]
    return [[set(row) for row in layer.chosen.tolist()] for layer in layers]


def test_shares_and_loads_are_those_of_the_sets(tmp_path: Path) -> None:
    words = (*moe.WORDS, *DELAYED, "diagnostics=1")
    config, (_, written) = small.config(tmp_path, *words), ran(tmp_path, "a", *words)
    measured = written[T]["diagnostics"]

    parts = build_parts(config, config["num_updates"])
    run = build_emulated(config, parts, torch.device("cpu"))
    run.run(0, T - 1, lambda update: None)
    read = {name: weight.clone() for name, weight in run.weights().items()}
    run.run(T - 1, T, lambda update: None)
    newest = run.weights()

    module = parts.model.stage(0, parts.model.split(1, config["seq_len"])).to_empty(device="cpu")
    tokens = parts.batches[T][:, :-1]
    late, fresh = (choices(module, weights, tokens) for weights in (read, newest))
    layers = zip(late, fresh, strict=True)
    pairs = [pair for layer in layers for pair in zip(*layer, strict=True)]
    changed = sum(len(a - b) for a, b in pairs) / sum(len(a) for a, _ in pairs)
    assert changed > 0, "else the case shows nothing"
    loads = [Counter(expert for chosen in layer for expert in chosen) for layer in late]
    mean = sum(loads[0].values()) / config["model"]["num_experts"]
    every = [layer[expert] for layer in loads for expert in range(config["model"]["num_experts"])]
    assert measured["routing"] == {
        "changed_share": pytest.approx(changed, abs=1e-12),
        "least_load": pytest.approx(min(every) / mean, abs=1e-12),
        "greatest_load": pytest.approx(max(every) / mean, abs=1e-12),
    }


def test_without_a_delay_nothing_is_stale(tmp_path: Path) -> None:
    _, written = ran(tmp_path, "a", *moe.WORDS, "diagnostics=5")
    shares = [row["diagnostics"]["routing"]["changed_share"] for row in written[::5]]
    assert shares == [0.0, 0.0, 0.0]


def test_a_model_without_experts_has_none(tmp_path: Path) -> None:
    assert "routing" not in ran(tmp_path, "a", *DELAYED, "diagnostics=6")[1][6]["diagnostics"]
