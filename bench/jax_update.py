"""A compiled update of `tiny` beside the same update in JAX, the whole of it under one jit.

    taskset -c 0 python -m bench.jax_update [rounds=30]     # needs jax (0.10.2)

Both have the delay and Error Feedback; times are CPU time, on one core.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import torch

from bench.timing import Call, medians, options
from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import reproducible
from tests.support.steps import RandomTokens, ours, resolved, words_of_scale

Array = Any
"""Of JAX."""
AT_ONCE = 100
LATE = ["pipeline=pipedream_2bw", "correction=error_feedback"]
LAYERS, HEADS, KV, SIZE = 2, 2, 1, 32
NS = (3.4445, -4.7750, 2.0315)


def norm(x: Array, w: Array) -> Array:
    """RMSNorm."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


def rotate(x: Array) -> Array:
    """RoPE on [batch, heads, seq, size]."""
    angles = jnp.outer(jnp.arange(x.shape[2]), 1e5 ** -(jnp.arange(0, SIZE, 2) / SIZE))
    cos, sin = jnp.tile(jnp.cos(angles), 2), jnp.sin(angles)
    sin = jnp.concatenate((-sin, sin), -1)
    return x * cos + jnp.roll(x, SIZE // 2, -1) * sin


def loss_of(w: Mapping[str, Array], rows: Array) -> Array:
    """The mean cross-entropy of the model `nano` on rows of tokens."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    x = w["embed"][inputs]
    b, t = inputs.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    for i in range(LAYERS):
        n = norm(x, w[f"{i}.n1"])
        q, k, v = (
            (n @ w[f"{i}.{m}"].T).reshape(b, t, -1, SIZE).transpose(0, 2, 1, 3) for m in "qkv"
        )
        s = jnp.einsum("bhtd,bgsd->bhts", rotate(q), rotate(k)) / SIZE**0.5
        p = jax.nn.softmax(jnp.where(mask, s, -jnp.inf), -1)
        mixed = jnp.einsum("bhts,bgsd->bthd", p, v).reshape(b, t, -1)
        x = x + mixed @ w[f"{i}.o"].T
        n = norm(x, w[f"{i}.n2"])
        x = x + (jax.nn.silu(n @ w[f"{i}.gate"].T) * (n @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
    logits = norm(x, w["norm"]) @ w["embed"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -picked.mean()


def orthogonal(m: Array) -> Array:
    """Muon's Newton-Schulz iteration."""
    tall = m.shape[0] > m.shape[1]
    x = m.T if tall else m
    x = x / (jnp.linalg.norm(x) + 1e-7)
    a, b, c = NS
    for _ in range(5):
        y = x @ x.T
        x = a * x + (b * y + c * y @ y) @ x
    return x.T if tall else x


def update_of(muon: bool, c: Mapping[str, Any]) -> Callable[..., Any]:
    """The jitted update: gradient at W(t − 1), clip, Muon or AdamW, decay, Error Feedback."""
    b1, b2, decay = c["momentum"] if not muon else 0.9, c["variance_decay"], c["weight_decay"]

    @partial(jax.jit, donate_argnums=0)
    def update(state: dict[str, Any], rows: Array, lr: float, t: float) -> tuple[Any, Array]:
        loss, g = jax.value_and_grad(loss_of)(state["late"], rows)  # W(t − 1)
        total = jnp.sqrt(sum((x * x).sum() for x in g.values()))
        g = {k: x * jnp.minimum(1, 1 / (total + 1e-6)) for k, x in g.items()}
        new: dict[str, Any] = {"late": state["w"], "w": {}, "m": {}, "v": {}, "u": {}}
        for k, x in g.items():
            w, m = state["w"][k], state["m"][k]
            if muon and x.ndim == 2 and k != "embed":
                m = 0.95 * m + x
                u = lr * 0.2 * max(x.shape) ** 0.5 * orthogonal(x + 0.95 * m)
            else:
                m = b1 * m + (1 - b1) * x
                v = b2 * state["v"][k] + (1 - b2) * x * x
                u = lr * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + 1e-8)
                new["v"][k] = v
            if x.ndim == 2:
                u = u + lr * decay * w
            new["m"][k], new["u"][k] = m, u
            new["w"][k] = w - u - (u - state["u"][k])  # Error Feedback, λ = 1
        return new, loss

    return update


def theirs(words: list[str]) -> Call:
    """So many updates of JAX's, on random weights of the model's shapes."""
    c = resolved(words)
    module = build(c["model"]).stage(0, build(c["model"]).split(1, c["seq_len"]))
    names = {"embed_tokens": "embed", "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}
    names |= {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    names |= {"input_layernorm": "n1", "post_attention_layernorm": "n2", "norm": "norm"}
    w = {}
    for name, p in module.named_parameters():
        parts = name.split(".")
        layer = next((f"{x}." for x in parts if x.isdigit()), "")
        w[layer + names[parts[-2]]] = jnp.asarray(torch.randn(p.shape).numpy() * 0.1)
    muon = "optimizer=muon" in words
    zeros = {k: jnp.zeros_like(x) for k, x in w.items()}
    state = {"w": w, "late": {k: x + 0 for k, x in w.items()}, "m": zeros}
    state |= {"u": {k: x + 0 for k, x in zeros.items()}}
    is_muon = {k: muon and x.ndim == 2 and k != "embed" for k, x in zeros.items()}
    state |= {"v": {k: x + 0 for k, x in zeros.items() if not is_muon[k]}}
    update, batches, numbers = update_of(muon, c["optimizer"]), RandomTokens(c), count()
    held = [state]
    assert sum(x.size for x in w.values()) == 108_928

    def run() -> None:
        for _ in range(AT_ONCE):
            t = next(numbers)
            rows = jnp.asarray(batches[t].numpy())
            held[0], _ = update(held[0], rows, 1e-4, float(t + 1))
        jax.block_until_ready(held[0])

    return run


def cpu(run: Call) -> float:
    """Its CPU seconds."""
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    """Prints the times."""
    given = options(rounds=30)
    words = words_of_scale("tiny")
    contenders: dict[str, Call] = {}
    for name in ("adamw", "muon"):
        own = [*words, f"optimizer={name}", *LATE]
        contenders[f"JAX, {name}"] = theirs(own)
        contenders[f"pipegap, {name}"] = ours([*own, "compile=update"], AT_ONCE)
        contenders[f"pipegap plain, {name}"] = ours([*own, "compile=false"], AT_ONCE)
    with reproducible(seed=0, num_threads=1):
        seconds = medians(contenders, given.rounds, cpu)
    for name, took in seconds.items():
        print(f"{name}: {took / AT_ONCE * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
