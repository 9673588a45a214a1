"""The counted work of an update: FLOPs against torch's own counter, bytes against closed forms."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipegap.trainer.base.build import build
from pipegap.trainer.compiled.rules_of_matrices import Soap, orthogonal
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.memory import visited, weights_of
from pipegap.trainer.config.work import CAUSAL, SCORED_AGAIN, StageWork, work
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.optimizers.entrywise import adamw
from pipegap.trainer.optimizers.muon import muon
from pipegap.trainer.optimizers.routing import (
    MATRICES,
    Weights,
    eigenbases,
    newton_schulz,
    step_flops,
)

compose = Composer()
ROWS, LENGTH, STAGES = 2, 64, 2
SHAPE = (f"batch_size={ROWS}", f"seq_len={LENGTH}", "data=wiki", "num_updates=1")


def worked(*words: str) -> tuple[dict[str, Any], list[StageWork]]:
    """The config of these words, and its work by stage."""
    config = compose([*SHAPE, *words])
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
    n = build(compose(["model=tiny"])["model"]).num_parameters
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
