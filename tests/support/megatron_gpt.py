# ruff: noqa: I001  the stand-in for GPUs comes before Megatron
"""A tiny GPT of Megatron Core on CPUs: its model, data and optimizer, and the plain loop that 2BW
must equal."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.support.megatron_cpu import DEVICE  # before anything of Megatron
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import layers
from megatron.core.transformer.moe.router import MoEAuxLossAutoScaler
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn

from pipegap.trainer.corrections.compensation import Taylor, WeightPrediction
from pipegap.trainer.corrections.error_feedback import AdaptiveErrorFeedback, GradientErrorFeedback

SIZES = os.environ.get("MEGATRON_SIZES", "16 2 64 32 4 2").split()
LENGTH, MICRO, VOCABULARY, HIDDEN, LAYERS, HEADS = map(int, SIZES)
UPDATES = 6
GROUPS: dict[tuple[int, int, int], list[Any]] = {}
"""Ranks, stages and tensor parallel, as they are now → their groups."""
TAYLOR, DECAY = 10.0, 0.9
"""λ of DC-ASGD; of what the adaptive λ is an average."""
CORRECTIONS = {
    "taylor": partial(Taylor, coefficient=TAYLOR, decay=0.0),
    "gradients": partial(GradientErrorFeedback, coefficient=1.0),
    "prediction": partial(WeightPrediction, horizon=1.0),
    "adaptive": partial(AdaptiveErrorFeedback, coefficient=1.0, decay=DECAY),
}
"""Word of a setting → its correction, which `plain_loop` makes, too."""
ADAM: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
MASK = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1).to(DEVICE)
POSITIONS = torch.arange(LENGTH).expand(MICRO, -1).to(DEVICE)
CHANGES_NO_NUMBER = {
    "recompute": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "free": {"deallocate_pipeline_outputs": True},
    "fused": {"gradient_accumulation_fusion": True},
}
EXPERTS = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_aux_loss_coeff": 0.01,
    "moe_router_load_balancing_type": "aux_loss",
    "add_bias_linear": False,
}


@dataclass(frozen=True)
class Setting:
    """Words joined by +, such as `bf16+dist+ef`: how Megatron is configured, and λ = 1 (`ef`)."""

    words: str
    pp: int = 2
    tp: int = 1
    replicas: int = 1

    def __str__(self) -> str:
        return f"{self.words}, pp {self.pp}, tp {self.tp}, replicas {self.replicas}"

    def has(self, word: str) -> bool:
        return word in self.words.split("+")

    @cached_property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.has("bf16") else torch.float32

    @property
    def microbatches(self) -> int:
        return 3 if self.has("three") else 4

    def loop(self, late: int) -> tuple[Any, ...]:
        """What the plain loop of this setting depends on."""
        of_loop = "clip", "tied", "experts", "plain", "start", "te", *CORRECTIONS
        words = [self.has(word) for word in of_loop]
        return late, self.has("ef"), self.has("bf16"), self.microbatches, self.replicas, *words

    @property
    def whole(self) -> str:
        """Which whole model it is."""
        return "+".join(word for word in ("tied", "experts") if self.has(word))

    @cached_property
    def options(self) -> dict[str, Any]:
        """Of Megatron's config."""
        chosen = [of for word, of in CHANGES_NO_NUMBER.items() if self.has(word)]
        merged = {key: value for of in chosen for key, value in of.items()}
        return {**merged, **(EXPERTS if self.has("experts") else {})}


def begin(pp: int = 1, tp: int = 1) -> None:
    """Makes Megatron's groups, and destroys others: a thread of gloo's wakes up for each of them a
    hundred times a second."""
    dist.barrier()
    layout = dist.get_world_size(), pp, tp
    stays = {id(None), id(dist.group.WORLD), *map(id, GROUPS.get(layout, ()))}
    for group in [*dist.distributed_c10d._world.pg_map]:
        if id(group) not in stays:
            dist.destroy_process_group(group)
    if layout not in GROUPS:
        GROUPS.clear()
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(tp, pp)
        GROUPS[layout] = [*dist.distributed_c10d._world.pg_map]
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    if DEVICE.type == "cpu":  # in place of Apex's kernel for `gradient_accumulation_fusion`
        layers._grad_accum_fusion_available = True
        layers.fused_weight_gradient_mlp_cuda = SimpleNamespace(
            wgrad_gemm_accum_fp32=_add_product, wgrad_gemm_accum_fp16=_add_product
        )


def _add_product(x: Tensor, gradient: Tensor, total: Tensor) -> None:
    total.add_(gradient.t().matmul(x))


def config_of(setting: Setting, **options: Any) -> TransformerConfig:
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        params_dtype=setting.dtype,
        pipeline_model_parallel_size=setting.pp,
        tensor_model_parallel_size=setting.tp,
        pipeline_dtype=setting.dtype,
        bf16=setting.has("bf16"),
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attention_softmax_in_fp32=True,
        **{"gradient_accumulation_fusion": False, **setting.options, **options},
    )


def gpt(config: TransformerConfig, setting: Setting) -> nn.Module:
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    has_te = setting.has("te")  # Transformer Engine, on a GPU
    make = get_gpt_layer_with_transformer_engine_spec if has_te else get_gpt_layer_local_spec
    spec = make(num_experts=config.num_moe_experts)
    torch.manual_seed(0)
    is_tied = setting.has("tied")
    model = GPTModel(
        config, spec, VOCABULARY, LENGTH, first, last, share_embeddings_and_output_weights=is_tied
    )
    model = model.to(DEVICE)
    return Float16Module(config, model) if config.bf16 else model


def initial_weights(setting: Setting) -> dict[str, Tensor]:
    """Of the whole model, by name, in fp32."""
    whole = Setting(setting.whole, pp=1)
    named = gpt(config_of(whole), whole).named_parameters()
    return {name: weight.detach().clone() for name, weight in named}


def global_name(name: str, config: TransformerConfig) -> str:
    """Of a weight of a stage, in the whole model."""
    name = name.replace("module.", "")
    if name.startswith("decoder.layers."):
        number, rest = name.removeprefix("decoder.layers.").split(".", 1)
        name = f"decoder.layers.{int(number) + get_transformer_layer_offset(config)}.{rest}"
    return name


def shard_of(weight: Tensor, whole: dict[str, Tensor], name: str) -> Tensor:
    """What this rank has of a weight of the whole model."""
    value = whole[name if name in whole else "embedding.word_embeddings.weight"]
    if getattr(weight, "tensor_model_parallel", False):
        size = parallel_state.get_tensor_model_parallel_world_size()
        shards = value.chunk(size, weight.partition_dim)  # type: ignore[attr-defined]
        return shards[parallel_state.get_tensor_model_parallel_rank()]
    return value


def load(model: nn.Module, config: TransformerConfig, whole: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(shard_of(weight, whole, global_name(name, config)))


def batch_of(t: int, m: int, replica: int = 0) -> Iterator[Tensor]:
    """The microbatches of batch t, each [sequences, length + 1]."""
    generator = torch.Generator().manual_seed(1000 * t + replica)
    tokens = torch.randint(VOCABULARY // 4, (m, MICRO, LENGTH + 1), generator=generator)
    return iter(tokens.to(DEVICE))


def forward_step(iterator: Iterator[Tensor], model: nn.Module) -> Any:
    tokens = next(iterator)
    output = model(tokens[:, :-1], POSITIONS, MASK, labels=tokens[:, 1:])

    def loss_of(per_token: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = per_token.float().mean()
        return loss, {"loss": loss.detach().clone()}

    return output, loss_of


def scheduler_of(optimizer: Any) -> Any:
    """A learning rate that falls, and no decay of vectors (`wd_mult`)."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=ADAM["lr"],
        min_lr=0.001,
        lr_warmup_steps=0,
        lr_decay_steps=8,
        lr_decay_style="linear",
        start_wd=ADAM["weight_decay"],
        end_wd=ADAM["weight_decay"],
        wd_incr_steps=0,
        wd_incr_style="constant",
    )


def wrapped(
    config: TransformerConfig, setting: Setting, whole: dict[str, Tensor], **options: Any
) -> tuple[DistributedDataParallel, Any]:
    """The model in DDP and the optimizer, as Megatron's training makes them."""
    model = gpt(config, setting)
    if whole:
        load(model, config, whole)
    distributed, gather = setting.has("dist"), setting.has("gather")
    of_ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=distributed,
        grad_reduce_in_fp32=not setting.has("narrow"),
        overlap_grad_reduce=setting.has("overlap"),
        overlap_param_gather=gather,
        bucket_size=4_000 if setting.has("buckets") else None,
    )
    chunk = DistributedDataParallel(config, of_ddp, model)
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = chunk.no_sync if setting.has("overlap") else None
    adam = OptimizerConfig(
        optimizer="adam",
        lr=ADAM["lr"],
        min_lr=0.001,
        weight_decay=ADAM["weight_decay"],
        bf16=config.bf16,
        adam_beta1=ADAM["betas"][0],
        adam_beta2=ADAM["betas"][1],
        adam_eps=ADAM["eps"],
        clip_grad=0.5 if setting.has("clip") else 0.0,
        use_distributed_optimizer=distributed,
        overlap_param_gather=gather,
        **options,
    )
    return chunk, get_megatron_optimizer(adam, [chunk])


def saves_views(setting: Setting) -> ExitStack:
    """A context in which layers are plain F.linear, whose autograd saves a view of the weight."""
    stack = ExitStack()
    if setting.has("plain"):
        name = "linear_with_grad_accumulation_and_async_allreduce"
        plain = lambda x, weight, bias, *_, **__: nn.functional.linear(x, weight, bias)  # noqa: E731
        stack.enter_context(patch.object(layers, name, plain))
    return stack


def summed_gradients(
    model: nn.Module, weights: list[Tensor], setting: Setting, t: int, losses: list[Tensor]
) -> list[Tensor]:
    """The mean gradient of batch t over microbatches and replicas, in fp32; adds to `losses`."""
    m = setting.microbatches
    sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    for r in range(setting.replicas):
        gradient, batch = [torch.zeros_like(of_weight) for of_weight in sums], batch_of(t, m, r)
        for _ in range(m):
            output, loss_of = forward_step(batch, model)
            loss, logged = loss_of(output)
            losses.append(logged["loss"])
            MoEAuxLossAutoScaler.set_loss_scale(torch.tensor([1 / m], device=DEVICE))
            (loss / m).backward()
            for total, weight in zip(gradient, weights, strict=True):
                total.add_(weight.grad)  # type: ignore[arg-type]
                weight.grad = None
        for total, of_replica in zip(sums, gradient, strict=True):
            total.add_(of_replica / setting.replicas)
    return sums


def plain_loop(whole: dict[str, Tensor], setting: Setting, late: int) -> dict[str, Any]:
    """The loop of docs/semantics.md in one process, with fp32 masters: u_t is from the gradient at
    W(max(0, t − late)), and vectors do not decay, as in Megatron."""
    words = [word for word in setting.words.split("+") if word not in CHANGES_NO_NUMBER]
    single = Setting("+".join(words), pp=1)
    config = config_of(single)
    model = gpt(config, single)
    load(model, config, whole)
    start = 2 if setting.has("start") else 0
    named = {global_name(name, config): weight for name, weight in model.named_parameters()}
    masters = [weight.detach().float().clone() for weight in named.values()]
    matrices, vectors = [w for w in masters if w.ndim > 1], [w for w in masters if w.ndim == 1]
    groups = [{"params": matrices, "wd_mult": 1.0}, {"params": vectors, "wd_mult": 0.0}]
    optimizer = torch.optim.AdamW([of for of in groups if of["params"]], **ADAM)
    scheduler = scheduler_of(optimizer)
    versions, losses, norms = [[w.clone() for w in masters]], [], []
    late_versions = [versions[0]]  # what late batches read of each version
    averages: list[Tensor] = []
    last_update: list[Tensor] = []
    last_gradients: list[Tensor] = []
    for t in range(UPDATES):
        read = min(t, max(start, t - late))
        values = (versions if read == t else late_versions)[read]
        for weight, value in zip(named.values(), values, strict=True):
            weight.data.copy_(value)
        sums = summed_gradients(model, [*named.values()], setting, t, losses)
        raw = [g.clone() for g in sums]
        if setting.has("taylor") and t > read:  # DC-ASGD with D = g ⊙ g
            for g, newest, older in zip(sums, versions[t], versions[read], strict=True):
                g.add_(g * g * (newest - older), alpha=TAYLOR)
        if setting.has("gradients") and t > read:
            for g, earlier in zip(sums, last_gradients, strict=True):
                g.add_(g - earlier)
        last_gradients = raw
        norms.append(torch.linalg.vector_norm(torch.stack([g.norm() for g in sums])))
        if setting.has("clip") and 0.5 / (norms[-1] + 1e-6) < 1:
            torch._foreach_mul_(sums, 0.5 / (norms[-1].item() + 1e-6))
        for weight, of_batch in zip(masters, sums, strict=True):
            weight.grad = of_batch
        optimizer.step()
        scheduler.step(1)
        update = [old - new for old, new in zip(versions[t], masters, strict=True)]
        if t > read and setting.has("ef"):
            for weight, earlier, change in zip(masters, last_update, update, strict=True):
                weight.sub_(change - earlier)
        if t > read and setting.has("adaptive"):
            pairs = [*zip(update, last_update, strict=True)]
            products = [agreement(change, earlier) for change, earlier in pairs]
            averages = [
                new.lerp(old, DECAY)
                for new, old in zip(products, averages or products, strict=True)
            ]
            for weight, (change, earlier), (a, b) in zip(masters, pairs, averages, strict=True):
                weight.add_((earlier - change) * (a / b).clamp(0, 1))
        last_update = update
        versions.append([w.clone() for w in masters])
        horizon = float(setting.has("prediction"))
        late_versions.append([w - horizon * u for w, u in zip(masters, update, strict=True)])
    weights = dict(zip(named, versions[-1], strict=True))
    return {"losses": torch.stack(losses), "norms": torch.stack(norms), "weights": weights}


def agreement(update: Tensor, earlier: Tensor) -> Tensor:
    """⟨u_t, u_{t−1}⟩, by three norms, and ‖u_{t−1}‖²: [2]."""
    squares = [x.norm().square() for x in (update, earlier, earlier - update)]
    return torch.stack([(squares[0] + squares[1] - squares[2]) / 2, squares[1]])


def differences(
    setting: Setting,
    model: nn.Module,
    losses: list[Tensor],
    norms: list[float],
    right: dict[str, Any],
) -> dict[str, float]:
    """The largest differences of any rank from the plain loop: of weights, losses and norms."""
    config = config_of(setting)
    of_weights = 0.0
    for name, weight in model.named_parameters():
        there = shard_of(weight, right["weights"], global_name(name, config))
        gap = weight.float() - there.to(weight.dtype).float()
        of_weights = max(of_weights, float(gap.abs().max()))
    of_losses = 0.0
    if losses:
        by_replica = right["losses"].view(UPDATES, setting.replicas, setting.microbatches)
        wanted = by_replica[:, parallel_state.get_data_parallel_rank()].flatten()
        of_losses = float((torch.stack(losses) - wanted[-len(losses) :]).abs().max())
    pairs = zip(norms, right["norms"], strict=False)
    of_norms = max([abs(float(a) - float(b)) / float(b) for a, b in pairs if a] or [0.0])
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (of_weights, of_losses, of_norms))
    return dict(
        zip(("weights", "losses", "norms"), map(max, zip(*every, strict=True)), strict=True)
    )
