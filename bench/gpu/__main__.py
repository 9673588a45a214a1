"""What a GPU makes of pipegap.

    python -m bench.gpu out=FOLDER [scale=135m] [device=cuda] [rounds=5] [parts=limits,steps,…]

Looks at the machine; rehearses trials with a stop and a resume; then measures the device's
ceilings, a whole update by optimizer and arm beside the same step of transformers, evaluations,
checkpoints, whole trials, two ranks on two GPUs, and an update beside what a fake GPU counted of
it.

Each row is appended to `out`/measured.jsonl when it is measured, in seconds, bytes and what is made
of them. `out`/README.md has all rows there, those of earlier commands too; of two with one name it
has the later. A part that fails leaves a row with its error, and the next part begins. With
`device=cpu scale=micro` it is a dry run: all that needs no GPU runs, and its times say nothing.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.gpu import trials
from bench.gpu.device import GPUSetting, Row, beside_fake, ceilings, evaluation, whole
from pipegap.analysis.table.text import markdown
from pipegap.trainer.base.cli import DONE, FAILED, end_with, exit_code, split_word
from pipegap.trainer.base.errors import BadInput, one_line
from pipegap.trainer.base.resources import device_name, look, reproducible, require_device

Measured = dict[str, dict[str, Row]]
"""Part → name → row."""
PEER = "transformers, compiled"
"""The step that ours are compared with."""


def preflight(setting: GPUSetting, out: Path) -> Iterator[Row]:
    """Yields a row per thing that was found of the machine."""
    for name, value in look(setting.device, out)._asdict().items():
        yield {"name": name, "found": value}


def main() -> int:
    """Measures what is asked for; returns the exit code. Raises BadInput."""
    defaults = {"scale": "135m", "device": "cuda", "rounds": "5"}
    words = dict(map(split_word, sys.argv[1:]))
    if "out" not in words:
        raise BadInput("out", "missing", "must name a folder")
    out = Path(words.pop("out"))
    part_names = words.pop("parts", "")
    more = tuple(f"{key}={value}" for key, value in words.items() if key not in defaults)
    values = {**defaults, **words}
    device = require_device(values["device"])
    setting = GPUSetting(values["scale"], device, int(values["rounds"]), more)
    measured = _read(out / "measured.jsonl")
    parts = _parts(setting, measured, out)
    parts_chosen = part_names.split(",") if part_names else [*parts]
    if unknown := {*parts_chosen} - {*parts}:
        raise BadInput("parts", ", ".join(sorted(unknown)), f"must be of {', '.join(parts)}")
    out.mkdir(parents=True, exist_ok=True)
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    head = f"{device_name(device)}, {versions}; {values['scale']}"
    failed = False
    for part in parts_chosen:
        failed |= not _measure(part, parts[part], measured, out)
        (out / "README.md").write_text(page(head, measured))
    print((out / "README.md").read_text())
    return FAILED if failed else DONE


def _parts(
    setting: GPUSetting, measured: Measured, out: Path
) -> Mapping[str, Callable[[], Iterator[Row]]]:
    """Name → what it measures; the steps use the ceilings that were measured before."""
    return {
        "preflight": lambda: preflight(setting, out),
        "rehearsals": lambda: trials.rehearsals(setting),
        "limits": lambda: ceilings(setting),
        "steps": lambda: whole(setting, _flops(measured)),
        "evaluation": lambda: evaluation(setting),
        "checkpoints": lambda: trials.checkpoints(setting),
        "trials": lambda: trials.trials(setting),
        "pair": lambda: trials.pair(setting),
        "fake": lambda: beside_fake(setting),
    }


def _flops(measured: Measured) -> float:
    if "limits" not in measured:
        raise BadInput("parts", "steps", "must come after limits")
    [row] = measured["limits"].values()
    return float(row["flops_per_second"])


def _measure(part: str, rows: Callable[[], Iterator[Row]], measured: Measured, out: Path) -> bool:
    """Appends the rows of a part to the file, each when it is there; returns whether all went well.

    An error is a row of its own.
    """
    try:
        with reproducible(0, torch.get_num_threads()):
            for row in rows():
                _append(part, row, measured, out)
        return True
    except BadInput:  # the command is wrong, and not the machine
        raise
    except Exception as error:  # whatever fails on this machine, the other parts are worth having
        why = f"{type(error).__name__}: {one_line(error)}"
        _append(part, {"name": "failed", "said": why}, measured, out)
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _append(part: str, row: Row, measured: Measured, out: Path) -> None:
    measured.setdefault(part, {})[row["name"]] = row
    with (out / "measured.jsonl").open("a") as file:
        file.write(json.dumps({"part": part, **row}) + "\n")
    print(f"{part}: {row['name']}", file=sys.stderr, flush=True)


def _read(path: Path) -> Measured:
    """What earlier commands measured. Drops a last line that a kill has cut."""
    measured: Measured = {}
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    for line in whole.splitlines():
        row = json.loads(line)
        measured.setdefault(row.pop("part"), {})[row["name"]] = row
    return measured


def page(head: str, measured: Mapping[str, Mapping[str, Row]]) -> str:
    """All tables; `measured`: part → name → row. A part without a row has none."""
    parts = [_part(name, list(rows.values())) for name, rows in measured.items() if rows]
    return "\n\n".join([head, *parts]) + "\n"


def _part(part: str, rows: Sequence[Row]) -> str:
    done = [*_compared([row for row in rows if "said" not in row])]
    lines = [f"{part}: {row['name']}: {row['said']}" for row in rows if "said" in row]
    if done:
        keys = [*dict.fromkeys(key for row in done for key in row if key != "name")]
        cells = ((row["name"], *(_written(row.get(key)) for key in keys)) for row in done)
        lines.append(markdown([part, *keys], cells))
    return "\n\n".join(lines)


def _written(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _compared(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows, with the peer's seconds over their own where the peer was measured."""
    peer = next((row for row in rows if row["name"] == PEER), None)
    for row in rows:
        yield row if peer is None else {**row, "ratio": peer["seconds"] / row["seconds"]}


if __name__ == "__main__":
    end_with(lambda: exit_code("python -m bench.gpu", main))
