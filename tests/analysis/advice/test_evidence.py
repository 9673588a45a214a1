"""The trials that an advice rests on: of which training, of which setting, with which λ."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipegap.analysis.advice.advice import sentence
from pipegap.analysis.advice.verdict import GO, STAY, UNDECIDED
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.records import Record, RecordedTrial, records
from tests.support.advised import ask
from tests.support.synthetic_store import config, put, record, result, write


@pytest.mark.parametrize(
    ("feedback", "chosen"),
    [
        ({0.5: [1.2, 1.22, 1.2], 1.0: [1.1, 1.12, 1.1]}, 1.0),
        ({0.5: [1.1, 1.12, 1.1], 1.0: [1.2, 1.22, 1.2]}, 0.5),
        ({1.0: [1.0, 1.6, 1.1]}, 0.0),  # removes a share whose interval holds 0
        ({0.5: [1.2, 1.22, 1.2], 1.0: [1.1, 1.1, None]}, 0.5),
        ({}, 0.0),
    ],
    ids=["1", "a half", "not shown", "1 diverged", "none"],
)
def test_the_coefficient_of_the_smallest_gap_that_is_shown_to_help(
    tmp_path: Path, feedback: dict[float, list[float | None]], chosen: float
) -> None:
    put(tmp_path, "sync", [1.0, 1.01, 1.0])
    put(tmp_path, "delay", [1.4, 1.42, 1.41])
    for coefficient, losses in feedback.items():
        put(tmp_path, "delay_ef", losses, correction={"coefficient": coefficient})
    advice = ask(tmp_path)
    assert advice.gap is not None
    assert advice.gap.coefficient == chosen
    words = "not enough data" if chosen == 0 else f"{chosen:g} (smallest mean gap"
    assert f"λ of Error Feedback: {words}" in str(advice)


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [
        ({200: ("sync", "delay"), 213: ("delay",), 400: ("sync", "delay")}, 200),
        ({400: ("sync", "delay"), 425: ("delay",), 200: ("sync", "delay"), 213: ("delay",)}, 400),
        ({400: ("sync", "delay"), 425: ("delay",), 50: ("sync", "delay"), 53: ("delay",)}, 400),
    ],
    ids=["the nearest", "of equal ones the longest", "a smoke test last"],
)
@pytest.mark.parametrize("gap", [-0.1, 0.0, 0.1, None])
def test_the_length_is_chosen_by_the_runs_and_not_by_their_losses(
    tmp_path: Path, runs: dict[int, tuple[str, ...]], chosen: int, gap: float | None
) -> None:
    for updates, arms in runs.items():
        for arm in arms:
            level = None if arm == "delay" and gap is None else (arm == "delay") * (gap or 0.0)
            losses = [None if level is None else 1 + level + 0.01 * seed for seed in range(3)]
            put(tmp_path, arm, losses, num_updates=updates)
    evidence = ask(tmp_path).evidence
    assert evidence is not None
    assert evidence.updates == chosen


@pytest.mark.parametrize(("num_seeds", "chosen"), [(2, 200), (3, 400), (5, 400)])
def test_a_length_of_few_seeds_is_compared_last(
    tmp_path: Path, num_seeds: int, chosen: int
) -> None:
    """Runs of 200 updates have five seeds and come less near to the time of the fastest rival."""
    for updates, n, longer in ((200, 5, 209), (400, num_seeds, 425)):
        losses = [1.0 + 0.01 * seed**2 for seed in range(n)]
        for arm, length in (("sync", updates), ("delay", updates), ("delay", longer)):
            put(tmp_path, arm, losses, num_updates=length)
    evidence = ask(tmp_path).evidence
    assert evidence is not None
    assert evidence.updates == chosen


@pytest.mark.parametrize(
    ("at_best", "word"),
    [([0.90, 0.91, 0.93], GO), ([0.90, None, 0.93], STAY), ([1.1, 1.11, 1.13], STAY)],
    ids=["go", "diverged in part", "stay"],
)
def test_the_setting_is_syncs_best_whatever_the_delay_did_there(
    tmp_path: Path, at_best: list[float | None], word: str
) -> None:
    """The interval is of a confidence that is shared by the settings to choose from."""
    for lr, level, delayed in ((0.004, 1.0, at_best), (0.008, 1.2, [0.8, 0.81, 0.83])):
        put(tmp_path, "sync", [level, level + 0.01, level + 0.02], lr=lr)
        put(tmp_path, "delay", [level, level + 0.01, level + 0.03], lr=lr)
        put(tmp_path, "delay", delayed, lr=lr, num_updates=425)
    advice = ask(tmp_path)
    assert advice.evidence is not None
    assert (advice.evidence.keys, advice.evidence.num_settings) == ({"optimizer.lr": 0.004}, 2)
    assert advice.verdict.word == word
    assert "at optimizer.lr=0.004, the best of 2 for sync by these seeds" in str(advice)
    if at := advice.rivals["ZB-V"].same_time:
        gaps = np.array(at_best, float) - [1.0, 1.01, 1.02]
        expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.975)
        assert at.interval == pytest.approx((expected.low, expected.high))


def test_a_length_that_was_asked_for_is_shown(tmp_path: Path) -> None:
    for updates, level in ((200, 2.0), (400, 1.0)):
        put(tmp_path, "sync", [level, level + 0.01], num_updates=updates)
        put(tmp_path, "delay", [level + 0.02, level + 0.03], num_updates=updates)
    decided = ask(tmp_path).evidence
    assert decided is not None
    assert decided.updates == 200  # 212.5 updates lie between 200 and 400, and end lower
    longest = ask(tmp_path, updates=400)
    assert longest.evidence is not None
    assert (longest.evidence.updates, longest.verdict.word) == (400, UNDECIDED)
    with pytest.raises(BadInput, match=r"updates=300: .*\(400, 200\)"):
        ask(tmp_path, updates=300)


def test_the_command_repeats_a_setting_whose_key_is_null(tmp_path: Path) -> None:
    for clip_norm, loss in ((1.0, 2.0), (None, 1.9)):
        for arm in ("sync", "delay"):
            trial = config(arm) | {"clip_norm": clip_norm}
            write(tmp_path, trial, result(trial, loss), curve=True)
    advice = ask(tmp_path)
    assert advice.evidence is not None
    assert advice.evidence.keys == {"clip_norm": None}
    words = ("sweep=main", "scale=micro", "data=gcide", "seeds=[7]", "dry_run=true")
    ids = advice.evidence.trials
    made = Record(
        *("main", "micro", "main-micro", words, "", (), (0,), True, (), frozenset(ids)),
        trials={name: RecordedTrial("sync", 0, None, None, None) for name in ids},
    )
    assert ask(tmp_path, records=[replace(made, trials={})]).command == ""
    told = ask(tmp_path, records=[replace(made, trials={}), made])
    assert shlex.split(told.command) == [
        *("pipegap", "sweep", "sweep=main", "scale=micro", "grid.optimizer=[adamw]"),
        *("data=gcide", "clip_norm=null", "seeds=[0,1,2]", "advice=null"),
    ]
    assert f"to settle it against ZB-V: {told.command}" in str(told)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"optimizer": "muon"}, r"optimizer=muon: .*\(adamw\)"),
        ({"microbatches": 2}, r"microbatches=2: .*at least stages - 1 = 3"),
        ({"stages": 0}, "stages=0: must be 1 or more"),
        ({"microbatches": 10**6}, "microbatches=1000000: must be 4096 at most"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, question: dict[str, Any], message: str) -> None:
    put(tmp_path, "sync", [1.0])
    with pytest.raises(BadInput, match=message):
        ask(tmp_path, **question)


def test_the_newest_sweep_is_answered_and_the_other_tasks_are_named(tmp_path: Path) -> None:
    """Two tasks, of which the larger one was trained before; without records the larger counts."""
    for size, ended in ((450_000, 100.0), (90_000, 200.0)):
        for arm in ("sync", "delay"):
            for seed in (0, 1):
                trial = config(arm, seed=seed)
                trial["model"]["hidden_size"] = size // 1000
                write(tmp_path, trial, result(trial, 1.0, num_parameters=size, finished_at=ended))
    names = sorted(path.name for path in (tmp_path / "trials").iterdir())
    record(tmp_path, "main", "large", names[:4])
    record(tmp_path, "main", "small", names[4:])
    for known, first, other in (([], "450k", "90k"), (records(tmp_path), "90k", "450k")):
        said, others, *_ = str(ask(tmp_path, records=known)).splitlines()
        assert f" ({first} parameters), wiki, 400 updates, delay: how its losses" in said
        assert re.fullmatch(
            rf"not for the other tasks here: \w+ \({other} parameters\), wiki", others
        )


@pytest.mark.parametrize("num_diverged", [1, 6, 8])
def test_an_arm_that_diverged_is_named_where_another_one_decides(
    tmp_path: Path, num_diverged: int
) -> None:
    """Error Feedback removes most of the gap, and diverges in longer runs."""
    seeds = range(8)
    put(tmp_path, "sync", [1.0 + seed / 100 for seed in seeds])
    put(tmp_path, "delay", [1.4 + seed / 99 for seed in seeds])
    put(tmp_path, "delay_ef", [1.02 + seed / 101 for seed in seeds])
    longer = [None if seed < num_diverged else 0.9 for seed in seeds]
    put(tmp_path, "delay_ef", longer, num_updates=550)
    advice = ask(tmp_path)
    counted = f"delay + Error Feedback in {num_diverged} of 8 runs of 550 updates"
    assert advice.left_out == (counted,)
    assert sentence(advice).endswith(f"; left out: {counted} diverged")
    assert "none is shown to remove" not in str(advice)
    assert "those that remove a part of the gap diverged" in str(advice)
