"""What holds for every family: it is transformers' model, however it is cut and run."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Update
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.models.qwen3_moe import Qwen3Moe
from pipegap.trainer.models.qwen3_next import Qwen3Next
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.trial import run_trial
from tests.oracles import mixture
from tests.support import gangs, models, small_sweep, toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.models import (
    HYBRID,
    MOE,
    SMALL,
    TOKENS_OF_MOE,
    assert_equal,
    assert_near,
    emulated,
    in_float64,
    theirs,
    whole,
)
from tests.support.trials import checkpoint_after_5, rows, untimed

transformers = pytest.importorskip("transformers")

INPUTS, TARGETS = TOKENS_OF_MOE[:, :-1], TOKENS_OF_MOE[:, 1:]
EVERY: dict[str, Decoder] = {
    "llama": SMALL,
    "llama, untied": replace(SMALL, tied_embeddings=False),
    "llama, a key for each query": replace(SMALL, num_kv_heads=6),
    "llama, one key": replace(SMALL, num_kv_heads=1),
    "moe": MOE,
    "moe, untied": replace(MOE, tied_embeddings=False, num_kv_heads=4),
    "moe, one expert per token": replace(MOE, experts_per_token=1, num_experts=5),
    "hybrid": HYBRID,
    "hybrid, untied": replace(
        HYBRID, tied_embeddings=False, num_kv_heads=4, partial_rotary_factor=1.0
    ),
    "hybrid, as many keys as values": replace(
        HYBRID, num_key_heads=4, key_head_size=16, conv_size=3
    ),
    "hybrid, half of the layers": replace(HYBRID, full_attention_every=2, num_value_heads=6),
}
COUNTERPART: dict[type[Decoder], tuple[str, float, float]] = {
    Llama: ("LlamaForCausalLM", 1e-5, 1e-12),
    Qwen3Moe: ("Qwen3MoeForCausalLM", 1e-5, 1e-12),
    Qwen3Next: ("Qwen3NextForCausalLM", 1e-4, 1e-11),
}
"""Transformers' class, and how far logits and gradients may be apart in float32 and in float64, as
shares of the largest: some hundred units of rounding, 1.2e-7 and 2.2e-16, for sums of some hundred
products in a row of layers. Norms of the heads' outputs of a hybrid, which start small, amplify
what float32 rounds."""
FAMILIES = [SMALL, MOE, HYBRID]
every_recipe = pytest.mark.parametrize("recipe", EVERY.values(), ids=EVERY)
every_family = pytest.mark.parametrize("recipe", FAMILIES, ids=["llama", "moe", "hybrid"])


def moved(recipe: Decoder) -> nn.Module:
    """The initial model with other vectors: norms, gates and convolutions that start equal."""
    module = whole(recipe)
    for i, (name, kind) in enumerate(recipe.kinds(module).items()):
        if kind == "vector":
            weight = module.get_parameter(name).data
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    return module


@every_recipe
def test_it_is_the_model_of_transformers(
    recipe: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers finds every weight and no other; logits and gradients are equal. In float64,
    with the same rotary angles, far below any difference that a float32 could hide."""
    name, near, nearer = COUNTERPART[type(recipe)]
    ours = moved(recipe)
    model, report = theirs(recipe, dict(ours.named_parameters()), tmp_path)
    assert type(model).__name__ == name
    assert not any(report.values())
    assert model.num_parameters() == recipe.num_parameters
    assert model.config.tie_word_embeddings == recipe.tied_embeddings
    assert_equal(recipe, ours, model, TOKENS_OF_MOE, logits=near, gradients=near)
    for module in (ours, model):
        module.zero_grad()
    model = in_float64(model, recipe, INPUTS.shape[1], monkeypatch)
    assert_equal(recipe, ours.double(), model, TOKENS_OF_MOE, logits=nearer, gradients=nearer)


@every_family
def test_every_size_of_the_recipe_reaches_the_config(recipe: Decoder, tmp_path: Path) -> None:
    odd = replace(recipe, rope_theta=12345.0, rms_norm_eps=3e-4, initializer_range=0.07)
    model, _ = theirs(odd, dict(whole(odd).named_parameters()), tmp_path)
    assert model.config.rope_parameters["rope_theta"] == odd.rope_theta
    assert model.config.rms_norm_eps == odd.rms_norm_eps
    assert model.config.initializer_range == odd.initializer_range
    # 2 would be an ordinary byte.
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    near = COUNTERPART[type(recipe)][1]
    expected = model(INPUTS, use_cache=False).logits
    assert_near(whole(odd)(INPUTS), expected, near)


@pytest.mark.parametrize(
    ("preset", "parameters", "active"),
    [
        ("smollm2_135m", 134_515_008, 134_515_008),
        ("smollm2_360m", 361_821_120, 361_821_120),
        ("nano", 108_928, 108_928),
        ("tiny", 418_752, 418_752),
        ("tiny_deep", 812_736, 812_736),
        ("moe_2b", 1_915_784_192, 506_498_048),
        ("tiny_moe", 2_507_968, 443_584),
        ("micro_moe", 1_306_816, 422_080),
        ("hybrid_10b", 10_131_256_640, 656_323_904),
        ("tiny_hybrid", 1_434_592, 402_400),
    ],
)
def test_presets_have_their_number_of_parameters(preset: str, parameters: int, active: int) -> None:
    recipe = build(Composer().node([f"model={preset}"])["model"])
    with torch.device("meta"):
        module = recipe.stage(0, recipe.split(1, 8))
        config = transformers.AutoConfig.for_model(**recipe.pretrained({}).config)
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert recipe.num_parameters == parameters == sum(p.numel() for p in module.parameters())
    assert model.num_parameters() == parameters
    idle = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    if idle:
        idle *= 1 - recipe.experts_per_token / recipe.num_experts
    assert recipe.num_active_parameters == active == parameters - idle


@pytest.mark.parametrize(
    ("recipe", "key", "sizes"),
    [
        (SMALL, "num_heads", {"num_heads": 5, "num_kv_heads": 1}),
        (SMALL, "num_heads", {"num_heads": 16}),
        (SMALL, "num_kv_heads", {"num_kv_heads": 4}),
        (MOE, "head_size", {"head_size": 15}),
        (MOE, "hidden_size", {"hidden_size": 44}),
        (MOE, "intermediate_size", {"intermediate_size": 20}),
        (MOE, "num_kv_heads", {"num_kv_heads": 3}),
        (MOE, "experts_per_token", {"experts_per_token": 9}),
        (HYBRID, "partial_rotary_factor", {"partial_rotary_factor": 0.3}),
        (HYBRID, "partial_rotary_factor", {"head_size": 20}),
        (HYBRID, "num_key_heads", {"num_key_heads": 3}),
        (HYBRID, "hidden_size", {"hidden_size": 44}),
    ],
)
def test_sizes_that_do_not_go_together_are_bad_input(
    recipe: Decoder, key: str, sizes: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=f"model.{key}"):
        replace(recipe, **sizes)


@every_family
def test_the_work_of_stages_is_that_of_the_model(recipe: Decoder) -> None:
    """However it is cut. FLOPs count all of attention, work its causal half and no vectors."""
    seq_len = 1000
    whole_one = sum(recipe.work(recipe.split(1, seq_len), seq_len))
    for num_stages in (2, 4):
        split = recipe.split(num_stages, seq_len)
        assert sum(recipe.work(split, seq_len)) == pytest.approx(whole_one)
    attention = sum(recipe.layer_size(layer).attention for layer in range(recipe.num_layers))
    flops = recipe.flops_per_token(seq_len)
    assert 6 * (whole_one + attention * seq_len) == pytest.approx(flops, rel=0.02)


@every_family
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_stages_in_turn_are_the_whole_model(recipe: Decoder, num_stages: int, tied: bool) -> None:
    recipe = replace(recipe, tied_embeddings=tied)
    model, x, names = whole(recipe), TOKENS_OF_MOE, []
    split = recipe.split(num_stages, 8)
    for index in range(num_stages):
        stage = recipe.stage(index, split)
        recipe.initialise(stage, 0)
        names += [name for name, _ in stage.named_parameters()]
        x = stage(x)
    assert torch.equal(x, model(TOKENS_OF_MOE))
    assert set(names) == {name for name, _ in model.named_parameters()}
    assert len(names) == len(set(names)) + tied


@pytest.mark.parametrize(
    "recipe",
    [SMALL, *(replace(r, balance=by) for r in (MOE, HYBRID) for by in ("none", "loss", "bias"))],
)
def test_activation_checkpointing_changes_no_number(recipe: Decoder) -> None:
    plain, saving = whole(recipe), whole(replace(recipe, activation_checkpointing=True))
    for module in (plain, saving):
        cross_entropy(module(INPUTS), TARGETS).backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("family", [models.WORDS, models.WORDS_OF_HYBRID], ids=["moe", "hybrid"])
def test_a_split_backward_gives_the_whole_ones_numbers(
    family: tuple[str, ...], tmp_path: Path
) -> None:
    words = (*family, "pipeline.num_stages=2", "pipeline.num_microbatches=2", "num_updates=3")
    split, whole_one = (
        gangs.emulated(small_sweep.config(tmp_path, *words, f"pipeline={pipeline}"))
        for pipeline in ("zero_bubble_h1", "sync")
    )
    assert split.updates == whole_one.updates
    assert all(torch.equal(w, whole_one.weights[name]) for name, w in split.weights.items())


# Balance travels with the backward: under delay it is a naive oracle's, however it is run.

T = 6
SMALL_OF_BALANCE = replace(
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
    "none": SMALL_OF_BALANCE,
    "loss": replace(SMALL_OF_BALANCE, balance="loss", balance_coefficient=0.3),
    "bias": replace(SMALL_OF_BALANCE, balance="bias", balance_coefficient=0.02),
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
    module, plain = whole(BALANCED[balance]).eval(), whole(SMALL_OF_BALANCE)
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
    words = (*models.WORDS, "model.balance=bias", "save_final=true", "num_updates=2")
    config = small_sweep.config(tmp_path, *words, f"out={tmp_path / 'trial'}")
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
        (models.WORDS_OF_HYBRID, "bias", "mars", "bfloat16"),
        pytest.param(models.WORDS, "loss", "muon", "float32", marks=pytest.mark.slow),
        pytest.param(models.WORDS, "bias", "soap", "float32", marks=pytest.mark.slow),
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
        return small_sweep.config(tmp_path, *words, stages, f"out={tmp_path / name}", *more)

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
        small_sweep.config(tmp_path, *words[0], *shape, *words[1:])
        for words in (
            (models.WORDS, *delayed, "optimizer=muon"),
            (models.WORDS, *delayed, "optimizer=muon", biased, "model.router=vector"),
            (models.WORDS, *delayed, biased, "clip_scope=stage", narrow),
            (models.WORDS, "pipeline=sync", "model.tied_embeddings=false"),
            (models.WORDS, "pipeline=zero_bubble_h1", biased, narrow),
            (models.WORDS_OF_HYBRID, *delayed, "optimizer=muon", narrow),
            (
                models.WORDS_OF_HYBRID,
                "pipeline=zero_bubble_h1",
                biased,
                "model.tied_embeddings=false",
            ),
        )[first::2]
    ]
    assert [len(numbers.updates) for numbers in gangs.all_equal(configs)] == [6] * len(configs)
