"""Replicas that divide the optimizer's states give the numbers of those that do not."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import gangs, small
from tests.support.trials import assert_same_end, checkpoint_after_5
from trainer.base.errors import BadInput
from trainer.config.plan import plan_trial
from trainer.folder import checkpoint
from trainer.trial import run_trial

SHAPE = (
    *("model.num_layers=4", "pipeline.num_microbatches=2", "batch_size=8", "num_updates=6"),
    *("clip_norm=0.5", "num_replicas=2", "runner=pipelined", "shard_optimizer=true"),
)
DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")
WAYS = (
    ("optimizer=adamw", *DELAYED),
    ("optimizer=muon", *DELAYED),
    ("optimizer=soap", "pipeline=pipedream_2bw", "correction=taylor"),
    ("optimizer=schedule_free_adamw", "pipeline=pipedream_2bw"),
    ("optimizer=adamw", "pipeline=pipedream", "correction=learning_rate"),
    ("optimizer=muon", *DELAYED, "dtype=bfloat16"),
)


def config(folder: Path, *words: str) -> dict[str, Any]:
    return small.config(folder, *SHAPE, *words)


@pytest.mark.parametrize("p", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_number_is_that_of_the_emulation(tmp_path: Path, p: int) -> None:
    """Which divides nothing; on p=2 the tied embedding may have two owners."""
    gangs.all_equal([config(tmp_path, f"pipeline.num_stages={p}", *way) for way in WAYS])


LAYOUTS = {
    "divided": ("num_replicas=2", "runner=pipelined", "shard_optimizer=true"),
    "undivided": ("num_replicas=2", "runner=pipelined"),
    "two stages": (
        *("num_replicas=2", "runner=pipelined", "pipeline.num_stages=2"),
        "shard_optimizer=true",
    ),
    "alone": ("num_replicas=2", "pipeline.num_stages=2"),  # in one process, which adds as these do
}


def resumable(folder: Path, layout: str, name: str, *words: str) -> dict[str, Any]:
    out = (f"out={folder / name}", "save_final=true", "diagnostics=4")
    shape = ("model.num_layers=2", "pipeline.num_microbatches=1", "batch_size=4", *DELAYED)
    return small.config(folder, *shape, *LAYOUTS[layout], *out, *words)


def stopped(folder: Path, layout: str, *words: str) -> Path:
    """The checkpoint, which has the states of every weight."""
    path = checkpoint_after_5(resumable(folder, layout, "stopped", *words))
    weights = checkpoint.load(path)["executor"]
    assert all(weight["optimizer"]["state"] for weight in weights.values())
    return path


@pytest.mark.parametrize(
    ("before", "after", "optimizer"),
    [
        ("divided", "undivided", "muon"),
        pytest.param("undivided", "divided", "adamw", marks=pytest.mark.slow),
        pytest.param("two stages", "alone", "muon", marks=pytest.mark.slow),
        pytest.param("alone", "two stages", "soap", marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_is_whole_whoever_owned_its_parts(
    tmp_path: Path, before: str, after: str, optimizer: str
) -> None:
    word = f"optimizer={optimizer}"
    path = stopped(tmp_path, before, word)
    run_trial(resumable(tmp_path, after, "resumed", word, f"resume_from={path}"))
    run_trial(resumable(tmp_path, after, "whole", word))
    assert_same_end(tmp_path, "resumed", "whole")


def test_it_goes_on_with_another_number_of_replicas(tmp_path: Path) -> None:
    """Four replicas add gradients in another order than two, so the other one has four too."""
    path = f"resume_from={stopped(tmp_path, 'divided', 'optimizer=soap')}"
    words = ("optimizer=soap", "num_replicas=4", path)
    for layout in ("divided", "undivided"):
        run_trial(resumable(tmp_path, layout, f"{layout} 4", *words))
    assert_same_end(tmp_path, "divided 4", "undivided 4")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("runner=emulated",), "needs runner=pipelined"),
        (("num_replicas=1",), "needs num_replicas of 2 or more"),
        (("optimizer=kron",), "not with optimizer=kron: it draws random numbers"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(BadInput, match=f"shard_optimizer=True: {says}"):
        config(tmp_path, *words)


def test_the_plan_counts_a_share_of_the_states(tmp_path: Path) -> None:
    """In closed form: two equal matrices' worth of states less, of four equal ones."""
    plans = [plan_trial(config(tmp_path, f"shard_optimizer={on}")) for on in ("false", "true")]
    states = 2 * 4 * plans[0].num_parameters  # AdamW's two moments in fp32
    saved = plans[0].memory_bytes - plans[1].memory_bytes
    assert 0.4 * states < saved <= 0.5 * states
