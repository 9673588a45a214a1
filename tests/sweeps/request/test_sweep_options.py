"""So are malformed options of a sweep file: tune, early_stop, scales, advice, verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sweep_file import Malformed, refusal_of_file

ADDED: dict[str, tuple[str, list[str]]] = {
    "sharing where nothing is tuned": ("shared: adamw", ["sweep.shared=adamw", "sweep.tune"]),
    "sharing of an optimizer that is not in the grid": (
        "tune: {clip_norm: [1, 2]}\nshared: lion",
        ["sweep.shared=lion", "sweep.grid.optimizer"],
    ),
    "tune of one factor": ("tune: {clip_norm: [1]}", ["at least 2"]),
    "tune factors that descend": (
        "tune: {clip_norm: [2, 1]}",
        ["sweep.tune.clip_norm", "ascending"],
    ),
    "a tune factor of 0": (
        "tune: {clip_norm: [0, 1]}",
        ["sweep.tune.clip_norm.0=0", "a number from"],
    ),
    "a tune factor that is text": (
        "tune: {clip_norm: ['1e-3', 1]}",
        ["sweep.tune.clip_norm.0=1e-3", "a number from 1e-06 to 1e+06"],
    ),
    "a tune factor without an end": (
        "tune: {clip_norm: [1, .inf]}",
        ["sweep.tune.clip_norm.1=inf", "a number from"],
    ),
    "tune of an axis": ("tune: {optimizer.lr: [1, 2]}", ["sweep.tune=optimizer.lr", "axis"]),
    "tune of no number": ("tune: {dtype: [1, 2]}", ["sweep.tune=dtype", "number"]),
    "advice on an unknown arm": (
        "advice: {stages: 4, microbatches: 8, arms: [late]}",
        ["sweep.advice.arms=late", "among delay, delay_ef"],
    ),
    "advice on sync": (
        "advice: {stages: 4, microbatches: 8, arms: [sync]}",
        ["sweep.advice.arms=sync", "among delay, delay_ef"],
    ),
    "advice without a number": (
        "advice: {stages: 4, arms: [delay]}",
        ["sweep.advice.microbatches=missing", "required"],
    ),
    "advice on too few microbatches": (
        "advice: {stages: 4, microbatches: 2, arms: [delay]}",
        ["sweep.advice.microbatches=2", "stages - 1 = 3"],
    ),
    "a typo in advice": (
        "advice: {stage: 4, microbatches: 8, arms: [delay]}",
        ["sweep.advice.stage=4", "known: stages"],
    ),
}
"""What the good file gets as a further line, and words of the message."""
CHANGED: dict[str, Malformed] = {
    "a negative margin": ("margin: 0.5", "margin: -0.5", ["sweep.early_stop.margin=-0.5"]),
    "a margin that is no number": ("0.5}", "wide}", ["sweep.early_stop.margin=wide", "number"]),
    "typo in early_stop": ("margin:", "margn:", ["sweep.early_stop.margn", "known: margin"]),
    "no margin": ("{margin: 0.5}", "{}", ["sweep.early_stop.margin=missing"]),
    "a scale's seeds that repeat": (
        "[eval_every=6]",
        "['seeds=[0, 0]']",
        ["sweep.scales.few_updates=", "not repeat"],
    ),
    "a scale's axis that is one value": (
        "[eval_every=6]",
        "[grid.optimizer=muon]",
        ["sweep.scales.few_updates=sweep.grid.optimizer=muon", "list"],
    ),
    "a scale's axis that is no YAML": (
        "[eval_every=6]",
        "['grid.optimizer=[muon']",
        ["sweep.scales.few_updates=grid.optimizer=[muon", "must be YAML"],
    ),
    "a scale's word that the grid overrides": (
        "[eval_every=6]",
        "[optimizer.lr=0.1]",
        ["sweep.scales.few_updates=optimizer.lr=0.1", "grid.optimizer.lr=["],
    ),
    "a seed for a scale": (
        "[eval_every=6]",
        "[seed=3]",
        ["sweep.scales.few_updates=seed=3", "seeds=["],
    ),
    "a bad word for a scale that is not asked for": (
        "few_updates: [eval_every=6]",
        "360m: ['seeds=[a]']",
        ["sweep.scales.360m=", "integer"],
    ),
    "an unknown scale": ("{few_updates:", "{huge:", ["sweep.scales", "huge", "among"]),
    "an empty verdict": ("verdict: none\n", "verdict: ''\n", ["sweep.verdict", "at least 1"]),
    "a verdict that is no text": ("verdict: none", "verdict: 3", ["sweep.verdict=3", "string"]),
}
BAD = {
    **{name: ("verdict:", f"{line}\nverdict:", said) for name, (line, said) in ADDED.items()},
    **CHANGED,
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_sweep_file_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal_of_file(BAD[name], tmp_path, capsys)
    assert all(word in error for word in BAD[name][-1]), error
