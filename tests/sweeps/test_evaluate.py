"""`pipegap evaluate`: lm-eval asks a trial's final model, once and whole.

One trial is asked a task of the tests' own: lm-eval takes seconds to import.
"""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from pipegap.analysis.table.answers import answered, task_of
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands import evaluate
from pipegap.trainer.base.build import build
from pipegap.trainer.data import benchmarks
from pipegap.trainer.models.export import start_from
from tests.support import asked, small
from tests.support.whole import whole

pytest.importorskip("lm_eval", reason="needs the extra [evaluation]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
WORDS = ("sweep=main", "scale=micro", "grid.optimizer=[adamw]", "seeds=[0,1]")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = asked.trained(tmp_path_factory.mktemp("trained"))
    config = json.loads((folder / "config.json").read_text())
    return SimpleNamespace(folder=folder, config=config, name="adamw")


def final_model(trial: SimpleNamespace) -> nn.Module:
    """As our own module."""
    recipe = build(trial.config["model"])
    module = whole(recipe, 1)
    start_from(str(trial.folder / "final"))(recipe, module, 0)
    return module.eval()


def log_likelihoods(module: nn.Module, context: str, answers: list[str]) -> list[float]:
    """One answer at a time; a byte is a token, 256 ends a document."""
    logs = []
    for answer in answers:
        start = [*context.encode()] or [256]
        tokens = torch.tensor([[*start, *f" {answer}".encode()]])
        with torch.no_grad():
            out = module(tokens[:, :-1])
        chances = out.log_softmax(-1)[0, len(start) - 1 :]
        logs.append(float(chances.gather(-1, tokens[0, len(start) :, None]).sum()))
    return logs


def test_a_trial_is_asked_once_and_whole(
    trial: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Accuracies are those that lm-eval reports; likelihoods those of our own modules."""
    monkeypatch.setattr(evaluate, "_with_weights", lambda request: [trial])
    monkeypatch.setattr("lm_eval.evaluator.TaskManager", None)  # it would take seconds, each time
    task = asked.write_task(tmp_path)
    words = ["evaluate", *WORDS, f"tasks=[{task}]", "max_length=64"]

    def killed(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("lm_eval.loggers.EvaluationTracker.save_results_samples", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate.main(words[1:])
    assert answered(str(trial.folder)) == {}
    assert [main(words), main(words)] == [0, 0]
    said = capsys.readouterr().out
    assert "1 trials, 1 to ask\nadamw: " in said
    assert said.endswith("1 trials, 0 to ask\n")

    [(stem, scores)] = answered(str(trial.folder)).items()
    assert task_of(stem) == "sums"
    [path] = (trial.folder / "evaluation").rglob("results_*.json")
    results = json.loads(path.read_text())["results"]["sums"]
    assert scores["accuracy"].mean() == results["acc,none"]
    assert scores["accuracy_norm"].mean() == results["acc_norm,none"]
    assert 0 < results["acc,none"] != results["acc_norm,none"]
    module = final_model(trial)
    for place, question in enumerate(asked.QUESTIONS):
        choices = question["choices"]
        logs = log_likelihoods(module, question["ask"], choices)
        bits = -np.array(logs) / np.log(2) / [len(choice) for choice in choices]
        right = bits[question["right"]]
        assert scores["bits_per_byte"][place] == pytest.approx(right, abs=1e-4)
        margin = min(np.delete(bits, question["right"])) - right
        assert scores["margin"][place] == pytest.approx(margin, abs=1e-4)

    assert evaluate.main([*words[1:], "limit=5"]) == 0
    sizes = [len(found["accuracy"]) for found in answered(str(trial.folder)).values()]
    assert sorted(sizes) == [5, 30], "what is asked otherwise is told apart"


def test_transformers_makes_the_same_tokens_of_the_exported_folder(trial: SimpleNamespace) -> None:
    import transformers

    odd = "naïve — 東京\n\t\x00 é’s  two   spaces 12345 <|endoftext"
    tokenizer = transformers.AutoTokenizer.from_pretrained(trial.folder / "final")
    assert tokenizer(odd, add_special_tokens=False)["input_ids"] == [*odd.encode()]
    assert tokenizer.eos_token_id == 256


def test_tasks_that_cannot_be_asked_are_refused(
    trial: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [word for word in small.overrides(tmp_path) if not word.startswith("data=")]
    assert main(["evaluate", *WORDS, *own, "advice=null", "tasks=copa"]) == 2
    assert "must have trials that kept their final weights" in capsys.readouterr().err
    monkeypatch.setattr(evaluate, "_with_weights", lambda request: [trial])
    writes = asked.write_task(tmp_path, "writes", "generate_until")
    refusals = {
        str(writes): "must be a task of multiple choice",
        "copa": "holds no copa: `make data-evaluation` prepares it",
        "piqqa": "tasks=piqqa: must be one of piqa, ",
    }
    task = asked.write_task(tmp_path)
    assert main(["evaluate", *WORDS, f"tasks={task}", "max_length=8"]) == 2
    assert "max_length=8: must be at least the tokens of each answer" in capsys.readouterr().err
    assert not [*(trial.folder / "evaluation").glob(".*")]
    for word, allowed in refusals.items():
        if word == "piqqa":  # lm-eval takes ten seconds to list its own
            manager = partial(SimpleNamespace, all_tasks=[])
            monkeypatch.setattr("lm_eval.tasks.TaskManager", manager)
        nowhere = f"benchmarks={tmp_path}"
        assert main(["evaluate", *WORDS, f"tasks={word}", nowhere]) == 2
        assert allowed in capsys.readouterr().err


def test_a_prepared_benchmark_is_asked_in_lm_eval_s_words(tmp_path: Path) -> None:
    """The package calls BoolQ's label `answer`, the hub `label`."""
    import pyarrow as pa

    rows = pa.table({"passage": ["Ice floats."], "question": ["does ice float"], "answer": [True]})
    (tmp_path / "boolq").mkdir()
    with pa.ipc.new_stream(tmp_path / "boolq" / "validation.arrow", rows.schema) as file:
        file.write_table(rows)
    [task] = benchmarks.tasks("boolq", tmp_path)
    [doc] = task.eval_docs
    assert task.doc_to_text(doc) == "Ice floats.\nQuestion: does ice float?\nAnswer:"
    assert task.doc_to_choice(doc)[task.doc_to_target(doc)] == "yes"
