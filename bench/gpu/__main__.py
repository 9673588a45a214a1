"""What a GPU makes of pipegap.

    python -m bench.gpu out=FOLDER [scale=135m] [device=cuda] [rounds=5] [parts=limits,steps,…]

Looks at the machine; rehearses trials with a stop and a resume; then measures the device's
ceilings, a whole update by optimizer and arm beside the same step of transformers, evaluations,
checkpoints, whole trials, two ranks on two GPUs, and an update beside what a fake GPU counted of
it.

Each row is appended to `out`/measured.jsonl when it is measured. `out`/README.md has all rows
there, those of earlier commands too; of two with one name it has the later. A part that fails
leaves a row with its error, and the next part begins. With `device=cpu scale=micro` it is a dry
run: all that needs no GPU runs, and its times say nothing.
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
Cell = Callable[[Any], str]
Column = tuple[str, str, Cell]
"""A key of a row, the head of its column, and how a value is written."""
PEER = "transformers, compiled"
"""The step that ours are compared with."""


def scaled(factor: float, digits: int) -> Cell:
    """Writes a number times a factor with so many digits behind the point."""
    return lambda value: f"{factor * value:,.{digits}f}"


MS, GB, WHOLE = scaled(1e3, 0), scaled(1e-9, 1), scaled(1, 0)
COLUMNS: Mapping[str, Sequence[Column]] = {
    "preflight": (("found", "", str),),
    "rehearsals": (
        ("status", "status", str),
        ("stopped_after", "stopped after", str),
        ("difference", "what a resume changed", str),
        ("seconds", "s in all", WHOLE),
        ("peak_bytes", "peak, GB", GB),
    ),
    "limits": (
        ("flops_per_second", "TFLOP/s", scaled(1e-12, 0)),
        ("bytes_per_second", "TB/s, read and written", scaled(1e-12, 2)),
    ),
    "steps": (
        ("seconds", "ms per update", MS),
        ("least", "least", MS),
        ("most", "most", MS),
        ("busy", "of it kernels, ms", MS),
        ("launches", "kernels", WHOLE),
        ("tokens_per_second", "tokens/s", WHOLE),
        ("share_of_product", "of the product's FLOP/s, %", scaled(100, 1)),
        ("ratio", f"{PEER} / this", scaled(1, 2)),
        ("peak", "peak, GB", GB),
        ("first", "first update, s", WHOLE),
        ("graphs", "graphs", str),
        ("breaks", "breaks", str),
    ),
    "evaluation": (("tokens_per_second", "tokens/s", WHOLE),),
    "checkpoints": (
        ("bytes", "GB", scaled(1e-9, 2)),
        ("copy", "copy to the host, s", scaled(1, 2)),
        ("write", "write, s", scaled(1, 2)),
        ("read", "read, s", scaled(1, 2)),
        ("restore", "restore, s", scaled(1, 2)),
    ),
    "trials": (
        ("seconds", "process, s", WHOLE),
        ("wall_seconds", "trial, s", WHOLE),
        ("first_update", "first update, s", WHOLE),
        ("tokens_per_second", "tokens/s", WHOLE),
        ("later_tokens_per_second", "tokens/s without the first updates", WHOLE),
        ("beside_updates", "beside updates, s", scaled(1, 1)),
        ("peak_bytes", "peak, GB", GB),
        ("final_val_loss", "final loss", scaled(1, 4)),
    ),
    "pair": (
        ("seconds", "ms", scaled(1e3, 3)),
        ("bytes_per_second", "GB/s", scaled(1e-9, 2)),
    ),
    "fake": (
        ("peak", "peak, GB", scaled(1e-9, 2)),
        ("fake_peak", "peak of the fake GPU, GB", scaled(1e-9, 2)),
    ),
}
"""Part → the columns of its table, beside the name of what was measured."""


def preflight(setting: GPUSetting, out: Path) -> Iterator[Row]:
    """Yields a row per thing that was found of the machine."""
    for name, found in look(setting.device, out)._asdict().items():
        yield {"name": name, "found": found}


def main() -> int:
    """Measures what is asked for; returns the exit code. Raises BadInput."""
    known = {"scale": "135m", "device": "cuda", "rounds": "5"}
    own = dict(map(split_word, sys.argv[1:]))
    if "out" not in own:
        raise BadInput("out", "missing", "must name a folder")
    out = Path(own.pop("out"))
    wanted = own.pop("parts", "")
    more = tuple(f"{key}={value}" for key, value in own.items() if key not in known)
    given = {**known, **own}
    device = require_device(given["device"])
    setting = GPUSetting(given["scale"], device, int(given["rounds"]), more)
    measured = _read(out / "measured.jsonl")
    parts = _parts(setting, measured, out)
    chosen = wanted.split(",") if wanted else [*parts]
    if unknown := {*chosen} - {*parts}:
        raise BadInput("parts", ", ".join(sorted(unknown)), f"must be of {', '.join(parts)}")
    out.mkdir(parents=True, exist_ok=True)
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    head = f"{device_name(device)}, {versions}; {given['scale']}"
    failed = False
    for part in chosen:
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
    except BadInput:
        raise
    except Exception as error:
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
    if not path.exists():
        return measured
    text = path.read_text()
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
    done = [row for row in rows if "said" not in row]
    lines = [f"{part}: {row['name']}: {row['said']}" for row in rows if "said" in row]
    if done:
        columns = COLUMNS[part]
        cells = ((row["name"], *_cells(row, columns)) for row in _compared(done))
        lines.append(markdown([part, *(head for _, head, _ in columns)], cells))
    return "\n\n".join(lines)


def _cells(row: Row, columns: Sequence[Column]) -> Iterator[str]:
    for key, _, write in columns:
        value = row.get(key)
        yield "" if value is None else write(value)


def _compared(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows, with the peer's seconds over their own where the peer was measured."""
    peer = next((row for row in rows if row["name"] == PEER), None)
    for row in rows:
        yield row if peer is None else {**row, "ratio": peer["seconds"] / row["seconds"]}


if __name__ == "__main__":
    end_with(lambda: exit_code("python -m bench.gpu", main))
