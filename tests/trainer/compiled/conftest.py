"""Graphs that are run as they were traced, by torch: its compiler takes a minute.

Attention is torch's too, so that they equal a plain stage's to the bit.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from pytorch_optimizer.optimizer import mars
from pytorch_optimizer.optimizer.muon import base, normuon
from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5

from pipegap.trainer.compiled import passes, stage


def _forget() -> None:
    passes.graph_of_stage.cache_clear()
    stage.update_graph.cache_clear()
    stage.feedback_graph.cache_clear()


@pytest.fixture
def library_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library orthogonalises in fp32, as rules do: in its bf16 the last bit of a gradient is
    3 % of an update, where the processor multiplies bf16 itself."""
    exact = partial(zero_power_via_newton_schulz_5, dtype=torch.float32)
    for module in (mars, base, normuon):
        monkeypatch.setattr(module, "zero_power_via_newton_schulz_5", exact)


@pytest.fixture(scope="package")
def graphs() -> Iterator[list[Any]]:
    """Every graph that was to be compiled; those of one shape are made once."""
    seen: list[Any] = []

    def as_it_is(graph: Any, *_: Any) -> Callable[..., Any]:
        seen.append(graph)
        # Where torch traces other strides than it computes with, views of them would fail.
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        graph.recompile()
        run: Callable[..., Any] = graph.forward
        return run

    _forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipegap.trainer.compiled.passes.compiled", as_it_is)
        patch.setattr("pipegap.trainer.compiled.passes.SHORT", 0)
        yield seen
    _forget()
