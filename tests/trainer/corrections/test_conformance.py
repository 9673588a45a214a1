"""Every correction of conf/correction/ is its paper's equation, and keeps what it says it keeps."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.folder import checkpoint
from pipegap.trainer.schedules.recipes import pipedream, sync
from tests.oracles.corrections import REFERENCES
from tests.support import toy
from tests.support.delayed import ADAMW, T, assert_equal
from tests.support.every_correction import (
    NAMES,
    SETTINGS,
    Setting,
    error,
    looks_ahead,
    maker,
    reference,
    variants,
)

every = pytest.mark.parametrize("name", NAMES)
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
ROUNDING = 1e-11


def test_every_choice_has_a_reference() -> None:
    assert set(NAMES) == set(REFERENCES)


@every
@every_setting
def test_it_equals_its_equations(name: str, setting: Setting) -> None:
    for node in variants(name):
        assert error(maker(node), reference(name, node), setting) < ROUNDING, node


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_its_reference_acts(name: str) -> None:
    """Otherwise any correction would equal it."""
    setting = SETTINGS["delays of 3, 2, 1 and 0"]
    for node in variants(name):
        plain = error(NoCorrection, reference(name, node), setting)
        assert plain > 1e-4, node


@every
def test_without_delay_it_is_the_identity(name: str) -> None:
    """But for what looks ahead."""
    schedule = sync(T, num_stages=2, num_microbatches=3)
    plain = toy.emulated(schedule, ADAMW)
    updates = toy.run(plain, (0, T))
    for node in variants(name):
        corrected = toy.emulated(schedule, ADAMW, maker(node))
        assert (toy.run(corrected, (0, T)) == updates) is not looks_ahead(name)
        if not looks_ahead(name):
            assert_equal(corrected, toy.weights(plain))


def delayed(node: dict[str, Any]) -> toy.Emulated:
    """On `pipedream` with m = 1, whose delays are 3, 2, 1, 0."""
    phases = {"synchronous_start": 1, "synchronous_cooldown": 0}
    schedule = pipedream(T, num_stages=4, num_microbatches=1, **phases)
    return toy.emulated(schedule, ADAMW, maker(node))


@every
def test_it_survives_drains_and_a_restart(name: str, tmp_path: Path) -> None:
    """Bit for bit, also by a checkpoint's file."""
    for node in variants(name):
        straight, drained, other = delayed(node), delayed(node), delayed(node)
        updates = toy.run(straight, (0, 1, T))
        first = toy.run(drained, (0, 1, 3, 5))
        checkpoint.save(tmp_path, 5, {"stages": [stage.state() for stage in drained._stages]}, 1)
        path = checkpoint.newest_first(tmp_path)[0].path
        for stage, saved in zip(other._stages, checkpoint.load(path)["stages"], strict=True):
            stage.restore(saved)
        assert first + toy.run(other, (5, 7, T)) == updates
        assert_equal(other, toy.weights(straight))


@every
def test_it_keeps_as_many_tensors_as_it_declares(name: str) -> None:
    """What a checkpoint costs, and memory: fp32 buffers, and leaves for late reads."""
    for node in variants(name):
        executor = delayed(node)
        toy.run(executor, (0, 1, T))
        for stage, lag in zip(executor._stages, (3, 2, 1, 0), strict=True):
            declares = maker(node)(T, [lag])
            for saved in stage.state().values():
                shape = saved["master"].shape
                shapes = Counter(tensor.shape for tensor in saved["correction"].values())
                assert shapes[shape] == declares.num_buffers(lag), node
                assert len(saved["ahead"]) == declares.num_leaves_ahead(lag), node
                assert set(shapes) <= {shape, torch.Size([2])}, "a few numbers may come on top"


@every
def test_only_what_reads_the_update_asks_for_it(name: str) -> None:
    """It costs a copy of the weights; test_delayed_update.py has that others cost nothing."""
    for node in variants(name):
        made = maker(node)(T, [1])
        methods = (type(made).apply, NoCorrection.apply), (type(made).ahead, NoCorrection.ahead)
        assert not made.needs_update or any(own is not plain for own, plain in methods)
