"""The true pipeline gives the emulation's numbers, to the last bit."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.places import CONF
from tests.support import gangs, small

OPTIMIZERS = ["adamw", "muon", "sgd"]
SCHEDULES = ["sync", "gpipe", "pipedream_2bw", "pipedream"]
CORRECTIONS = ["none", "error_feedback"]
CHOICES = (OPTIMIZERS, SCHEDULES, CORRECTIONS)
COMBINATIONS = [*product(*CHOICES)]


def daily_stages(combination: tuple[str, ...]) -> int | None:
    """Of half of the combinations; any two choices meet, and each meets 2 and 4 stages."""
    optimizer, schedule, correction = (
        values.index(choice) for values, choice in zip(CHOICES, combination, strict=True)
    )
    if (optimizer + schedule + correction) % 2:
        return None
    return 2 if (optimizer + schedule // 2) % 2 else 4


DAILY = {p: [each for each in COMBINATIONS if daily_stages(each) == p] for p in (2, 4)}
OTHERS = {p: [each for each in COMBINATIONS if daily_stages(each) != p] for p in (2, 4)}
SHAPE = (
    "model.num_layers=4",
    "pipeline.num_microbatches=4",
    "batch_size=8",
    "num_updates=6",
    "clip_norm=0.5",
)


def config(folder: Path, *words: str) -> dict[str, Any]:
    return small.config(folder, *SHAPE, *words)


@pytest.mark.parametrize(
    ("p", "combinations"),
    [
        pytest.param(2, DAILY[2], id="2"),
        pytest.param(4, DAILY[4], id="4"),
        pytest.param(1, COMBINATIONS, id="1", marks=pytest.mark.slow),
        pytest.param(2, OTHERS[2], id="2, the others", marks=pytest.mark.slow),
        pytest.param(4, OTHERS[4], id="4, the others", marks=pytest.mark.slow),
    ],
)
def test_every_combination(tmp_path: Path, p: int, combinations: list[tuple[str, ...]]) -> None:
    """Tied embeddings; a clip that is active at every update; a drain in the middle."""
    configs = [
        config(
            tmp_path,
            f"optimizer={optimizer}",
            f"pipeline={schedule}",
            f"correction={correction}",
            f"pipeline.num_stages={p}",
        )
        for optimizer, schedule, correction in combinations
    ]
    for expected in gangs.all_equal(configs):
        assert len(expected.updates) == 6
        assert all(update.grad_norm > 0.5 for update in expected.updates), "the clip is active"


@pytest.mark.long
def test_other_ways_to_run_it(tmp_path: Path) -> None:
    """What the combinations leave out, on two ranks; every schedule: ranks/test_nccl_rules.py."""
    two = "pipeline.num_stages=2"
    delayed = ("pipeline=pipedream_2bw", "correction=error_feedback", two)
    diverges = ("optimizer=sgd", "clip_norm=null", "optimizer.lr=1e12")
    configs = [
        config(tmp_path, "pipeline=zero_bubble_v", two, "model.tied_embeddings=false"),
        config(tmp_path, "pipeline=paci", two, "pipeline.num_microbatches=1", "dtype=bfloat16"),
        config(tmp_path, "pipeline=paci", two, "pipeline.synchronous_start=2"),
        config(tmp_path, "pipeline=paci", two, "pipeline.recompute=true"),
        config(tmp_path, *delayed, "pipeline.num_microbatches=1"),
        config(tmp_path, *delayed, "pipeline.synchronous_start=2"),
        config(tmp_path, *delayed, "pipeline.synchronous_cooldown=2"),
        config(tmp_path, *delayed, "clip_scope=stage"),
        config(tmp_path, *delayed, "clip_norm=null"),
        config(tmp_path, *delayed, "dtype=bfloat16"),
        config(tmp_path, *delayed, "model.activation_checkpointing=true"),
        config(tmp_path, *delayed, "model.loss_chunk=24"),
        config(tmp_path, "pipeline=zero_bubble_v", two, "model.loss_chunk=24"),
        config(tmp_path, *delayed, "model.tied_embeddings=false"),
        config(tmp_path, "pipeline=zero_bubble_v", two, *diverges),
    ]
    gangs.all_equal(configs)


PHASES = ("pipeline.synchronous_start=2", "pipeline.synchronous_cooldown=1")


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(
            [
                ("pipeline=pipedream_2bw", "pipeline.num_microbatches=2", *PHASES),
                ("pipeline=pipedream", "pipeline.num_microbatches=1"),
            ],
            id="2BW and where delays differ",
        ),
        pytest.param(
            [
                ("pipeline=pipedream_2bw", "pipeline.num_microbatches=4"),
                ("pipeline=constant_delay", "pipeline.num_microbatches=2", "pipeline.delay=2"),
            ],
            id="without phases and longer delays",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_corrections(tmp_path: Path, ways: list[tuple[str, ...]]) -> None:
    """Of gradients, of weights that are read, of learning rates."""
    choices = sorted(path.stem for path in (CONF / "correction").glob("*.yaml"))
    strong = {"taylor": "correction.coefficient=100", "learning_rate": "correction.anneal=1.0"}
    configs = [
        config(
            tmp_path,
            *way,
            f"correction={choice}",
            *([strong[choice]] if choice in strong else []),
            "pipeline.num_stages=2",
        )
        for choice in choices
        for way in ways
    ]
    gangs.all_equal(configs)


def test_four_ranks_with_slack_or_a_divergence(tmp_path: Path) -> None:
    """Slack for messages changes no number; a divergence stops every rank at the same update."""
    four, delayed = "pipeline.num_stages=4", ("pipeline=pipedream_2bw", "correction=error_feedback")
    plain, slack = (
        config(tmp_path, *delayed, four, "pipeline.num_microbatches=8", f"pipeline.slack={value}")
        for value in ("false", "true")
    )
    words = (four, "optimizer=sgd", "clip_norm=null", "optimizer.lr=1e12", "num_updates=12")
    diverging = [
        config(tmp_path, f"pipeline={name}", *words)
        for name in ("sync", "pipedream_2bw", "pipedream")
    ]
    slackened, *diverged = gangs.all_equal([slack, *diverging])
    gangs.assert_equal(plain, [slackened])
    assert all(numbers.diverged is not None and numbers.diverged < 12 for numbers in diverged)
