"""Asks the trials of a sweep that kept their final weights the questions of downstream tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sweeps.plan.devices import bundles
from sweeps.plan.sweep_plan import all_planned, plan_sweeps
from sweeps.request.command_line import Request, parse_count, parse_request
from sweeps.request.expand import Trial
from sweeps.view.render import Throttled
from trainer.base.cli import DONE, FAILED, Given, parse
from trainer.base.errors import BadInput, LeaseLost, Stopped
from trainer.base.places import require_folder
from trainer.base.status import Status
from trainer.base.stopping import stopping
from trainer.data.benchmarks import BENCHMARKS, FOLDER
from trainer.evaluation.answers import AnswersFile
from trainer.evaluation.questions import Questions, questions, require_named
from trainer.folder.lease import Held
from trainer.store.opened import open_store
from trainer.store.snapshot import Snapshot

SAYS = "what was answered is kept, and the same command goes on"
SHOW_EVERY = 10.0
"""Seconds between two lines of progress."""
POLL_EVERY = 1.0
"""Seconds between two looks at what is done."""
RETRIES = 2
"""How often a trial whose process died is asked again: it goes on where that stopped."""
KEYS = f"""\
tasks=      [{",".join(BENCHMARKS)}], or any of lm-eval's tasks of multiple choice, or FILE.yaml
benchmarks= the folder of those named here (default: {FOLDER}, which `make data-evaluation` fills),
            or hub: the Hugging Face hub, as for all others
limit=      ask only the first so many questions of each task
max_length= tokens of the longest input (default: of the sequences that a trial was trained on)
dry_run=    true says what would be asked, and which differences that would show
sweep=, scale=, results= and all other keys as of `python -m sweeps`

Trials keep their weights with save_final=true, which does not change their ids. Answers lie in
trials/<id>/evaluation/; the report shows them."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a trial could not be asked, 143 stopped. Raises BadInput."""
    tasks, benchmarks, limit, max_length, request = parse_words(words)
    trials = _with_weights(request)
    of_tasks = [questions(word, benchmarks, limit) for word in tasks]
    evaluation = Evaluation(trials, of_tasks, max_length)
    for task in of_tasks:
        print(f"{task.task:<16}{len(task.items):>7,} questions ({task.source})")
    left, num = evaluation.left(), evaluation.num_asked()
    answered = f"{evaluation.num_answered():,} of {num:,} answered"
    print(f"{len(trials)} trials, {len(left)} to ask: {answered}", flush=True)
    if request.dry_run:
        from analysis.statistics.downstream import precision

        print(precision(request.results))
        return DONE
    return _run(evaluation, request) if left else DONE


@dataclass(frozen=True)
class Evaluation:
    """What some trials are asked."""

    trials: Sequence[Trial]
    tasks: Sequence[Questions]
    max_length: int | None

    def files(self, trial: Trial) -> list[AnswersFile]:
        """Return where a trial has its answers, one file per task."""
        longest = self.max_length or trial.config["seq_len"]
        return [AnswersFile.of(trial.folder, questions, longest) for questions in self.tasks]

    def left(self) -> list[Trial]:
        """Return the trials that have not answered all questions."""
        return [t for t in self.trials if not all(file.is_done() for file in self.files(t))]

    def num_asked(self) -> int:
        """Return the number of questions, counted once for each trial."""
        return len(self.trials) * sum(len(questions.items) for questions in self.tasks)

    def num_answered(self) -> int:
        """Return the number of questions that are answered."""
        return sum(file.num_found() for trial in self.trials for file in self.files(trial))


class EvaluationWords(NamedTuple):
    """What the words of the command ask for."""

    tasks: list[str]
    benchmarks: str
    limit: int | None
    max_length: int | None
    request: Request


def parse_words(words: Sequence[str]) -> EvaluationWords:
    """Raises BadInput for words that nothing can be asked by."""
    given = parse(words, "python -m sweeps evaluate", __doc__ or "", KEYS)
    tasks, benchmarks = _take_tasks(given), given.pop("benchmarks", str(FOLDER))
    for task in tasks:
        require_named(task)
    limit, max_length = (
        parse_count(key, given.pop(key), low=1) if key in given else None
        for key in ("limit", "max_length")
    )
    request = parse_request([f"{key}={value}" for key, value in given.items()])
    require_folder("results", request.where)  # weights of an object store stay there
    return EvaluationWords(tasks, benchmarks, limit, max_length, request)


def _take_tasks(given: Given) -> list[str]:
    word = given.pop("tasks", "")
    names = [name.strip() for name in word.strip().removeprefix("[").removesuffix("]").split(",")]
    if not all(names):
        allowed = f"must name tasks: [{','.join(BENCHMARKS)}] or others of lm-eval's"
        raise BadInput("tasks", word, allowed)
    if len({*names}) < len(names):
        raise BadInput("tasks", word, "must name each task once")
    return names


def _with_weights(request: Request) -> list[Trial]:
    """The finished trials of the sweeps that kept their weights; says what the others lack."""
    from trainer.models.export import FINAL

    seen = Snapshot()
    planned = all_planned(plan_sweeps(request, seen))
    results = [(trial, seen.finished(trial)) for trial in planned]
    # A trial that diverged has no final model.
    done = [trial for trial, row in results if row and row["status"] == Status.COMPLETED]
    kept = [trial for trial in done if (trial.folder / FINAL).is_file()]
    if not kept:
        allowed = (
            f"must have trials that kept their final weights: {len(done)} of {len(planned)} trials "
            f"have finished in {request.results}, none with save_final=true"
        )
        raise BadInput("sweep", request.title, allowed)
    if len(kept) < len(planned):
        without = f"{len(done) - len(kept)} finished without them (save_final=true keeps them)"
        print(f"{len(kept)} of {len(planned)} trials kept their weights, {without}")
    return kept


def _run(evaluation: Evaluation, request: Request) -> int:
    from sweeps.cluster.connection import cluster, require_seen_by_nodes

    num = evaluation.num_asked()

    def show() -> None:
        print(f"{evaluation.num_answered():,} of {num:,} answered", flush=True)

    with cluster(), stopping(SAYS) as asked_to_stop:
        require_seen_by_nodes(open_store(request.where))
        gpus, shown = request.gpus_per_trial, Throttled(show, SHOW_EVERY)
        problems = _ask_all(evaluation, gpus, asked_to_stop, shown)
        if asked_to_stop():
            return Stopped.exit_code
    show()
    for name, why in problems.items():
        print(f"not asked: {name}: {why}")
    return FAILED if evaluation.left() else DONE


def _ask_all(
    evaluation: Evaluation,
    gpus_per_trial: float,
    asked_to_stop: Callable[[], bool],
    show: Callable[[], None],
) -> dict[str, str]:
    """Ask every trial that has not answered all; return, by trial, why it could not answer.

    Calls `show` about every second. Once `asked_to_stop` is true, what
    runs is ended: answers are on the disk, and the next call goes on from them.
    """
    import ray  # slow, as are torch and lm-eval

    tasks = ray.put(evaluation.tasks)
    remote: Any = ray.remote(_ask)
    pending: dict[Any, Trial] = {}
    for trial in evaluation.left():
        needed = bundles(trial, gpus_per_trial)[-1]  # of a gang: one rank's
        options = remote.options(
            num_cpus=needed.get("CPU", 0), num_gpus=needed.get("GPU", 0), max_retries=RETRIES
        )
        pending[options.remote(trial.config, trial.folder, tasks, evaluation.max_length)] = trial
    problems: dict[str, str] = {}
    while pending and not asked_to_stop():
        done, _ = ray.wait([*pending], num_returns=1, timeout=POLL_EVERY)
        for answer in done:
            trial = pending.pop(answer)
            if why := _why_not(answer):
                problems[trial.name] = why
        show()
    for answer in pending:
        ray.cancel(answer, force=True)
    return problems


def _why_not(answer: Any) -> str:
    """Return why a trial could not answer; empty if it did."""
    import ray

    try:
        return str(ray.get(answer))
    except ray.exceptions.RayError as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _ask(config: Any, folder: Any, tasks: Sequence[Questions], max_length: int | None) -> str:
    """Ask a trial in a worker; return why it could not answer, or nothing if it did."""
    from trainer.evaluation.evaluate import evaluate_trial

    try:
        evaluate_trial(config, folder, tasks, max_length)
    except (Held, LeaseLost):
        return f"{Status.ELSEWHERE}: another process asks it"
    except BadInput as error:
        return str(error)
    return ""
