"""Answers of trials to a task, as lm-eval logs them, by numbers of the test's choice."""

import json
from pathlib import Path
from zlib import crc32

import numpy as np

from pipegap.trainer.trial import run_trial
from tests.support import small_sweep

BYTES = 20
"""Of each choice."""


def write_answers(
    trial: Path,
    gain: float = 0.0,
    *,
    task: str = "piqa",
    num_questions: int = 200,
    seed: int = 0,
    noise: float = 0.01,
) -> None:
    """Two choices per question. Each question is as hard for every trial; right answers `gain` as
    many nats, give or take `noise`."""
    rng = np.random.default_rng([seed, crc32(trial.name.encode())])
    easy = np.random.default_rng(num_questions).normal(1.0, 1.0, num_questions)
    right = -BYTES + easy + gain + rng.normal(0, noise, num_questions)
    folder = trial / "evaluation" / task
    folder.mkdir(parents=True)
    samples = [_sample(task, place, float(log)) for place, log in enumerate(right)]
    path = folder / f"samples_{task}_2026-11-27T06-46-00.920715.jsonl"
    path.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))


def _sample(task: str, place: int, log: float) -> dict[str, object]:
    gold = place % 2
    choices = {f"gen_args_{i}": {"arg_0": "", "arg_1": " " + "ab"[i] * BYTES} for i in (0, 1)}
    return {
        "doc_id": place,
        "target": str(gold),
        "arguments": choices,
        "filtered_resps": [[str(one), "False"] for one in [log, -BYTES][:: -1 if gold else 1]],
        "filter": "none",
        "doc_hash": f"{task} {place}",
        "prompt_hash": "",
        "target_hash": str(gold),
        "acc": float(log > -BYTES),
    }


# A small task of multiple choice of the tests' own, and a trial that kept its final weights.

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


def trained(folder: Path, *words: str) -> Path:
    """The folder of a trial, with its final weights and a config of its own."""
    out = folder / "trial"
    run_trial(small_sweep.config(folder, "num_updates=3", "save_final=true", f"out={out}", *words))
    return out
