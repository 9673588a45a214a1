"""`pipegap evaluate`: lm-eval asks a trial's final model, once and whole.

One trial is asked a task of the tests' own: lm-eval takes seconds to import."""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from pipegap.analysis.table.metrics import answered, task_of
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands import evaluate
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.averaged import mean_of, validation_loss, whole_sets
from pipegap.trainer.base.build import build
from pipegap.trainer.data import hub
from pipegap.trainer.folder.record import keep_weights
from pipegap.trainer.models.export import start_from
from pipegap.trainer.parts import open_data
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.models import whole
from tests.support.trials import leave_finished

pytest.importorskip("lm_eval", reason="needs the extra [evaluation]")
WORDS = ("sweep=main", "scale=micro", "grid.optimizer=[adamw]", "seeds=[0,1]")
QUESTIONS = [
    {
        "ask": f"{i} times {i + 1} is" if i % 3 else "",
        "choices": [f"{i * (i + 1)}, and so on", "nothing", f"{i}" * (1 + i % 4)],
        "right": i % 3,
    }
    for i in range(30)
]
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{validation: {folder}/questions.jsonl}}
  cache_dir: {folder}/cache
validation_split: validation
output_type: {kind}
doc_to_text: ask
doc_to_choice: choices
doc_to_target: right
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1}}
"""


def write_task(folder: Path, name: str = "sums", kind: str = "multiple_choice") -> Path:
    """Its file. Some contexts are empty, and some choices longer than what a model has seen."""
    rows = [json.dumps(question) for question in QUESTIONS]
    (folder / "questions.jsonl").write_text("".join(f"{row}\n" for row in rows))
    path = folder / f"{name}.yaml"
    path.write_text(TASK.format(name=name, folder=folder, kind=kind))
    return path


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A trial that kept its final weights."""
    place = tmp_path_factory.mktemp("trained")
    folder, words = place / "trial", ("num_updates=3", "save_final=true")
    run_trial(small_sweep.config(place, *words, f"out={folder}"))
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trial_is_asked_once_and_whole(
    trial: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Accuracies are those that lm-eval reports; likelihoods those of our own modules."""
    monkeypatch.setattr(evaluate, "_with_weights", lambda request: [trial])
    monkeypatch.setattr("lm_eval.evaluator.TaskManager", None)  # it would take seconds, each time
    task = write_task(tmp_path)
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
    for place, question in enumerate(QUESTIONS):
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_makes_the_same_tokens_of_the_exported_folder(trial: SimpleNamespace) -> None:
    import transformers

    odd = "naïve — 東京\n\t\x00 é’s  two   spaces 12345 <|endoftext"
    tokenizer = transformers.AutoTokenizer.from_pretrained(trial.folder / "final")
    assert tokenizer(odd, add_special_tokens=False)["input_ids"] == [*odd.encode()]
    assert tokenizer.eos_token_id == 256


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tasks_that_cannot_be_asked_are_refused(
    trial: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [word for word in small_sweep.overrides(tmp_path) if not word.startswith("data=")]
    assert main(["evaluate", *WORDS, *own, "advice=null", "tasks=copa"]) == 2
    assert "must have trials that kept their final weights" in capsys.readouterr().err
    monkeypatch.setattr(evaluate, "_with_weights", lambda request: [trial])
    writes = write_task(tmp_path, "writes", "generate_until")
    refusals = {
        str(writes): "must be a task of multiple choice",
        "copa": "holds no copa: `pipegap data evaluation` prepares it",
        "piqqa": "tasks=piqqa: must be one of piqa, ",
    }
    task = write_task(tmp_path)
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_prepared_benchmark_is_asked_in_lm_eval_s_words(tmp_path: Path) -> None:
    """The package calls BoolQ's label `answer`, the hub `label`."""
    import pyarrow as pa

    rows = pa.table({"passage": ["Ice floats."], "question": ["does ice float"], "answer": [True]})
    (tmp_path / "boolq").mkdir()
    with pa.ipc.new_stream(tmp_path / "boolq" / "validation.arrow", rows.schema) as file:
        file.write_table(rows)
    [task] = hub.tasks("boolq", tmp_path)
    [doc] = task.eval_docs
    assert task.doc_to_text(doc) == "Ice floats.\nQuestion: does ice float?\nAnswer:"
    assert task.doc_to_choice(doc)[task.doc_to_target(doc)] == "yes"


# The last weights that a trial keeps, and the loss of their mean.

WORDS_OF_AVERAGED = (
    *("lr_schedule=constant", "save_final=true", "checkpoint_every=2", "eval_batch_size=3"),
)
RUNNERS = {
    "emulated": (),
    "pipelined": ("pipeline=pipedream_2bw", "runner=pipelined", "pipeline.num_stages=2"),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_it_is_that_of_weights_averaged_by_hand(tmp_path: Path, runner: str) -> None:
    """Those after 4 updates are the final ones of a trial of 4, and the last one's those of 7."""
    stages = ("pipeline.num_microbatches=2", "model.num_layers=2") if RUNNERS[runner] else ()
    words = (*WORDS_OF_AVERAGED, *RUNNERS[runner], *stages)
    folders = {n: tmp_path / str(n) for n in (4, 6, 7)}
    for number, folder in folders.items():
        more = (f"num_updates={number}", "save_last=3", f"out={folder}")
        config = small_sweep.config(tmp_path, *words, *more)
        result = run_trial(config)
    sets = [load_file(folder / "final.safetensors") for folder in folders.values()]
    assert whole_sets(folders[7]) == [4, 6, 7]
    mean = mean_of(folders[7], [4, 6, 7])
    assert mean.keys() == sets[0].keys()
    for name, weight in mean.items():
        torch.testing.assert_close(weight, sum(of[name] for of in sets) / 3, rtol=0, atol=1e-7)
    last = mean_of(folders[7], [7])
    assert validation_loss(config, last) == pytest.approx(result["final_val_loss"], rel=1e-6)
    module = whole(build(config["model"]))
    for name, weight in module.named_parameters():
        weight.data.copy_(sum(of[name] for of in sets) / 3)
    _, validation = open_data(config)
    windows = torch.cat([*validation.batches(1)])
    with torch.no_grad():
        expected = cross_entropy(module(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    assert validation_loss(config, mean) == pytest.approx(float(expected), rel=1e-6)
    assert abs(float(expected) - result["final_val_loss"]) > 1e-4


def test_its_router_is_read_in_fp32_as_the_trial_reads_it(tmp_path: Path) -> None:
    """In bf16 the router would choose other experts."""
    words = ("eval_dtype=bfloat16", "num_updates=2", "save_last=1", f"out={tmp_path / 'moe'}")
    config = small_sweep.config(tmp_path, "model=tiny_moe", *WORDS_OF_AVERAGED, *words)
    result = run_trial(config)
    assert validation_loss(config, mean_of(tmp_path / "moe", [2])) == result["final_val_loss"]


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[list[Trial], list[str]]:
    """Two pairs of trials that kept their weights after 3, 6 and 7 updates, and the sweep's words.

    Nothing was trained: the weights are drawn anew for each set.
    """
    sweep, generator = tmp_path / "short.yaml", torch.Generator().manual_seed(0)
    base = ", ".join(small_sweep.overrides(tmp_path, "save_last=3"))
    arms = "{sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}"
    sweep.write_text(f"base: [{base}]\ngrid: {{optimizer: [adamw]}}\narms: {arms}\nseeds: [0, 1]\n")
    words = [f"sweep={sweep}", "num_updates=7", f"results={tmp_path}"]
    trials = all_planned(plan_sweeps(parse_request(words), Snapshot()))
    for trial in trials:
        leave_finished(trial.folder, trial.config, trial_id=trial.trial_id)
        module = whole(build(trial.config["model"]))
        for number in (3, 6, 7):
            sets = {
                name: torch.randn(weight.shape, generator=generator) / 10
                for name, weight in module.named_parameters()
            }
            keep_weights(trial.folder, number, sets, 3)
    return trials, words


def path_of(trial: Trial, update: int) -> Path:
    return trial.folder / "weights" / f"{update:09d}.safetensors"


def expected(trial: Trial, updates: list[int]) -> str:
    loss = validation_loss(trial.config, mean_of(trial.folder, updates))
    return f"{trial.name}: 1.00000; {loss:.5f}, the mean of updates {updates[0]}, {updates[1]}"


def test_the_arms_of_a_pair_average_the_same_updates(
    pairs: tuple[list[Trial], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that both kept, whole; the other pair has its own."""
    trials, words = pairs
    path_of(trials[0], 6).unlink()
    path_of(trials[-1], 7).write_bytes(path_of(trials[-1], 7).read_bytes()[:-1])
    (trials[0].folder / "weights" / "notes.safetensors").touch()
    assert main(["evaluate", "average=2", *words]) == 0
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert line.startswith(f"warning: {path_of(trials[-1], 7)} is left out: it is not whole (")
    seeds = {seed: [t for t in trials if t.config["seed"] == seed] for seed in (0, 1)}
    updates = {trials[0].config["seed"]: [3, 7], trials[-1].config["seed"]: [3, 6]}
    assert updates.keys() == seeds.keys()
    lines = [expected(trial, updates[seed]) for seed in seeds for trial in seeds[seed]]
    assert sorted(said.out.splitlines()) == sorted(lines)
    assert main(["evaluate", "average=2", *words, "dry_run=true"]) == 0
    untried = [f"{line.split('; ')[0]}; {line.split(', ', 1)[1]}" for line in lines]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(untried)


def test_what_cannot_be_averaged_is_a_line_and_stops_no_other(
    pairs: tuple[list[Trial], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    trials, words = pairs
    one, two = ([t for t in trials if t.config["seed"] == seed] for seed in (0, 1))
    path_of(one[0], 3).unlink()
    path_of(one[1], 6).unlink()
    assert main(["evaluate", "average=2", *words]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [expected(trial, [6, 7]) for trial in two]
    assert said.err == (
        f"pipegap evaluate: average=2: must be at most 1, the sets of weights which {one[0].arm} "
        f"and {one[1].arm} of adamw seed 0 kept (after updates 7)\n"
    )
    keep_weights(one[0].folder, 6, {"other": torch.zeros(2)}, 3)
    keep_weights(one[1].folder, 6, {"other": torch.zeros(2)}, 3)
    assert main(["evaluate", "average=1", *words, "seeds=[0]"]) == 0
    assert main(["evaluate", "average=2", *words, "seeds=[0]"]) == 2
    assert "has other weights than the set before it (" in capsys.readouterr().err
    shutil.rmtree(one[0].folder / "weights")
    assert main(["evaluate", "average=1", *words, "seeds=[0]"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "1 of 2 completed trials kept weights (save_last=)"
    assert [line.partition(":")[0] for line in lines] == [one[1].name]
    shutil.rmtree(one[1].folder / "weights")
    assert main(["evaluate", "average=3", *words, "seeds=[0]"]) == 2
    assert "none: save_last=3 keeps them, of a run into another" in capsys.readouterr().err
    assert main(["evaluate", "average=3", *words, "seeds=[2]"]) == 2
    assert "must have a completed trial: " in capsys.readouterr().err
    assert main(["evaluate", "average=2", "limit=5", *words]) == 2
    assert "limit=5: must be a key of the config" in capsys.readouterr().err
