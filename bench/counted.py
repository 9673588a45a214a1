"""What a plan counts for an update, against what was measured here and published elsewhere.

    python -m bench.counted

Nothing runs: `dry_run=true` prices trials without a measurement in this way. A published model is
counted as a Llama whose matrices have as many entries, without what else it does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.steps import words_of_scale
from sweeps.plan.devices import known_devices, of_update_and_forward
from trainer.config.compose import compose

GPU = ("dtype=bfloat16", "eval_dtype=bfloat16", "compile=true")
ONE_UPDATE = ("num_updates=1", "tokens_per_parameter=null")


@dataclass(frozen=True)
class Measured:
    """A setting, its tokens/s per GPU or core, and where that was measured.

    `more` are keys of the device that differ from the table's. `evaluates`: the tokens are
    those of an evaluation.
    """

    name: str
    words: tuple[str, ...]
    tokens_per_second: float
    where: str
    device: str = "H100"
    more: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = False


def scale(name: str, *words: str) -> tuple[str, ...]:
    """The words of a trial at a scale."""
    return tuple(words_of_scale(name, "device=cpu", *words, *ONE_UPDATE))


def llama(
    width: int, layers: int, heads: int, wide: int, vocabulary: int, *words: str
) -> tuple[str, ...]:
    """The words of a trial of a published model on one GPU."""
    model = {
        "hidden_size": width,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
    }
    keys = [f"model.{key}={value}" for key, value in model.items()]
    given = {word.partition("=")[0]: word for word in (*keys, *words)}
    return ("model=smollm2_135m", "data=fineweb", *GPU, *given.values(), *ONE_UPDATE)


def squared_relu(width: int) -> int:
    """The width of SwiGLU that has as many entries as two matrices of width × 4 width."""
    return 8 * width // 3


H100, H200 = "[above](#on-an-h100)", "[above](#on-an-h200)"
SPEEDRUN, NANOCHAT, TITAN = "modded-nanogpt", "nanochat", "torchtitan"
EF = ("pipeline=pipedream_2bw", "correction=error_feedback")
ROWS = (
    Measured("135m (a fit)", scale("135m"), 259_517, H100),
    Measured("135m, eager", scale("135m", "compile=false"), 134_738, H100),
    Measured("135m, 4 microbatches", scale("135m", "pipeline.num_microbatches=4"), 307_549, H100),
    Measured("360m", scale("360m"), 155_483, H100),
    Measured("135m, evaluation", scale("135m"), 773_913, H100, evaluates=True),
    Measured(
        "135m, evaluation in fp32",
        scale("135m", "eval_dtype=float32"),
        109_124,
        H100,
        evaluates=True,
    ),
    Measured("135m", scale("135m"), 327_917, H200, "H200"),
    Measured("135m, eager", scale("135m", "compile=false"), 164_314, H200, "H200"),
    Measured(
        "135m, delay + EF, 4 microbatches",
        scale("135m", *EF, "pipeline.num_microbatches=4"),
        352_962,
        H200,
        "H200",
    ),
    Measured("135m, evaluation", scale("135m"), 964_939, H200, "H200", evaluates=True),
    Measured(
        "GPT-2 124M, 12 × 768, 64 × 1,024 per GPU",
        llama(768, 12, 6, squared_relu(768), 50304, "batch_size=64", "seq_len=1024"),
        524_288 / 0.14182 / 8,
        SPEEDRUN,
    ),
    Measured(
        "1.5B, 52 × 1,536, 6 × 10 × 1,024 per GPU",
        llama(
            *(1536, 52, 12, squared_relu(1536), 50304),
            *("batch_size=60", "seq_len=1024", "pipeline.num_microbatches=6"),
        ),
        491_520 / 1.70357 / 8,
        SPEEDRUN,
    ),
    Measured(
        "d26, 26 × 1,664, 2 × 16 × 2,048 per GPU",
        llama(
            *(1664, 26, 13, squared_relu(1664), 32768, "model.tied_embeddings=false"),
            *("batch_size=32", "seq_len=2048", "pipeline.num_microbatches=2"),
        ),
        630_000 / 8,
        NANOCHAT,
    ),
    Measured(
        "d20, 20 × 1,280, 32 × 2,048 per GPU (a fit)",
        llama(
            *(1280, 20, 10, squared_relu(1280), 65536, "model.tied_embeddings=false"),
            *("batch_size=32", "seq_len=2048"),
        ),
        529_000 / 8,
        NANOCHAT,
        "A100",
    ),
    Measured(
        "Llama 3.1 8B, 2 × 8,192 per GPU",
        llama(
            *(4096, 32, 32, 14336, 128256, "model.tied_embeddings=false", "batch_size=2"),
            *("model.num_kv_heads=8", "seq_len=8192", "num_replicas=1"),
        ),
        6_667,
        TITAN,
        more={"bytes": 2.4e12},
    ),
    Measured(
        "few_updates",
        scale("few_updates"),
        16 * 128 / 0.1083,
        "[above](#the-tiny-update-on-one-core)",
        "core",
    ),
    Measured(
        "few_updates, bf16",
        scale("few_updates", "dtype=bfloat16"),
        16 * 128 / 0.0564,
        "[above](#the-tiny-update-on-one-core)",
        "core",
    ),
    Measured(
        "tiny", scale("tiny"), 2 * 64 / 0.0066, "[above](#the-tiny-update-on-one-core)", "core"
    ),
)


def counted(row: Measured) -> float:
    """Tokens/s that a plan counts with."""
    config = compose(row.words)
    device = replace(known_devices()[row.device], **row.more)
    of_update, of_forward = of_update_and_forward(config, 1, device)
    seconds = of_forward if row.evaluates else of_update
    return config["batch_size"] * config["seq_len"] / seconds


def main() -> None:
    """Prints the table."""
    print("| | device | measured, tokens/s | counted | counted / measured | where |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in ROWS:
        rate = counted(row)
        ratio = rate / row.tokens_per_second
        numbers = f"{row.tokens_per_second:,.0f} | {rate:,.0f} | {ratio:.2f}"
        print(f"| {row.name} | {row.device} | {numbers} | {row.where} |")


if __name__ == "__main__":
    main()
