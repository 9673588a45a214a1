"""Asks the final models of a sweep's trials downstream questions, by lm-eval's `hf` model, or what
the mean of their last weights loses on the validation split.

e.g. pipegap evaluate tasks=[hellaswag,piqa] sweep=main scale=135m dry_run=true
"""

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from os.path import isfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import Request, parse_count, parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.sweeps.tracking.tracker import run_name
from pipegap.trainer.base.cli import DONE, FAILED, Given, one_of, parse, say
from pipegap.trainer.base.errors import BadInput, Status, first_line
from pipegap.trainer.base.places import require_folder
from pipegap.trainer.base.resources import require_device
from pipegap.trainer.data import hub
from pipegap.trainer.data.hub import BENCHMARKS, FOLDER
from pipegap.trainer.store.snapshot import Snapshot

HUB = "hub"
BATCH_SIZE = 16
COUNTS = ("limit", "max_length", "batch_size")
KEYS = f"""\
tasks=      (required, or average=) [{",".join(BENCHMARKS)}], or any of lm-eval's tasks
            of multiple choice, or FILE.yaml
benchmarks= the folder of those named here (default: {FOLDER}, filled by `pipegap data evaluation`),
            or hub: the Hugging Face hub, as for all others
limit=      ask only the first so many questions of each task
max_length= tokens of the longest input (default: of the sequences that a trial was trained on)
batch_size= inputs of a forward (default: {BATCH_SIZE})
average=    in place of tasks: the validation loss of the mean of so many sets of weights, the last
            that the trials kept (save_last=), beside that of the last set; of a pair's arms the
            last that all of them kept
dry_run=    true says which differences the answers in the store show, or what would be averaged
sweep=, scale=, results= and all other keys as of `pipegap sweep`

Trials keep their weights with save_final=true, which does not change their ids. lm-eval's samples
lie in trials/<id>/evaluation/<task>/; the report shows them."""


class Asked(NamedTuple):
    """What the words of the command ask for."""

    tasks: list[str]
    benchmarks: str
    counts: Mapping[str, int]
    average: int
    """How many sets of weights; 0: tasks are asked."""
    request: Request

    def folder(self, trial: Trial, task: str) -> Path:
        """Where the samples of a trial lie; what is asked otherwise has a folder of its own."""
        words = [f"{key}={self.counts[key]}" for key in COUNTS[:2] if key in self.counts]
        return trial.folder / "evaluation" / "@".join([Path(task).stem, *words])


def main(words: Sequence[str]) -> int:
    """Exit code 0; raises BadInput."""
    request = parse_words(words)
    if request.average:
        return _average(request)
    trials = _with_weights(request.request)
    if request.request.dry_run:
        from pipegap.analysis.statistics.diagnostics import precision

        print(precision(request.request.results))
        return DONE
    # A task's folder appears when it is whole: a command that was killed goes on from there.
    unfinished = [
        [name for name in request.tasks if not request.folder(trial, name).exists()]
        for trial in trials
    ]
    print(f"{len(trials)} trials, {sum(map(bool, unfinished))} to ask", flush=True)
    # All tasks are loaded, or refused, before the first model is.
    tasks = {name: _tasks(name, request.benchmarks) for name in request.tasks if any(unfinished)}
    for trial, names in zip(trials, unfinished, strict=True):
        model = _model(trial, request.counts) if names else None
        for name in names:
            _ask(model, tasks[name], request.folder(trial, name), request.counts.get("limit"))
            print(f"{trial.name}: {name}", flush=True)
    return DONE


def _average(question: Asked) -> int:
    """Prints a line for each completed trial of the sweeps that kept its weights; of those that
    cannot be averaged a line on stderr, and the exit code is 1. Raises BadInput if none can be.

    The arms of a pair are averaged over the same updates: the last that all of them kept.
    """
    from pipegap.trainer.averaged import mean_of, validation_loss, whole_sets

    number, request = question.average, question.request
    planned, completed = _completed(request)
    if not completed:
        allowed = f"must have a completed trial: {request.results} has none of {len(planned)}"
        raise BadInput("sweep", request.title, allowed)
    pairs: dict[tuple[str, int], list[tuple[Trial, float, list[int]]]] = {}
    for trial, loss in completed:
        if updates := whole_sets(trial.folder):
            # Arms of one pair differ in the arm alone; longer runs of a question are another pair.
            pair = run_name(trial.config, trial.setting, arm=""), trial.plan.num_updates
            pairs.setdefault(pair, []).append((trial, loss, updates))
    num_with_weights = sum(map(len, pairs.values()))
    if not pairs:
        needs = f"needs weights, and of {len(completed)} completed trials {request.results} has"
        allowed = f"{needs} none: save_last={number} keeps them, of a run into another store"
        raise BadInput("average", number, f"{allowed} (results=)")
    if num_with_weights < len(completed):
        print(f"{num_with_weights} of {len(completed)} completed trials kept weights (save_last=)")
    refusals, num_averaged = list[BadInput](), 0
    for (name, _), arms in pairs.items():
        shared = sorted(set[int].intersection(*({*updates} for _, _, updates in arms)))
        if len(shared) < number:
            which = f"which {' and '.join(trial.arm for trial, _, _ in arms)} of {name} kept"
            sets = f"the sets of weights {which} (after updates {', '.join(map(str, shared))})"
            refusals.append(BadInput("average", number, f"must be at most {len(shared)}, {sets}"))
            continue
        last = shared[-number:]
        for trial, loss, _ in arms:
            says = f"the mean of updates {', '.join(map(str, last))}"
            if not request.dry_run:
                try:
                    mean_loss = validation_loss(trial.config, mean_of(trial.folder, last))
                except BadInput as error:
                    where = f"{error.allowed} ({trial.folder})"
                    refusals.append(BadInput(error.key, error.value, where))
                    continue
                says = f"{mean_loss:.5f}, {says}"
            print(f"{trial.name}: {loss:.5f}; {says}", flush=True)
            num_averaged += 1
    if not num_averaged:
        raise refusals[0]
    # After all means, at the end of the output, where people look.
    for refusal in refusals:
        say(f"pipegap evaluate: {refusal}")
    return FAILED if refusals else DONE


def _completed(request: Request) -> tuple[list[Trial], list[tuple[Trial, float]]]:
    """The trials of the sweeps, and those that are completed, with their final losses."""
    snapshot = Snapshot()
    planned = all_planned(plan_sweeps(request, snapshot))
    rows = [(trial, snapshot.finished(trial) or {}) for trial in planned]
    done = [(trial, row) for trial, row in rows if row.get("status") == Status.COMPLETED]
    return planned, [(trial, row["final_val_loss"]) for trial, row in done]


def parse_words(words: Sequence[str]) -> Asked:
    """Raises BadInput for words that nothing can be asked by."""
    values = parse(words, "pipegap evaluate", __doc__ or "", KEYS)
    tasks, folder, counts, average = list[str](), "", dict[str, int](), 0
    if "average" in values:  # what is said of tasks is refused below
        average = parse_count("average", values.pop("average"), low=1)
    else:
        tasks, folder = _take_tasks(values), values.pop("benchmarks", str(FOLDER))
        counts = {key: parse_count(key, values.pop(key), low=1) for key in COUNTS if key in values}
    request = parse_request([f"{key}={value}" for key, value in values.items()])
    require_folder("results", request.where)  # weights of an object store stay there
    return Asked(tasks, folder, counts, average, request)


def _take_tasks(values: Given) -> list[str]:
    word = values.pop("tasks", "")
    names = [name.strip() for name in word.strip().removeprefix("[").removesuffix("]").split(",")]
    if not all(names) or len({*names}) < len(names):
        allowed = f"must name tasks, each once: [{','.join(BENCHMARKS)}] or others of lm-eval's"
        raise BadInput("tasks", word, allowed)
    for package in ("lm_eval", "transformers", "accelerate"):
        if find_spec(package) is None:
            allowed = f"needs the package {package}: pip install 'pipegap[evaluation]'"
            raise BadInput("tasks", word, allowed)
    return names


def _with_weights(request: Request) -> list[Trial]:
    """The completed trials of the sweeps that kept their weights as transformers reads them."""
    planned, completed = _completed(request)
    with_weights = [trial for trial, _ in completed if isfile(trial.folder / "final/config.json")]
    if not with_weights:
        allowed = "must have trials that kept their final weights as transformers reads them"
        counts = f"of {len(planned)} trials none in {request.results} did (save_final=true)"
        raise BadInput("sweep", request.title, f"{allowed}: {counts}")
    if len(with_weights) < len(planned):
        print(f"{len(with_weights)} of {len(planned)} trials kept their weights (save_final=true)")
    return with_weights


def _tasks(word: str, folder: str) -> list[Any]:
    """Return lm-eval's tasks of a word; raises BadInput unless all are of multiple choice."""
    import datasets
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    if word in BENCHMARKS and folder != HUB:
        return hub.tasks(word, Path(folder))
    is_file = Path(word).is_file()
    manager = TaskManager(include_defaults=not is_file)  # to list lm-eval's own takes seconds
    if not is_file and word not in manager.all_tasks:
        similar_names = [name for name in manager.all_tasks if name.startswith(word[:3])]
        raise one_of("tasks", word, [*BENCHMARKS, *similar_names[:30]], ", or the file of a task")
    try:
        loaded_tasks = [*manager.load([word])["tasks"].values()]
    except Exception as error:  # lm-eval, datasets and the network have their own
        allowed = f"must be a task whose data is here or on the hub ({first_line(error)})"
        raise BadInput("tasks", word, allowed) from None
    if any(task.OUTPUT_TYPE != "multiple_choice" for task in loaded_tasks):
        raise BadInput("tasks", word, "must be a task of multiple choice")
    return loaded_tasks


def _model(trial: Trial, counts: Mapping[str, int]) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=str(trial.folder / "final"),
        device=str(require_device(trial.config["device"])),
        dtype="float32",
        batch_size=counts.get("batch_size", BATCH_SIZE),
        max_length=counts.get("max_length", trial.config["seq_len"]),
    )


def _ask(model: Any, tasks: Sequence[Any], folder: Path, limit: int | None) -> None:
    """Write lm-eval's results and samples into `folder`, which appears whole or not at all.

    Raises BadInput if an answer is longer than the longest input.
    """
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    folder.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".") as partial:
        whole = Path(partial, "whole")
        tracker = EvaluationTracker(output_path=str(whole / "results.json"))
        try:
            results = simple_evaluate(
                model,
                tasks=[*tasks],
                task_manager=TaskManager(include_defaults=False),  # its own would be listed anew
                limit=limit,
                bootstrap_iters=0,  # the report has intervals of its own, over seeds
                evaluation_tracker=tracker,
            )
        except AssertionError:  # lm-eval's only word for it
            allowed = f"must be at least the tokens of each answer of {folder.name}"
            raise BadInput("max_length", model.max_length, allowed) from None
        samples = results.pop("samples")  # lm-eval writes them to files of their own
        tracker.save_results_aggregated(results, samples)
        for name, rows in samples.items():
            tracker.save_results_samples(name, rows)
        whole.rename(folder)
