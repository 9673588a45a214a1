"""A small task of multiple choice of the tests' own, and a trial that kept its final weights."""

import json
from pathlib import Path

from pipegap.trainer.trial import run_trial
from tests.support import small

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
    run_trial(small.config(folder, "num_updates=3", "save_final=true", f"out={out}", *words))
    return out
