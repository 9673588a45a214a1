"""What a GPU makes of pipegap.

    python -m bench.gpu out=FOLDER [scale=135m] [device=cuda] [rounds=5] [parts=limits,steps,…]

Measures the device's ceilings, a whole update by optimizer and arm beside the same step of
transformers, the update alone, the evaluation, and whole trials; writes `out`/measured.json and
`out`/README.md after each part. About ten minutes at 135m on one GPU. With `device=cpu scale=micro`
it is a dry run: every part runs, and its times say nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.gpu import steps
from bench.gpu.device import GPUSetting, ceilings
from bench.gpu.tables import page
from bench.gpu.trials import trials
from trainer.base.cli import BAD_INPUT, DONE, end_with, split_word
from trainer.base.errors import BadInput
from trainer.base.resources import device_name, reproducible, require_device

Measurements = dict[str, Any]
PARTS: dict[str, Callable[[GPUSetting, Measurements], Any]] = {
    "limits": lambda setting, measured: ceilings(setting),
    "steps": lambda setting, measured: steps.whole(setting, measured["limits"]["flops_per_second"]),
    "updates": lambda setting, measured: steps.updates(setting),
    "evaluation": lambda setting, measured: steps.evaluation(setting),
    "trials": lambda setting, measured: trials(setting),
}
"""Name → what it measures, given what the parts before it measured."""


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


if __name__ == "__main__":
    end_with(main)
