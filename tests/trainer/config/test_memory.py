"""Memory is counted: the paper's mixture and hybrid against closed forms, peaks beside what
`bench.gpu` measured on an H100, and at 2b on an H200."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from pipegap.sweeps.request.files import scale_file
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.memory import peak_bytes
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.optimizers.routing import Kind, kept_entries
from tests.support.every_optimizer import NAMES, maker

compose = Composer()
ARMS = {
    "sync": (["pipeline=sync"], 14),
    "delay": (["pipeline=pipedream_2bw"], 20),
    "delay_ef": (["pipeline=pipedream_2bw", "correction=error_feedback"], 24),
}
"""Words, and bytes per parameter of a matrix under Muon: master 4, sum of gradients 4, momentum 4,
bf16 leaf 2; under a delay one more of gradients and leaves, under Error Feedback the last update.
"""
D, VOCABULARY = 1024, 128_000


def moe_layer() -> tuple[int, int]:
    """Entries of matrices and of vectors of a layer of moe_2b."""
    attention = 2 * D * 16 * 64 + 2 * D * 4 * 64
    return attention + 64 * D + 64 * 3 * D * 512, 2 * D + 2 * 64


def hybrid_layer(index: int) -> tuple[int, int]:
    """The same of hybrid_10b."""
    mixture = 512 * D + 512 * 3 * D * 256 + 3 * D * 256
    vectors = 2 * D + D  # norms, gate of the shared expert
    if index % 4 == 3:
        return mixture + 3 * D * 8 * 128 + 2 * D * 2 * 128, vectors + 2 * 128
    key, value = 8 * 128, 16 * 128
    delta = D * (2 * key + 3 * value + 2 * 16)
    return mixture + delta, vectors + 4 * (2 * key + value) + 2 * 16 + 128


SIZES = {
    "moe_2b": [moe_layer() for _ in range(16)],
    "hybrid_10b": [hybrid_layer(index) for index in range(24)],
}


def stages_of(model: str, layers_by_stage: list[int]) -> list[tuple[int, int]]:
    """Entries of matrices and of the rest, by stage: embedding first, norm and head last."""
    sizes, found = iter(SIZES[model]), []
    for stage, num_layers in enumerate(layers_by_stage):
        own = [next(sizes) for _ in range(num_layers)]
        rest = VOCABULARY * D * (stage == 0)
        rest += (VOCABULARY * D + D) * (stage == len(layers_by_stage) - 1)
        found.append((sum(m for m, _ in own), sum(v for _, v in own) + rest))
    return found


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("p", [4, 8])
@pytest.mark.parametrize("scale", ["2b", "10b"])
def test_of_the_paper_s_models(scale: str, p: int, arm: str) -> None:
    words, per_matrix = ARMS[arm]
    model = {"2b": "moe_2b", "10b": "hybrid_10b"}[scale]
    true = ("runner=pipelined", f"pipeline.num_stages={p}", f"pipeline.num_microbatches={p}")
    setting = (f"model={model}", "data=fineweb", "seq_len=8192", "dtype=bfloat16", "batch_size=8")
    for optimizer, more in (("muon", 0), ("adamw", 4)):
        config = compose([*setting, *true, *words, f"optimizer={optimizer}"])
        plan = plan_trial(config)
        stages = stages_of(model, plan.layers_by_stage)
        assert sum(map(sum, stages)) == plan.num_parameters
        expected = [(per_matrix + more) * m + (per_matrix + 4) * rest for m, rest in stages]
        assert plan.memory_bytes == max(expected)
        alone = plan_trial({**config, "runner": "emulated"})
        pending = 4 * plan.num_parameters * (arm != "sync")
        assert alone.memory_bytes == sum(expected) - pending


def test_in_fp32_the_newest_leaf_is_the_master() -> None:
    n = plan_trial(compose(["num_updates=1"])).num_parameters
    for words, sets in (
        (["pipeline=sync"], 4),
        (["pipeline=pipedream_2bw"], 5),
        (["pipeline=pipedream_2bw", "correction=error_feedback"], 6),
    ):
        assert plan_trial(compose(["num_updates=1", *words])).memory_bytes == 4 * n * sets


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_counts_what_the_optimizer_keeps(name: str) -> None:
    """But for dion's factor of low rank, the means of rows or columns that normuon, normuonh and
    nanochat keep, and the three numbers of each row that muown does."""
    factory = maker(name)
    kinds: dict[Kind, tuple[int, int]] = {"matrix": (32, 48), "embedding": (40, 16)}
    weights = [(kind, nn.Parameter(torch.randn(shape))) for kind, shape in kinds.items()]
    optimizer = factory(weights)
    for _ in range(2):  # the first update of some makes states alone
        for _, weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
    declared = kept_entries(factory.func)
    for kind, weight in weights:
        kept = [t.numel() for t in tree_leaves(optimizer.state[weight]) if _is_tensor(t)]
        error = {"dion": 0.25, "muown": 0.06}.get(name, 0.035)
        assert declared(kind, weight.shape) == pytest.approx(sum(kept), rel=error)


def _is_tensor(state: object) -> bool:
    """And no number, such as a count of updates."""
    return isinstance(state, torch.Tensor) and state.numel() > 1


DELAY = ("pipeline=pipedream_2bw",)
EF = (*DELAY, "correction=error_feedback")
TWO = (*EF, "compile=false", "batch_size=8", "pipeline.num_microbatches=2")
MEASURED = [
    ("135m", ("compile=false",), 32.6),
    ("135m", (), 18.5),
    ("135m", DELAY, 18.7),
    ("135m", EF, 19.3),
    ("135m", (*EF, "pipeline.num_stages=4"), 40.7),
    ("135m", ("optimizer=muon",), 18.0),
    ("135m", (*EF, "optimizer=muon"), 18.8),
    ("135m", (*EF, "optimizer=soap"), 21.7),
    ("360m", (), 43.0),
    ("360m", (*EF, "optimizer=muon"), 44.0),
    ("2b", TWO, 55.89),
    ("2b", (*TWO, "optimizer=muon"), 63.24),
]
"""GB at the peak of an update, bench/README.md."""


@pytest.mark.parametrize(("scale", "words", "gigabytes"), MEASURED)
def test_a_plan_counts_the_memory_that_a_gpu_used(
    scale: str, words: tuple[str, ...], gigabytes: float
) -> None:
    config = compose([*scale_file(scale), *words, "device=cpu"])
    assert peak_bytes(config, 100) == pytest.approx(1e9 * gigabytes, rel=0.06)


def test_a_comparison_is_counted() -> None:
    """The fresh update and a copy of the weights; Error Feedback needs the update in any case."""
    sets = 2 * 4 * 1_915_784_192
    for optimizer in ("muon", "adamw"):
        config = compose([*scale_file("2b"), *TWO, f"optimizer={optimizer}", "device=cpu"])
        added = peak_bytes({**config, "diagnostics": 10}, 100) - peak_bytes(config, 100)
        assert added == pytest.approx(sets, rel=0.06)


def test_a_true_rank_keeps_less_than_all_stages_and_the_first_one_most_microbatches() -> None:
    four = compose([*scale_file("135m"), *EF, "pipeline.num_stages=4", "device=cpu"])
    of_rank = peak_bytes({**four, "runner": "pipelined"}, 100)
    assert of_rank < peak_bytes(four, 100) / 2
    assert peak_bytes({**four, "runner": "pipelined", "num_replicas": 2}, 100) < of_rank


def test_recomputed_layers_keep_their_inputs() -> None:
    words = [*scale_file("135m"), "device=cpu", "model.loss_chunk=1024"]
    whole, recomputed = (
        peak_bytes(compose([*words, f"model.activation_checkpointing={word}"]), 100)
        for word in ("false", "true")
    )
    inputs = 30 * 22 * 1024 * 576 * 2
    assert 2e9 + inputs < recomputed < whole - 10e9 + inputs
