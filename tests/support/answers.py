"""Answers of trials to a task, as the evaluation leaves them, by numbers of the test's choice."""

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
    lines = [
        json.dumps(
            {
                "question": place,
                "subtask": task,
                "number": place,
                "gold": place % 2,
                "log_likelihoods": [right_one, -BYTES][:: -1 if place % 2 else 1],
                "letters": [BYTES, BYTES],
                "bytes": [BYTES, BYTES],
            }
        )
        for place, right_one in enumerate(right)
    ]
    (trial / "evaluation").mkdir(exist_ok=True)
    path = trial / "evaluation" / f"{task}-{num_questions:012d}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
