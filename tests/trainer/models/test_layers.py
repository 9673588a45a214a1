"""Attention in bf16 on a CPU: as exact as bf16 is, and each token sees only what came before."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.utils import counters

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.config.work import loss_bytes
from pipegap.trainer.models.decoder import LOSS, balanced, compiled_stage
from pipegap.trainer.models.layers import SHORT, Unprojected, causal, cross_entropy, loss_by
from pipegap.trainer.models.qwen3_next import (
    CausalConvolution,
    fused_gated_delta_rule,
    gated_delta_rule,
    unit,
)
from tests.oracles import mixture as oracle
from tests.support import models
from tests.support.live_memory import LiveMemory
from tests.support.models import SMALL, TOKENS, assert_near
from tests.support.steps import executor, resolved

BF16_EPS = 2.0**-8
HEADS = [(3, 1), (4, 2), (2, 2)]


def drawn(heads: int, key_heads: int, seq_len: int, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(heads)
    shapes = [(2, num_heads, seq_len, 8) for num_heads in (heads, key_heads, key_heads)]
    numbers = (torch.randn(shape, generator=draw) for shape in shapes)
    return [x.bfloat16().to(dtype).requires_grad_() for x in numbers]


def averages(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, query by query."""
    per_key = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        for t in range(q.shape[2]):
            keys, values = (x[:, head // per_key, : t + 1] for x in (k, v))
            scores = torch.einsum("bd,btd->bt", q[:, head, t], keys) / q.shape[3] ** 0.5
            out[:, head, t] = torch.einsum("bt,btd->bd", scores.softmax(-1), values)
    return out


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_the_definition(
    heads: tuple[int, int], dtype: torch.dtype
) -> None:
    exact, given = drawn(*heads, 12, torch.float64), drawn(*heads, 12, dtype)
    expected, output = averages(*exact), causal(*given)
    assert output.dtype == dtype
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    (expected * weights).sum().backward()
    (output * weights).sum().backward()
    tolerance = 1e-12 if dtype == torch.float64 else 4 * BF16_EPS
    gradients = [(x.grad, y.grad) for x, y in zip(exact, given, strict=True)]
    for reference, rounded in [(expected, output), *gradients]:
        assert reference is not None
        assert rounded is not None
        distance = (rounded.detach().double() - reference.detach()).norm()
        assert (distance / reference.detach().norm()).item() < tolerance


def test_long_sequences_take_the_kernel_and_agree() -> None:
    """Products need a score for each pair of tokens."""
    q, k, v = drawn(2, 1, SHORT + 1, torch.bfloat16)
    kernel = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.equal(causal(q, k, v), kernel)
    short = [x[:, :, :SHORT] for x in (q, k, v)]
    # Some units of bf16's rounding, 0.4 %.
    assert_near(causal(*short), kernel[:, :, :SHORT], 0.02)
    assert not torch.equal(causal(*short), kernel[:, :, :SHORT])


# The gated delta rule in chunks is the recurrence, and its parts are what they are called.

SEQ_LEN = 13


def drawn_of_delta(dtype: torch.dtype, decay: float) -> list[Tensor]:
    """q, k, v, log decays down to −`decay`, and rates of writing up to 1."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 2, SEQ_LEN, n, generator=generator, dtype=torch.float64) for n in (6, 6, 4)
    )
    gates = torch.rand(2, 2, 2, SEQ_LEN, generator=generator, dtype=torch.float64)
    rate = gates[1]
    rate[..., 3] = 1.0
    return [x.to(dtype) for x in (unit(q), unit(k), v, -decay * gates[0], rate)]


@pytest.mark.parametrize("decay", [0.0, 0.5, 300.0])
@pytest.mark.parametrize("chunk_size", [1, 4, 13, 32])
def test_chunks_are_the_recurrence(chunk_size: int, decay: float) -> None:
    """Also where a token forgets all before it, and where a chunk is longer than the sequence."""
    inputs, expected = drawn_of_delta(torch.float64, decay), drawn_of_delta(torch.float64, decay)
    for tensors in (inputs, expected):
        for x in tensors:
            x.requires_grad_()
    out, reference = gated_delta_rule(*inputs, chunk_size), oracle.gated_delta_rule(*expected)
    torch.testing.assert_close(out, reference, rtol=0, atol=1e-13)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
    for result in (out, reference):
        (result * weights).sum().backward()
    for x, y in zip(inputs, expected, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-12)


def test_weak_decay_after_strong_decay_loses_no_digits_in_fp32() -> None:
    """A difference of cumulative sums would be wrong by 1e-5."""
    inputs = drawn_of_delta(torch.float32, 300.0)
    inputs[3][..., 1::2] /= 3000
    reference = oracle.gated_delta_rule(*(x.double() for x in inputs)).float()
    state = gated_delta_rule(*inputs, SEQ_LEN)
    assert_near(state, reference, 1e-6)  # some units of float32's rounding, 1.2e-7


def test_a_later_token_changes_no_earlier_output() -> None:
    inputs = drawn_of_delta(torch.float64, 0.5)
    before = gated_delta_rule(*inputs, 4)
    for x in inputs:
        x[:, :, 7] *= 0.5
    after = gated_delta_rule(*inputs, 4)
    assert torch.equal(before[:, :, :7], after[:, :, :7])
    assert not torch.equal(before[:, :, 7:], after[:, :, 7:])


def test_the_convolution_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    convolution = CausalConvolution(5, 3).double()
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    convolution.weight.data.copy_(weight)
    x = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)
    padded = F.pad(x.mT, (2, 0))
    expected = F.conv1d(padded, weight.unsqueeze(1), groups=5).mT
    torch.testing.assert_close(convolution(x), expected)


def kernel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk_size: int
) -> tuple[Tensor, None]:
    """The recurrence with arguments as fla-core 0.6 documents them: [batch, seq, heads, …]."""
    assert {x.dtype for x in (q, k, v, beta)} == {torch.bfloat16}
    assert g.dtype == torch.float32
    out = oracle.gated_delta_rule(*(x.transpose(1, 2).float() for x in (q, k, v, g, beta)))
    return out.transpose(1, 2).to(q.dtype), None


def test_the_fused_kernel_gets_what_it_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fla.ops.gated_delta_rule")
    monkeypatch.setattr(module, "chunk_gated_delta_rule", kernel, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    inputs = drawn_of_delta(torch.float32, 0.5)
    fused, chunks = fused_gated_delta_rule(*inputs, 16), gated_delta_rule(*inputs, 16)
    assert_near(fused.float(), chunks, 0.02)  # some units of bf16's rounding, 0.4 %


def test_without_fla_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", None)
    with pytest.raises(BadInput, match=r"fused_delta_rule=True: needs `pip install 'pipegap\[fla"):
        fused_gated_delta_rule(*drawn_of_delta(torch.float32, 0.5), 16)


# The loss that is fused with the head: exact, and never with all logits in memory.

ROWS, LENGTH, WIDTH, WORDS = 3, 17, 8, 61


def inputs(dtype: torch.dtype, length: int = LENGTH, words: int = WORDS) -> list[Tensor]:
    """Hidden states, head and targets."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    hidden, head = draw(ROWS, length, WIDTH).to(dtype), draw(words, WIDTH).to(dtype)
    targets = torch.randint(0, words, (ROWS, length), generator=generator)
    return [hidden.requires_grad_(), head.requires_grad_(), targets]


def plain(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy((hidden @ head.T).flatten(0, 1), targets.flatten())


def gradients(loss: Tensor, hidden: Tensor, head: Tensor) -> list[Tensor]:
    """The loss and its gradients, in float64."""
    return [
        loss.detach().double(),
        *(g.double() for g in torch.autograd.grad(loss, [hidden, head])),
    ]


def error(tensors: list[Tensor], exact: list[Tensor]) -> float:
    """The largest relative error of loss and gradients."""
    pairs = zip(tensors, exact, strict=True)
    return max(float((tensor - reference).norm() / reference.norm()) for tensor, reference in pairs)


@pytest.mark.parametrize("chunk", [1, 7, 51, 1000])
def test_it_is_exact(chunk: int) -> None:
    """In float64; the loss is scaled, and so are its gradients."""
    hidden, head, targets = inputs(torch.float64)
    expected = gradients(3 * plain(hidden, head, targets), hidden, head)
    tripled = 3 * cross_entropy(Unprojected(hidden, head, chunk), targets)
    assert error(gradients(tripled, hidden, head), expected) < 1e-14
    with torch.no_grad():
        evaluated = cross_entropy(Unprojected(hidden, head, chunk), targets)
    assert float(3 * evaluated) == pytest.approx(float(expected[0]), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_as_near_to_float64_as_the_plain_loss(dtype: torch.dtype) -> None:
    """Of the same numbers in this dtype: loss and gradients of both round the logits alike."""
    hidden, head, targets = inputs(dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, head)]
    exact = gradients(plain(*wide, targets), *wide)
    whole = gradients(cross_entropy(hidden @ head.T, targets), hidden, head)
    chunked = gradients(cross_entropy(Unprojected(hidden, head, 16), targets), hidden, head)
    assert 0 < error(chunked, exact) < 1.5 * error(whole, exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk", [None, 64])
def test_the_memory_that_a_plan_counts(chunk: int | None, dtype: str) -> None:
    """And of the fused loss: no tensor is as large as all logits of one byte each."""
    length, words = 512, 257
    setting = (f"batch_size={ROWS}", f"seq_len={length}", f"dtype={dtype}", "num_updates=1")
    config = compose([*setting, f"model.hidden_size={WIDTH}", "model.num_heads=1"])
    config["model"]["loss_chunk"] = chunk
    hidden, head, targets = inputs(getattr(torch, dtype), length, words)
    with LiveMemory() as memory:  # as a stage does, which keeps the loss and not the output
        if chunk is None:
            cross_entropy(hidden @ head.T, targets).backward()
        else:
            cross_entropy(Unprojected(hidden, head, chunk), targets).backward()
    assert memory.peak == pytest.approx(loss_bytes(config, build(config["model"])), rel=0.02)
    assert (memory.largest < ROWS * length * words) == (chunk is not None)


def test_parts_may_be_replaced() -> None:
    """By compiled ones."""
    called: list[str] = []

    def noted(function: Any) -> Any:
        def run(*args: Any) -> Any:
            called.append(function.__name__)
            return function(*args)

        return run

    hidden, head, targets = inputs(torch.float32)
    loss = loss_by(noted)
    assert torch.equal(
        loss(Unprojected(hidden, head, 20), targets),
        cross_entropy(Unprojected(hidden, head, 20), targets),
    )
    loss(hidden @ head.T, targets)
    assert called == ["chunk_loss"] * 3 + ["logits_loss"]


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_s_gradients_are_those_of_the_plain_loss(is_tied: bool) -> None:
    by_loss = []
    for chunk in (None, 16):
        recipe = replace(SMALL, tied_embeddings=is_tied, loss_chunk=chunk)
        module = recipe.stage(0, recipe.split(1, 17))
        recipe.initialise(module, 0)
        cross_entropy(module(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
        by_loss.append({name: weight.grad for name, weight in module.named_parameters()})
    assert by_loss[0].keys() == by_loss[1].keys()
    for name, gradient in by_loss[0].items():
        assert_near(by_loss[1][name], gradient, 1e-4)


def test_the_split_counts_it() -> None:
    """As `LOSS` multiplications per logit: the last stage has fewer layers, or none."""
    recipe = replace(SMALL, vocab_size=1000)
    fused = replace(recipe, loss_chunk=16)
    split = recipe.split(2, 16)
    more = [b - a for a, b in zip(recipe.work(split, 16), fused.work(split, 16), strict=True)]
    assert more == [0, 1000 * LOSS]
    assert [len(layers) for layers in fused.split(2, 16)] == [4, 0]
    assert [len(layers) for layers in split] != [4, 0]
    words = ("scale", "model=moe_2b", "data=fineweb", "seq_len=8192", "batch_size=32")
    config = compose([*words[1:], "num_updates=1", "pipeline.num_stages=4"])
    work = [
        plan_trial({**config, "model": {**config["model"], "loss_chunk": chunk}}).work_by_rank
        for chunk in (None, 4096)
    ]
    assert sum(work[1]) == pytest.approx(sum(work[0]) + 128_000 * LOSS)


# Stages are balanced by counted work; the best cut is found among all.


def every_cut(num_layers: int, p: int) -> list[list[int]]:
    """Sizes of all splits whose first p − 1 stages have a layer."""
    cuts = combinations(range(1, num_layers + 1), p - 1)
    return [[b - a for a, b in pairwise((0, *cut, num_layers))] for cut in cuts]


def by_trying_all(work: list[int], p: int, head: int) -> list[int]:
    """Sizes of the stages, by the rule in `balanced`, of all cuts."""

    def rank(sizes: list[int]) -> tuple[int, int]:
        ends = [0, *accumulate(sizes)]
        stages = [sum(work[a:b]) for a, b in pairwise(ends)]
        return max(*stages[:-1], stages[-1] + head), -sizes[-1]

    if p == 1:
        return [len(work)]
    at_last = min(every_cut(len(work), p), key=rank)[-1]
    return [*by_trying_all(work[: len(work) - at_last], p - 1, 0), at_last]


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(0, 12))
def test_it_is_the_best_of_all_cuts(data: st.DataObject, work: list[int], head: int) -> None:
    p = data.draw(st.integers(1, len(work)))
    split = balanced(tuple(work), p, head)
    assert [layer for layers in split for layer in layers] == list(range(len(work)))
    assert [len(layers) for layers in split] == by_trying_all(work, p, head)


@given(st.data(), st.integers(1, 12), st.integers(0, 12))
def test_equal_layers_before_the_last_stage_are_spread_evenly(
    data: st.DataObject, num_layers: int, head: int
) -> None:
    p = data.draw(st.integers(1, num_layers))
    *sizes, _ = (len(layers) for layers in balanced((1,) * num_layers, p, head))
    assert sizes == sorted(sizes)
    assert not sizes or sizes[-1] - sizes[0] <= 1


@pytest.mark.parametrize(
    ("seq_len", "num_stages", "sizes"),
    [
        # The head, 49,152 · 576 = 28.3 M products a token, is 8 layers of 3.54 M;
        (0, 2, [19, 11]),
        (0, 4, [9, 9, 10, 2]),
        # causal attention over 2,048 tokens adds 1.18 M to each layer: 6 layers.
        (2048, 2, [18, 12]),
        (2048, 4, [9, 9, 9, 3]),
    ],
)
def test_of_smollm2_135m(seq_len: int, num_stages: int, sizes: list[int]) -> None:
    model = build(compose(["model=smollm2_135m", "data=fineweb_edu"])["model"])
    assert [len(layers) for layers in model.split(num_stages, seq_len)] == sizes


# One graph serves all layers of all stages, however the model is cut.

WORDS_OF_COMPILED = (
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
    run = executor(resolved([*WORDS_OF_COMPILED, *words]))
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
    words = (
        *models.WORDS_OF_HYBRID,
        *DELAYED,
        "dtype=bfloat16",
        "eval_dtype=bfloat16",
        "compile=true",
    )
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
