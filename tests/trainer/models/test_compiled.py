"""One graph serves all layers of all stages, however the model is cut."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from pipegap.trainer.models.recipe import compiled_stage
from tests.support import hybrid
from tests.support.steps import executor, resolved

WORDS = (
    *("model.num_layers=8", "model.hidden_size=24", "model.intermediate_size=24"),
    *("batch_size=8", "seq_len=8", "pipeline.num_microbatches=8"),
)
DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The graphs that are handed to the compiler, which runs them as they are."""
    seen: list[Any] = []

    def run_as_it_is(graph: Any, *_: Any, **__: Any) -> Callable[..., Any]:
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", run_as_it_is)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def losses(*words: str) -> list[float]:
    """Of two updates, and of an evaluation whose last batch is shorter."""
    trained: list[float] = []
    run = executor(resolved([*WORDS, *words]))
    run.run(0, 2, lambda update: trained.append(update.loss))
    draw = torch.Generator().manual_seed(0)
    return [*trained, run.evaluate(torch.randint(0, 256, (5, 9), generator=draw).split(2))]


def test_a_graph_of_a_layer_and_one_of_the_loss(graphs: list[Any]) -> None:
    """For each of three shapes (training, evaluation, its last batch), whatever the cut."""
    for stages in (1, 8):
        compiled = losses(*DELAYED, "compile=true", f"pipeline.num_stages={stages}")
        assert len(graphs) == 3 * 2
        assert compiled == losses(*DELAYED, f"pipeline.num_stages={stages}")


# torch's own, when it compiles an autograd.Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_graph_of_each_kind_of_layer_and_one_of_the_loss(graphs: list[Any]) -> None:
    """For each shape, with a delay, whatever the cut; and none of them is broken in two. A hybrid
    has layers of two kinds, and experts in both."""
    words = (*hybrid.WORDS, *DELAYED, "dtype=bfloat16", "eval_dtype=bfloat16", "compile=true")
    for stages in (1, 2):
        counters.clear()
        losses(*words, f"pipeline.num_stages={stages}")
        assert len(graphs) == 3 * 3
        assert not counters["graph_break"]


def test_a_module_without_layers_is_compiled_as_a_whole(graphs: list[Any]) -> None:
    module, x = nn.Linear(3, 2), torch.ones(1, 3)
    output: Tensor = compiled_stage(module)(x)
    assert len(graphs) == 1
    assert torch.equal(output, module(x))
