"""Answers of trials to a task, as lm-eval logs them, by numbers of the test's choice."""

import json
from pathlib import Path
from zlib import crc32

import numpy as np

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
