"""What is asked: the multiple-choice questions of lm-eval's tasks, as its prompts put them.

Only whoever prepares questions imports lm-eval. Questions are plain data: they can be handed to
other processes, and their hash says what was asked, whatever made it.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput, first_line
from pipegap.trainer.data.benchmarks import BENCHMARKS, FOLDER, splits, subjects

HUB = "hub"
"""In the place of a folder of benchmarks: the Hugging Face hub."""
NEEDS = "needs the package lm-eval: pip install 'pipegap[evaluation]'"
OTHERS = ", or another of lm-eval's (lm-eval ls tasks)"
FEWSHOT_SEED = 1234
"""lm-eval's own default."""


class MultipleChoice(NamedTuple):
    """One question. `requests` are a context and its continuation for each choice, whose
    likelihoods are compared. `choices` are the texts, `gold` is the number of the right one."""

    task: str
    number: int
    requests: tuple[tuple[str, str], ...]
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Questions:
    """The questions of one task; `source` says where the questions are from."""

    task: str
    source: str
    items: Sequence[MultipleChoice]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all questions with their right answers."""
        return hashlib.sha256(json.dumps(self.items).encode()).hexdigest()


def questions(word: str, benchmarks: str = str(FOLDER), limit: int | None = None) -> Questions:
    """Return the questions of a task.

    `word` is one of BENCHMARKS, lm-eval's name of another multiple-choice task, or the path of a
    task file, PATH.yaml. `benchmarks` is the folder that holds BENCHMARKS, or HUB. `limit` keeps
    the first so many questions of each (sub)task. Raises BadInput for a word that names no task,
    or where the data is not there.
    """
    require_named(word)
    _prepare_lm_eval()
    if word.endswith(".yaml"):
        return _collect(word, [_from_file(word)], f"file {Path(word).name}", limit)
    if word in BENCHMARKS and benchmarks != HUB:
        tasks = _from_folder(word, Path(benchmarks))
        return _collect(word, tasks, f"folder {Path(benchmarks).name}", limit)
    return _collect(word, _registered(word), HUB, limit)


def require_named(word: str) -> None:
    """Raise BadInput for a word that cannot name a task.

    lm-eval, which knows all names, takes seconds to be imported: a name that stands in none of its
    files is none.
    """
    if word.endswith(".yaml"):
        if not Path(word).is_file():
            raise BadInput("tasks", word, "must be a task file that is there")
    elif word not in BENCHMARKS and not any(word.encode() in text for text in _task_files()):
        raise one_of("tasks", word, [*BENCHMARKS], OTHERS)


def _task_files() -> Iterator[bytes]:
    """Yield names, then contents, of the files of lm-eval's tasks."""
    if (package := find_spec("lm_eval")) is None or package.origin is None:
        raise BadInput("tasks", "", NEEDS)
    files = [*Path(package.origin).parent.glob("tasks/**/*.yaml")]
    yield from (str(file).encode() for file in files)
    yield from (file.read_bytes() for file in files)


def _prepare_lm_eval() -> None:
    """Silences lm-eval and `datasets`, whose bars are many; raises BadInput without lm-eval."""
    try:
        import datasets
        import lm_eval  # noqa: F401
    except ImportError:
        raise BadInput("tasks", "", NEEDS) from None
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()


def _from_folder(name: str, folder: Path) -> Iterator[Any]:
    """Yields lm-eval's task of each subject of a benchmark, on the files of a prepared folder."""
    import lm_eval.tasks
    from datasets import DatasetDict
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    benchmark = BENCHMARKS[name]
    for subject in subjects(name, folder):
        path = Path(lm_eval.tasks.__file__).parent / benchmark.yaml.format(subject)
        config = load_yaml(path, resolve_func=True)
        rows = DatasetDict(splits(name, subject, folder))
        own = {**benchmark.splits, "custom_dataset": lambda rows=rows, **_: rows}
        yield ConfigurableTask(config={**_without_groups(config), **own})


def _without_groups(config: dict[str, Any]) -> dict[str, Any]:
    """A task's config without the keys that say how lm-eval groups tasks."""
    return {key: value for key, value in config.items() if key not in ("tag", "group", "task_list")}


def _from_file(path: str) -> Any:
    """Return lm-eval's task of a file, on the data that the file names."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        return ConfigurableTask(config=_without_groups(load_yaml(Path(path), resolve_func=True)))
    except Exception as error:  # lm-eval, datasets and the network have their own
        raise _unusable(path, error) from None


def _registered(word: str) -> list[Any]:
    """Return lm-eval's tasks of this name, after seconds in which lm-eval lists all names."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager()
    if word not in manager.all_tasks:
        own = [*BENCHMARKS, *(name for name in manager.all_tasks if name.startswith(word[:3]))]
        raise one_of("tasks", word, own[:30], OTHERS)
    try:
        return [*manager.load([word])["tasks"].values()]
    except Exception as error:
        raise _unusable(word, error) from None


def _unusable(word: str, error: Exception) -> BadInput:
    reason = first_line(error)
    return BadInput("tasks", word, f"must be a task whose data is here or on the hub ({reason})")


def _collect(word: str, tasks: Iterable[Any], source: str, limit: int | None) -> Questions:
    items = [question for task in tasks for question in _questions(word, task, limit)]
    if not items:
        raise BadInput("tasks", word, "has no questions")
    return Questions(Path(word).stem, f"{source}, lm-eval {version('lm-eval')}", items)


def _questions(word: str, task: Any, limit: int | None) -> Iterator[MultipleChoice]:
    if task.OUTPUT_TYPE != "multiple_choice" or task.config.process_results is not None:
        allowed = "must be a task of multiple choice with lm-eval's own scores"
        better = "; leaderboard_mmlu_pro asks MMLU-Pro so" if "mmlu_pro" in word else ""
        raise BadInput("tasks", word, allowed + better)
    task.set_fewshot_seed(FEWSHOT_SEED)
    for number, doc in task.doc_iterator(limit=limit):
        context = task.fewshot_context(doc, num_fewshot=task.config.num_fewshot or 0)
        choices = task.doc_to_choice(doc)
        built = task.construct_requests(doc, context, metadata=(word, number, 1))
        requests = tuple(tuple(request.args) for request in built[: len(choices)])
        yield MultipleChoice(
            task.config.task, number, requests, tuple(choices), _gold(word, task, doc, choices)
        )


def _gold(word: str, task: Any, doc: Any, choices: Sequence[str]) -> int:
    """Return the number of the right choice, wherever the task says it."""
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    number = choices.index(gold) if gold in choices else gold
    if not isinstance(number, int) or not 0 <= number < len(choices):
        raise BadInput("tasks", word, f"must have one right choice of each question (has {gold!r})")
    return number
