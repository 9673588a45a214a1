"""What a GPU makes of pipegap.

    python -m bench.gpu out=FOLDER [scale=135m] [device=cuda] [rounds=5] [parts=limits,steps,…]

Measures the device's ceilings, a whole update by optimizer and arm beside the same step of
transformers, the update alone, the evaluation, and whole trials; writes `out`/measured.json and
`out`/README.md after each part. About ten minutes at 135m on one GPU. With `device=cpu scale=micro`
it is a dry run: every part runs, and its times say nothing.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.gpu import steps
from bench.gpu.device import GPUSetting, ceilings
from trainer.base.cli import BAD_INPUT, DONE, end_with, split_word
from trainer.base.errors import BadInput
from trainer.base.resources import device_name, reproducible, require_device

Measurements = dict[str, Any]
PARTS: dict[str, Callable[[GPUSetting, Measurements], Any]] = {
    "limits": lambda setting, measured: ceilings(setting),
    "steps": lambda setting, measured: steps.whole(setting, measured["limits"]["flops_per_second"]),
    "updates": lambda setting, measured: steps.updates(setting),
    "evaluation": lambda setting, measured: steps.evaluation(setting),
    "trials": lambda setting, measured: steps.trials(setting),
}
"""Name → what it measures, given what the parts before it measured."""
PEER = "transformers, compiled"
"""The step that ours are compared with."""


def main() -> int:
    """Measures what is asked for; returns the exit code."""
    try:
        return _main()
    except BadInput as error:
        print(error, file=sys.stderr)
        return BAD_INPUT


def _main() -> int:
    known = {"scale": "135m", "device": "cuda", "rounds": "5", "parts": ",".join(PARTS)}
    own = dict(map(split_word, sys.argv[1:]))
    if "out" not in own:
        raise BadInput("out", "missing", "must name a folder")
    more = tuple(f"{key}={value}" for key, value in own.items() if key not in {*known, "out"})
    given = {**known, **own}
    parts = given["parts"].split(",")
    if unknown := {*parts} - {*PARTS}:
        raise BadInput("parts", ", ".join(sorted(unknown)), f"must be of {', '.join(PARTS)}")
    if "steps" in parts and "limits" not in parts[: parts.index("steps")]:
        raise BadInput("parts", given["parts"], "must have limits before steps")
    device = require_device(given["device"])
    setting = GPUSetting(given["scale"], device, int(given["rounds"]), more)
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    measured: Measurements = {
        "device": device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "scale": given["scale"],
        "words": setting.words(),
    }
    for part in parts:
        with reproducible(0, torch.get_num_threads()):
            measured[part] = PARTS[part](setting, measured)
        torch.cuda.empty_cache()
        (out / "measured.json").write_text(json.dumps(measured, indent=1))
        (out / "README.md").write_text(page(measured))
    print((out / "README.md").read_text())
    return DONE


def page(measured: Mapping[str, Any]) -> str:
    """All tables of what `bench.gpu` measured; a part that was not measured has none."""
    tables: Mapping[str, Callable[[Any], str]] = {
        "limits": _limits,
        "steps": _steps,
        "updates": _updates,
        "evaluation": _evaluation,
        "trials": _trials,
    }
    parts = [table(measured[part]) for part, table in tables.items() if part in measured]
    versions = f"torch {measured['torch']}, CUDA {measured['cuda']}"
    where = f"{measured['device']}, {versions}; {measured['scale']}"
    return "\n\n".join([where, *parts]) + "\n"


def _limits(ceilings: Mapping[str, float]) -> str:
    return (
        f"A product of matrices in bf16: {ceilings['flops_per_second'] / 1e12:.0f} TFLOP/s; "
        f"a copy: {ceilings['bytes_per_second'] / 1e12:.2f} TB/s, read and written bytes counted."
    )


def _steps(rows: Sequence[Mapping[str, Any]]) -> str:
    peer = next(row["seconds"] for row in rows if row["step"] == PEER)
    head = (
        *("", "ms per update", "least … most", "of it kernels, ms", "tokens/s"),
        *("of the product's FLOP/s", f"{PEER} / this", "peak, GB", "first update, s"),
    )
    return _table(
        head,
        [
            (
                row["step"],
                f"{1e3 * row['seconds']:.0f}",
                f"{1e3 * row['least']:.0f} … {1e3 * row['most']:.0f}",
                f"{1e3 * row['busy']:.0f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{100 * row['share_of_product']:.1f} %",
                f"{peer / row['seconds']:.2f}",
                f"{row['peak_bytes'] / 1e9:.1f}",
                f"{row['first']:.0f}",
            )
            for row in rows
        ],
    )


def _updates(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("the update alone (with a step on eight tokens)", "ms")
    return _table(head, [(row["update"], f"{1e3 * row['seconds']:.1f}") for row in rows])


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("evaluation", "tokens/s")
    return _table(head, [(row["evaluation"], f"{row['tokens_per_second']:,.0f}") for row in rows])


def _trials(rows: Sequence[Mapping[str, Any]]) -> str:
    head = (
        *("a whole trial", "process, s", "trial, s", "first update, s", "tokens/s"),
        *("tokens/s without the first updates", "beside updates, s", "peak, GB", "final loss"),
    )
    return _table(
        head,
        [
            (
                row["trial"],
                f"{row['seconds']:.0f}",
                f"{row['wall_seconds']:.0f}",
                f"{row['first_update']:.0f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['later_tokens_per_second']:,.0f}",
                f"{row['beside_updates']:.1f}",
                f"{row['peak_bytes'] / 1e9:.1f}",
                f"{row['final_val_loss']:.4f}",
            )
            for row in rows
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    end_with(main)
