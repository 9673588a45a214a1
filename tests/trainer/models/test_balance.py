"""Balance travels with the backward: under delay it is a naive oracle's, however it is run."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipegap.trainer.base.build import build
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.gradients import Update
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.models.qwen3_moe import Qwen3Moe
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.trial import run_trial
from tests.oracles import mixture
from tests.support import gangs, hybrid, moe, small, toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.moe import MOE
from tests.support.trials import checkpoint_after_5, rows, untimed
from tests.support.whole import emulated, whole

T = 6
SMALL = replace(
    MOE,
    hidden_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_size=4,
    num_layers=2,
    intermediate_size=8,
    num_experts=4,
    initializer_range=0.3,
)
BALANCED = {
    "none": SMALL,
    "loss": replace(SMALL, balance="loss", balance_coefficient=0.3),
    "bias": replace(SMALL, balance="bias", balance_coefficient=0.02),
}
every_balance = pytest.mark.parametrize("balance", BALANCED)


def batch(t: int) -> Tensor:
    return torch.randint(0, 61, (8, 7), generator=torch.Generator().manual_seed(t))


def trained(recipe: Qwen3Moe, num_stages: int, num_replicas: int) -> tuple[Emulated, list[Update]]:
    """Under 2BW; a drain after 3 updates."""
    schedule = pipedream_2bw(T, num_stages=num_stages, num_microbatches=2, **PHASES)
    executor = emulated(recipe, schedule, batch, num_replicas)
    return executor, toy.run(executor, (0, 3, T))


def naive(recipe: Qwen3Moe, num_parts: int) -> tuple[nn.Module, list[float], list[float]]:
    """The oracle from the same initial weights; it learns where the embedding is tied by itself."""
    model = whole(replace(recipe, balance="none")).double()
    is_biased, has_loss = recipe.balance == "bias", recipe.balance == "loss"
    for layer in model.model["layers"].children():
        ours = dict(layer.mlp.named_parameters())
        speed, loss = (recipe.balance_coefficient * by for by in (is_biased, has_loss))
        layer.mlp = mixture.Mixture(recipe, speed, loss).double()
        with torch.no_grad():
            layer.mlp.gate.weight.copy_(ours["gate.weight"])
            for e, expert in enumerate(layer.mlp.experts):
                for name, weight in expert.named_parameters():
                    weight.copy_(ours[f"experts.{name.removesuffix('.weight')}"][e])
    kind = kinds(model)
    losses, norms = mixture.train(
        model,
        ADAMW([(kind[name], weight) for name, weight in model.named_parameters()]),
        lambda t: ADAMW.keywords["lr"] * toy.lr_factor(t),
        [batch(t) for t in range(T)],
        delay=1,
        num_parts=num_parts,
        coefficient=1.0,
        clip_norm=0.5,
    )
    return model, losses, norms


@every_balance
@pytest.mark.parametrize(("num_stages", "num_replicas"), [(1, 1), (2, 2)])
def test_training_is_the_oracles(balance: str, num_stages: int, num_replicas: int) -> None:
    recipe = BALANCED[balance]
    executor, updates = trained(recipe, num_stages, num_replicas)
    model, losses, norms = naive(recipe, 2 * num_replicas)
    within = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
    within([u.loss for u in updates], losses)
    within([u.grad_norm for u in updates], norms)
    weights, moved = executor.weights(), 0
    for name, weight in model.named_parameters():
        path, _, expert = name.partition(".experts.")
        if expert:
            number, matrix, _ = expert.split(".")
            within(weights[f"{path}.experts.{matrix}"][int(number)], weight.detach())
        else:
            within(weights[name], weight.detach())
    for i, layer in enumerate(model.model["layers"].children()):
        if balance == "bias":
            steps = weights[f"model.layers.{i}.mlp.balance.bias"].tolist()
            assert steps == layer.mlp.steps
            moved += sum(map(abs, steps))
    assert bool(moved) == (balance == "bias")


def test_every_balance_changes_the_training() -> None:
    losses = {name: trained(BALANCED[name], 1, 1)[1][-1].loss for name in BALANCED}
    assert len(set(losses.values())) == len(BALANCED)


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_the_plain_loss_has_plain_gradients(balance: str) -> None:
    """Of evaluation mode, in which curvature is observed; biases choose there too."""
    tokens = batch(0)
    module, plain = whole(BALANCED[balance]).eval(), whole(SMALL)
    for model in (module, plain):
        cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    expected = dict(plain.named_parameters())
    for name, weight in module.named_parameters():
        if name in expected:
            assert torch.equal(weight.grad, expected[name].grad)
        else:
            assert weight.grad is None


def test_a_bias_moves_the_choice_and_not_the_shares() -> None:
    module, tokens = whole(BALANCED["bias"]), batch(0)[:, :-1]
    mlp = next(iter(module.model["layers"].children())).mlp
    visits: list[Tensor] = []
    mlp.experts.register_forward_pre_hook(lambda _, given: visits.append(given[2].loads))
    before = module(tokens)
    with torch.no_grad():
        mlp.balance.bias[2] = 100.0  # 100 steps of 0.02
    after = module(tokens)
    assert visits[1][2] == tokens.numel()
    assert not torch.equal(before, after)
    with torch.no_grad():
        mlp.balance.bias += 5.0  # the same for all
    assert torch.equal(module(tokens), after)


def test_biased_models_are_kept_by_our_own_names(tmp_path: Path) -> None:
    """transformers cannot hold them: there is no folder for it."""
    words = (*moe.WORDS, "model.balance=bias", "save_final=true", "num_updates=2")
    config = small.config(tmp_path, *words, f"out={tmp_path / 'trial'}")
    run_trial(config)
    assert not (tmp_path / "trial" / "final").exists()
    model = build(config["model"])
    module = model.stage(0, model.split(1, 1))
    kept = load_file(tmp_path / "trial" / "final.safetensors")
    assert dict(module.named_parameters()).keys() == kept.keys()
    assert any(name.endswith("bias") and weight.any() for name, weight in kept.items())


@pytest.mark.parametrize(
    ("family", "balance", "optimizer", "dtype"),
    [
        (hybrid.WORDS, "bias", "mars", "bfloat16"),
        pytest.param(moe.WORDS, "loss", "muon", "float32", marks=pytest.mark.slow),
        pytest.param(moe.WORDS, "bias", "soap", "float32", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_trial_goes_on_with_other_stages(
    family: tuple[str, ...], balance: str, optimizer: str, dtype: str, tmp_path: Path
) -> None:
    words = (
        *(*family, f"model.balance={balance}", f"optimizer={optimizer}", f"dtype={dtype}"),
        *("pipeline=pipedream_2bw", "pipeline.num_microbatches=4", "correction=error_feedback"),
        *("model.activation_checkpointing=true", "num_updates=7", "diagnostics=3"),
    )

    def config(name: str, num_stages: int, *more: str) -> dict[str, object]:
        stages = f"pipeline.num_stages={num_stages}"
        return small.config(tmp_path, *words, stages, f"out={tmp_path / name}", *more)

    path = checkpoint_after_5(config("stopped", 2))
    whole_trial = run_trial(config("whole", 4))
    resumed = run_trial(config("resumed", 4, f"resume_from={path}"))
    same = run_trial(config("stopped", 2))
    ids = {"trial_id", "layers_by_stage", "delays"}
    for other in (resumed, same):
        result, expected = (
            {key: value for key, value in untimed(trial).items() if key not in ids}
            for trial in (other, whole_trial)
        )
        assert result == expected
    assert rows(tmp_path / "resumed") == rows(tmp_path / "whole")[5:]
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")


@pytest.mark.parametrize(
    ("num_stages", "num_replicas", "first"),
    [
        pytest.param(4, 1, 0, id="four stages"),
        pytest.param(2, 2, 1, id="two replicas of two"),
        pytest.param(4, 1, 1, id="four stages, the others", marks=pytest.mark.slow),
        pytest.param(2, 2, 0, id="two replicas of two, the others", marks=pytest.mark.slow),
    ],
)
def test_the_true_pipeline_gives_the_emulations_numbers(
    num_stages: int, num_replicas: int, first: int, tmp_path: Path
) -> None:
    """Each second of the trials, from the `first` on."""
    shape = (
        *("batch_size=16", "num_updates=6", "clip_norm=0.5", "pipeline.num_microbatches=4"),
        *(f"pipeline.num_stages={num_stages}", f"num_replicas={num_replicas}", "seq_len=8"),
    )
    delayed = ("pipeline=pipedream_2bw", "correction=error_feedback")
    biased, narrow = "model.balance=bias", "dtype=bfloat16"
    configs = [
        small.config(tmp_path, *words[0], *shape, *words[1:])
        for words in (
            (moe.WORDS, *delayed, "optimizer=muon"),
            (moe.WORDS, *delayed, "optimizer=muon", biased, "model.router=vector"),
            (moe.WORDS, *delayed, biased, "clip_scope=stage", narrow),
            (moe.WORDS, "pipeline=sync", "model.tied_embeddings=false"),
            (moe.WORDS, "pipeline=zero_bubble_h1", biased, narrow),
            (hybrid.WORDS, *delayed, "optimizer=muon", narrow),
            (hybrid.WORDS, "pipeline=zero_bubble_h1", biased, "model.tied_embeddings=false"),
        )[first::2]
    ]
    assert [len(numbers.updates) for numbers in gangs.all_equal(configs)] == [6] * len(configs)
