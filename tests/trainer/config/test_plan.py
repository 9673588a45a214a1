"""What a trial will evaluate, keep and write is foreseen, against one that ran."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from pipegap.sweeps.request.schema import scale_file
from pipegap.trainer.base.build import build
from pipegap.trainer.compiled.rules import Soap, orthogonal
from pipegap.trainer.config.compose import Composer, compose
from pipegap.trainer.config.plan import RECORD, plan_trial
from pipegap.trainer.config.work import (
    CAUSAL,
    SCORED_AGAIN,
    StageWork,
    peak_bytes,
    visited,
    weights_of,
    work,
)
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.optimizers.entrywise import adamw
from pipegap.trainer.optimizers.muon import muon
from pipegap.trainer.optimizers.routing import (
    MATRICES,
    Kind,
    Weights,
    eigenbases,
    kept_entries,
    newton_schulz,
    step_flops,
)
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.choices import OPTIMIZERS, optimizer_maker
from tests.support.trials import Stop, stop_at


def test_evaluations_are_foreseen(tmp_path: Path) -> None:
    """Their number is that of a trial that runs, and their tokens are those of the split."""
    config = small_sweep.config(tmp_path, "eval_every=5", "num_updates=12")
    run_trial(config)
    [rows] = tmp_path.glob("results/trials/*/metrics.jsonl")
    found = plan_trial(config)
    assert found.num_evaluations == rows.read_text().count("val_loss") == 3
    num_tokens = len(build(config["data"]).open().validation)
    per_token = found.flops / found.tokens / 3  # a forward is a third of forward and backward
    assert found.evaluation_flops == pytest.approx(3 * num_tokens * per_token)
    fewer = plan_trial({**config, "eval_tokens": 16})
    assert fewer.evaluation_flops == pytest.approx((num_tokens + 2 * 16) * per_token)
    missing = {**config, "data": {**config["data"], "path": str(tmp_path / "none")}}
    assert plan_trial(missing).evaluation_flops == 0


DELAY_OF_3 = ("pipeline=constant_delay", "pipeline.delay=3")
LAYOUTS = [
    ["pipeline=sync"],
    ["pipeline=pipedream_2bw"],
    ["pipeline=pipedream_2bw", "correction=error_feedback"],
    ["pipeline=pipedream_2bw", "correction=weight_prediction"],
    ["pipeline=pipedream_2bw", "dtype=bfloat16"],
    ["pipeline=pipedream", "pipeline.num_stages=4"],
    [*DELAY_OF_3],
    ["pipeline=pipedream_2bw", "correction=learning_rate"],
    [*DELAY_OF_3, "correction=error_feedback", "correction.lag=delay"],
    [*DELAY_OF_3, "correction=taylor", "correction.decay=0.9"],
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_the_size_of_a_checkpoint_is_foreseen(layout: list[str], tmp_path: Path) -> None:
    """Against one that is written: AdamW's, whose state is counted exactly."""
    small_sweep.corpus(tmp_path)
    words = [f"data.path={tmp_path / 'corpus'}", f"out={tmp_path / 't'}", "batch_size=1"]
    words += ["seq_len=8", "num_updates=5", "checkpoint_every=4"]
    config = compose([*words, *layout])
    with pytest.raises(Stop):
        run_trial(config, stop_at(4))
    [path] = (tmp_path / "t").glob("checkpoint-*")
    assert plan_trial(config).checkpoint_bytes == pytest.approx(path.stat().st_size, rel=0.15)


def test_what_is_kept_of_a_trial_is_foreseen(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path, "num_updates=200", "save_final=true")
    run_trial(config)
    files = {
        f.stat().st_ino: f.stat().st_size for f in tmp_path.glob("results/**/*") if f.is_file()
    }
    assert plan_trial(config).kept_bytes == pytest.approx(sum(files.values()), rel=0.3)
    assert plan_trial({**config, "num_updates": 1, "save_final": False}).kept_bytes < RECORD + 200


# Memory is counted: the paper's mixture and hybrid against closed forms, peaks beside what
# `bench.gpu` measured on an H100, and at 2b on an H200.

compose_of_memory = Composer()
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
        config = compose_of_memory([*setting, *true, *words, f"optimizer={optimizer}"])
        plan = plan_trial(config)
        stages = stages_of(model, plan.layers_by_stage)
        assert sum(map(sum, stages)) == plan.num_parameters
        expected = [(per_matrix + more) * m + (per_matrix + 4) * rest for m, rest in stages]
        assert plan.memory_bytes == max(expected)
        alone = plan_trial({**config, "runner": "emulated"})
        pending = 4 * plan.num_parameters * (arm != "sync")
        assert alone.memory_bytes == sum(expected) - pending


def test_in_fp32_the_newest_leaf_is_the_master() -> None:
    n = plan_trial(compose_of_memory(["num_updates=1"])).num_parameters
    for words, sets in (
        (["pipeline=sync"], 4),
        (["pipeline=pipedream_2bw"], 5),
        (["pipeline=pipedream_2bw", "correction=error_feedback"], 6),
    ):
        assert plan_trial(compose_of_memory(["num_updates=1", *words])).memory_bytes == 4 * n * sets


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_plan_counts_what_the_optimizer_keeps(name: str) -> None:
    """But for dion's factor of low rank, the means of rows or columns that normuon, normuonh and
    nanochat keep, and the three numbers of each row that muown does."""
    factory = optimizer_maker(name)
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
    config = compose_of_memory([*scale_file(scale), *words, "device=cpu"])
    assert peak_bytes(config, 100) == pytest.approx(1e9 * gigabytes, rel=0.06)


def test_a_comparison_is_counted() -> None:
    """The fresh update and a copy of the weights; Error Feedback needs the update in any case."""
    sets = 2 * 4 * 1_915_784_192
    for optimizer in ("muon", "adamw"):
        config = compose_of_memory(
            [*scale_file("2b"), *TWO, f"optimizer={optimizer}", "device=cpu"]
        )
        added = peak_bytes({**config, "diagnostics": 10}, 100) - peak_bytes(config, 100)
        assert added == pytest.approx(sets, rel=0.06)


def test_a_true_rank_keeps_less_than_all_stages_and_the_first_one_most_microbatches() -> None:
    four = compose_of_memory([*scale_file("135m"), *EF, "pipeline.num_stages=4", "device=cpu"])
    of_rank = peak_bytes({**four, "runner": "pipelined"}, 100)
    assert of_rank < peak_bytes(four, 100) / 2
    assert peak_bytes({**four, "runner": "pipelined", "num_replicas": 2}, 100) < of_rank


def test_recomputed_layers_keep_their_inputs() -> None:
    words = [*scale_file("135m"), "device=cpu", "model.loss_chunk=1024"]
    whole, recomputed = (
        peak_bytes(compose_of_memory([*words, f"model.activation_checkpointing={word}"]), 100)
        for word in ("false", "true")
    )
    inputs = 30 * 22 * 1024 * 576 * 2
    assert 2e9 + inputs < recomputed < whole - 10e9 + inputs


# The counted work of an update: FLOPs against torch's own counter, bytes against closed forms.

compose_of_work = Composer()
ROWS, LENGTH, STAGES = 2, 64, 2
SHAPE = (f"batch_size={ROWS}", f"seq_len={LENGTH}", "data=wiki", "num_updates=1")


def worked(*words: str) -> tuple[dict[str, Any], list[StageWork]]:
    """The config of these words, and its work by stage."""
    config = compose_of_work([*SHAPE, *words])
    model, schedule = build(config["model"]), build(config["pipeline"], 1)
    return config, work(config, model, schedule, build(config["correction"], 1, schedule.lags))


def of_grouped(a: torch.Size, b: torch.Size, *_: object, **__: object) -> int:
    """FLOPs of products of groups of rows, each with a matrix of its own: torch does not know."""
    return 2 * a[0] * a[1] * b[-1]


def ran(config: dict[str, Any]) -> list[float]:
    """FLOPs of forward and backward that torch counts, by stage; all scores are made, once."""
    model = build(config["model"])
    split, counted = model.split(STAGES, LENGTH), []
    tokens = torch.randint(0, config["model"]["vocab_size"], (ROWS, LENGTH + 1))
    x = tokens[:, :-1]
    for index in range(STAGES):
        stage = model.stage(index, split)
        model.initialise(stage, 0)
        x = x.detach().requires_grad_(x.is_floating_point())
        mapping = {torch.ops.aten._grouped_mm: of_grouped}
        counter = FlopCounterMode(display=False, custom_mapping=mapping)
        with counter, sdpa_kernel(SDPBackend.MATH):
            x = stage(x)
            is_last = index == STAGES - 1
            (cross_entropy(x, tokens[:, 1:]) if is_last else x.sum()).backward()
        counted.append(float(counter.get_total_flops()))
    return counted


@pytest.mark.parametrize("model", ["tiny", "tiny_moe"])
def test_flops_are_those_that_torch_counts(model: str) -> None:
    config, stages = worked(f"model={model}", f"pipeline.num_stages={STAGES}")
    mine = [stage.products + stage.attention / (CAUSAL * SCORED_AGAIN) for stage in stages]
    assert mine == ran(config)


def test_a_recomputed_forward_counts() -> None:
    """Torch stops a recomputation before its last product, which no backward needs."""
    words = ("model=tiny_deep", f"pipeline.num_stages={STAGES}")
    config, _ = worked(*words, "model.activation_checkpointing=true")
    whole, saving = (
        sum(stage.products for stage in worked(*words, more)[1])
        for more in ("seed=0", "model.activation_checkpointing=true")
    )
    last = 2 * 256 * 96 * ROWS * LENGTH * config["model"]["num_layers"]
    scores = 16 * 96 * LENGTH * ROWS * LENGTH * config["model"]["num_layers"]  # 8 products of them
    assert saving - last + scores == sum(ran(config))
    assert whole < saving < 4 / 3 * whole


def test_linear_mixers_are_products() -> None:
    """A delta net's head reads its state twice, lets it decay and writes it: 4 products per entry
    of the state, 6 FLOPs of forward and backward for each."""
    config, [stage] = worked("model=tiny_hybrid")
    node, model = config["model"], build(config["model"])
    num_linear = node["num_layers"] - node["num_layers"] // node["full_attention_every"]
    state = node["num_value_heads"] * node["key_head_size"] * node["value_head_size"]
    weights = weights_of(node, 1, LENGTH)
    with_weights = 6 * sum(
        w.size * visited(model, weights)[w.kind] for w in weights[0] if w.kind in MATRICES
    )
    head = 6 * model.hidden_size * model.vocab_size
    products = stage.products - ROWS * LENGTH * (with_weights + head)
    assert products == pytest.approx(6 * 4 * state * num_linear * ROWS * LENGTH, rel=0.02)


def test_bytes_of_an_update() -> None:
    """With a delay and Error Feedback; with bf16 leaves alone; in fp32, where the newest version
    is the master."""
    words = ("dtype=bfloat16", "pipeline=pipedream_2bw", "correction=error_feedback")
    n = build(compose_of_work(["model=tiny"])["model"]).num_parameters
    optimizer = n * 4 * (2 + 2 * 2 + 1 + 2 + 1 + 2)  # weight, moments, gradient; its norm
    leaf = n * (4 + 2)
    correction = n * 4 * (1 + 1 + 2 + 1 + 1 + 2 + 1 + 1 + 1 + 2 + 1)
    updates = [worked(*words[:number])[1][0].update for number in (3, 1, 0)]
    assert updates == [optimizer + leaf + correction, optimizer + leaf, optimizer]


def test_a_process_of_a_pipeline_has_its_replica_s_share() -> None:
    words = ("num_replicas=2", "pipeline.num_stages=2", "pipeline.num_microbatches=1")
    _, alone = worked(*words)
    _, shared = worked(*words, "runner=pipelined")
    _, whole = worked("pipeline.num_stages=2")
    for one, mine, of in zip(alone, shared, whole, strict=True):
        assert one.products == of.products == 2 * mine.products
        assert (one.launches, mine.launches) == (2 * of.launches, of.launches)
        assert mine.update == of.update


def test_products_of_matrix_optimizers_are_those_of_their_steps() -> None:
    """As torch counts them; SOAP renews its bases beside its step."""
    rows, columns = 16, 40
    matrix, scalar = torch.rand(1, rows, columns), torch.tensor(0.5)
    with FlopCounterMode(display=False) as of_muon:
        orthogonal(matrix, 5)
    state = [*torch.rand(2, 1, rows, columns), *(torch.rand(1, n, n) for n in (16, 40, 16, 40))]
    names = ("kept", "new", "new square", "share", "eps", "size")
    with FlopCounterMode(display=False) as of_soap:
        Soap().stepped(matrix, matrix, state, dict.fromkeys(names, scalar))
    assert newton_schulz(rows, columns) == newton_schulz(columns, rows)
    assert newton_schulz(rows, columns) == of_muon.get_total_flops()
    renewed = 1.6 * (rows**3 + columns**3)
    assert eigenbases(rows, columns) - renewed == pytest.approx(of_soap.get_total_flops())


def test_a_stack_of_matrices_is_multiplied_one_by_one_and_no_vector_is() -> None:
    weights: Weights = [("matrix", (4, 8)), ("experts", (3, 4, 8)), ("embedding", (9, 4))]
    assert step_flops(muon, weights) == 4 * newton_schulz(4, 8)
    assert step_flops(adamw, weights) == 0
