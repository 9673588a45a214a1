"""What a model answers is what lm-eval's own `hf` model says of the exported folder.

One task of the tests' own is asked once for most tests: lm-eval takes seconds to import.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipegap.trainer.base.build import build
from pipegap.trainer.evaluation import evaluate
from pipegap.trainer.evaluation.answers import AnswersFile, Row
from pipegap.trainer.evaluation.evaluate import LikelihoodRequest, evaluate_trial
from pipegap.trainer.evaluation.questions import Questions, questions
from pipegap.trainer.models.export import load_final
from tests.support import asked, moe
from tests.support.whole import whole

pytest.importorskip("lm_eval", reason="needs the extra [evaluation]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LONGEST = 64


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asked.trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asked.write_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def sums(task: Path) -> Questions:
    return questions(str(task))


@pytest.fixture(scope="module")
def theirs(trial: Path) -> Any:
    """lm-eval's model over the exported folder, by transformers."""
    from lm_eval.models.huggingface import HFLM

    final = str(trial / "final")
    return HFLM(
        pretrained=final,
        tokenizer=final,
        device="cpu",
        dtype="float32",
        batch_size=16,
        max_length=LONGEST,
    )


@pytest.fixture(autouse=True)
def asked_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds the trial without answers."""
    yield
    for path in (request.getfixturevalue("trial") / "evaluation").glob("*"):
        path.unlink()


def config(trial: Path) -> Row:
    content: Row = json.loads((trial / "config.json").read_text())
    return content


def rows(trial: Path, sums: Questions, longest: int = LONGEST) -> list[Row]:
    lines = AnswersFile.of(trial, sums, longest).path.read_text().splitlines()
    return [json.loads(line) for line in lines]


def answers(trial: Path, sums: Questions, longest: int = LONGEST) -> list[Row]:
    assert evaluate_trial(config(trial), trial, [sums], longest)
    return rows(trial, sums, longest)


@pytest.mark.parametrize("longest", [LONGEST, 24])
def test_log_likelihoods_are_those_of_lm_eval_s_hf_model(
    longest: int, trial: Path, sums: Questions, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an empty context, and with one that is cut."""
    monkeypatch.setattr(theirs, "_max_length", longest)
    requests = [LikelihoodRequest(args) for question in sums.items for args in question.requests]
    expected = [log for log, _ in theirs.loglikelihood(requests, disable_tqdm=True)]
    logs = [log for row in answers(trial, sums, longest) for log in row["log_likelihoods"]]
    assert logs == pytest.approx(expected, rel=0, abs=1e-4)
    assert len({round(log, 3) for log in logs}) > 30
    sizes = [len("".join(args)) for question in sums.items for args in question.requests]
    assert min(sizes) < 24 < max(sizes)


def test_a_long_answer_is_as_exact_as_a_short_one(
    trial: Path, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval adds up in fp32, which is 1e-4 off at 1,000 nats, unless told `softmax_dtype`."""
    from pipegap.trainer.evaluation.adapter import final_model

    longest = 800
    monkeypatch.setattr(theirs, "_max_length", longest)
    monkeypatch.setattr(theirs, "softmax_dtype", torch.float64)
    requests = [
        LikelihoodRequest(("Count:", " ".join(map(str, range(start, 175))))) for start in (1, 30)
    ]
    expected = [log for log, _ in theirs.loglikelihood(requests, disable_tqdm=True)]
    model = final_model(config(trial), trial, longest, torch.device("cpu"))
    logs = [log for log, _ in model.loglikelihood(requests, disable_tqdm=True)]
    assert max(expected) < -1000
    assert logs == pytest.approx(expected, rel=0, abs=1e-4)


def test_accuracies_are_lm_eval_s_own(
    trial: Path, task: Path, sums: Questions, theirs: Any
) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    from pipegap.analysis.table.answers import answered

    manager = TaskManager(include_path=str(task.parent), include_defaults=False)
    scores = lm_eval.simple_evaluate(
        theirs, tasks=["sums"], task_manager=manager, bootstrap_iters=0
    )["results"]["sums"]
    answers(trial, sums)
    [table] = answered(str(trial)).values()
    assert table["accuracy"].mean() == scores["acc,none"]
    assert table["accuracy_norm"].mean() == scores["acc_norm,none"]
    assert 0 < scores["acc,none"] != scores["acc_norm,none"]


def test_an_answer_longer_than_the_longest_input_is_scored_whole(
    trial: Path, sums: Questions
) -> None:
    """Token by token, each after what precedes it; lm-eval refuses that."""
    from pipegap.trainer.evaluation.adapter import final_model

    model = final_model(config(trial), trial, 4, torch.device("cpu"))
    [(log, _)] = model.loglikelihood([LikelihoodRequest(("ab cd", " efghij"))], disable_tqdm=True)
    tokens = torch.tensor([[*b"d efghij"]])  # the last one of the context, and the answer
    chances = model._stage(tokens[:, :-1]).log_softmax(-1)[0]
    expected = sum(float(chances[place, token]) for place, token in enumerate(tokens[0, 1:]))
    assert log == pytest.approx(expected, abs=1e-4)


def test_a_killed_evaluation_goes_on_and_counts_each_question_once(
    trial: Path, sums: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = answers(trial, sums)
    assert [row["question"] for row in whole] == [*range(len(asked.QUESTIONS))]
    for path in (trial / "evaluation").iterdir():
        path.unlink()
    monkeypatch.setattr(evaluate, "CHUNK", 7)
    chunks = 0

    def rows_until_killed(*args: Any) -> list[Row]:
        nonlocal chunks
        chunks += 1
        if chunks == 3:
            raise KeyboardInterrupt
        return compute(*args)

    compute = evaluate._rows
    monkeypatch.setattr(evaluate, "_rows", rows_until_killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate_trial(config(trial), trial, [sums], LONGEST)
    file = AnswersFile.of(trial, sums, LONGEST)
    assert not file.is_done()
    assert file.num_found() == 14
    with file.unfinished.open("ab") as torn:
        torn.write(b'{"question": 3, "gol')
    done = [row["question"] for row in file.resume().values()]
    assert evaluate_trial(config(trial), trial, [sums], LONGEST)
    assert chunks == 3 + math.ceil((30 - 14) / 7), "what was answered is not asked again"
    assert len(done) == 14
    again = rows(trial, sums)
    assert [row["question"] for row in again] == [row["question"] for row in whole]
    for row, expected in zip(again, whole, strict=True):
        assert row["log_likelihoods"] == pytest.approx(expected["log_likelihoods"], abs=1e-4)
    assert not file.unfinished.exists()
    assert evaluate_trial(config(trial), trial, [sums], LONGEST), "nothing is left to ask"
    assert chunks == 3 + math.ceil((30 - 14) / 7)


def test_it_stops_between_questions_when_asked_to(trial: Path, sums: Questions) -> None:
    assert not evaluate_trial(config(trial), trial, [sums], LONGEST, lambda: True)
    assert not AnswersFile.of(trial, sums, LONGEST).is_done()


def test_what_made_the_answers_lies_beside_them(trial: Path, sums: Questions) -> None:
    answers(trial, sums)
    about = json.loads(AnswersFile.of(trial, sums, LONGEST).about.read_text())
    assert about["questions_sha256"] == sums.hash
    assert about["max_length"] == LONGEST
    assert {"git", "versions", "weights_sha256", "seconds", "source"} <= {*about}


def test_another_question_or_length_is_another_file(trial: Path, sums: Questions) -> None:
    other = Questions(sums.task, sums.source, sums.items[1:])
    names = {
        AnswersFile.of(trial, one, longest).stem for one in (sums, other) for longest in (64, 65)
    }
    assert len(names) == 4
    assert AnswersFile.of(trial, sums, 64).stem in names


def test_transformers_makes_the_same_tokens_of_the_exported_folder(trial: Path) -> None:
    import transformers

    odd = "naïve — 東京\n\t\x00 é’s  two   spaces 12345 <|endoftext"
    tokenizer = transformers.AutoTokenizer.from_pretrained(trial / "final")
    assert tokenizer(odd, add_special_tokens=False)["input_ids"] == [*odd.encode()]
    assert tokenizer.eos_token_id == 256


def test_models_that_transformers_does_not_have_are_asked_too(
    tmp_path: Path, sums: Questions
) -> None:
    """A mixture that is balanced by biases: against its own logits, one question at a time."""
    trial = asked.trained(tmp_path, *moe.WORDS, "model.balance=bias")
    given = answers(trial, sums)
    module = whole(build(config(trial)["model"]), 1)
    load_final(trial, build(config(trial)["model"]), module)
    module.eval()
    for row, question in zip(given, sums.items, strict=True):
        for log, (context, answer) in zip(row["log_likelihoods"], question.requests, strict=True):
            start = [*context.encode()] or [256]
            tokens = torch.tensor([[*start, *answer.encode()]])
            chances = module(tokens[:, :-1]).log_softmax(-1)[0, len(start) - 1 :]
            own = chances.gather(-1, tokens[0, len(start) :, None]).sum().detach()
            assert log == pytest.approx(float(own), abs=1e-4)
