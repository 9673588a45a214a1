"""Which rungs a store has, and what they support."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis import load
from analysis.forecast.answer import answer, text, why_not
from analysis.forecast.ladder import Ladder, ladders
from tests.support.simulated_ladders import BATCHES, LENGTHS, SIZE, Truth, ladder, write
from tests.support.synthetic_store import config, put, result
from tests.support.synthetic_store import write as write_trial


@pytest.fixture
def simulated() -> Ladder:
    return ladder(Truth(), np.random.default_rng(0))


def test_a_store_gives_back_the_rungs_that_were_written(tmp_path: Path, simulated: Ladder) -> None:
    write(tmp_path, simulated)
    [stored] = ladders(load(tmp_path), "muon")
    assert (stored.optimizer, stored.arm, stored.dropped) == ("muon", "delay", ())
    assert [rung.settings for rung in stored.rungs] == [rung.settings for rung in simulated.rungs]
    for own, written in zip(stored.rungs, simulated.rungs, strict=True):
        np.testing.assert_allclose(own.gaps, written.gaps, atol=1e-12)
        np.testing.assert_allclose(own.losses, written.losses, atol=1e-12)
        assert len(own.trial_ids) == 2 * len(own.gaps)
    assert ladders(load(tmp_path), "adamw") == []


def test_rungs_of_other_settings_are_another_ladder(tmp_path: Path, simulated: Ladder) -> None:
    """Another momentum is; another rate is another point of the rung: sync's better one counts."""
    write(tmp_path, simulated)
    keys = {"optimizer": "muon", "num_updates": 400, "batch_size": 2, "seq_len": 64}
    for more, level in (({"momentum": 0.99}, 0.5), ({"lr": 0.1}, 9.0), ({"lr": 0.2}, 1.0)):
        put(tmp_path, "sync", [level, level + 0.1], **keys, **more)
        put(tmp_path, "delay", [level + 1, level + 1.1], **keys, **more)
    [stored] = ladders(load(tmp_path), "muon")
    assert len(stored.rungs) == len(simulated.rungs)
    assert "momentum=0.9" in stored.shared
    np.testing.assert_allclose(stored.rungs[0].gaps, [1, 1])


def test_numbers_of_stages_are_not_mixed(tmp_path: Path, simulated: Ladder) -> None:
    """The same arm with four stages has a ladder of its own, of one rung."""
    write(tmp_path, simulated)
    settings = config("delay", optimizer="muon") | {"seq_len": 64, "batch_size": 2}
    settings["pipeline"] |= {"num_stages": 4, "num_microbatches": 4}
    write_trial(tmp_path, settings, result(settings, 9.0))
    [stored] = ladders(load(tmp_path), "muon")
    assert [len(rung.gaps) for rung in stored.rungs] == [3] * len(simulated.rungs)


def test_a_rung_with_a_diverged_run_does_not_count(tmp_path: Path, simulated: Ladder) -> None:
    write(tmp_path, simulated)
    keys = {"optimizer": "muon", "num_updates": 50, "batch_size": 2, "seq_len": 64}
    put(tmp_path, "sync", [3.0, 3.0], **keys)
    put(tmp_path, "delay", [3.1, None], **keys)
    [stored] = ladders(load(tmp_path), "muon")
    assert len(stored.rungs) == len(simulated.rungs)
    assert stored.dropped == (f"T=50, B=128, N={SIZE:,}: 1 of 2 delayed runs diverged",)


def test_rungs_outside_of_the_papers_regime_are_said_to_be(
    tmp_path: Path, simulated: Ladder
) -> None:
    """A momentum of 0.9 remembers ten updates, so that 1,000 are enough; no decay is active."""
    write(tmp_path, simulated)
    [stored] = ladders(load(tmp_path), "muon")
    short = "T < 100 / (1 - momentum)"
    assert {rung.updates for rung in stored.rungs if short in rung.regime} == {400, 800}
    words = text([answer(stored, (12_800, 128, SIZE), 3)])
    assert f"delay: 4 of 8 rungs are outside of the paper's regime, {short}: T=400, B=128" in words


def test_a_forecast_needs_rungs_for_what_it_asks(simulated: Ladder) -> None:
    def only(lengths: tuple[int, ...], batches: tuple[int, ...] = BATCHES) -> Ladder:
        kept = [rung for rung in simulated.rungs if rung.updates in lengths]
        return replace(simulated, rungs=tuple(rung for rung in kept if rung.batch in batches))

    end = (12_800, 128, SIZE)
    assert why_not(simulated, end) == ""
    assert "2 lengths, 3 are needed" in why_not(only(LENGTHS[:2]), (1600, 128, SIZE))
    assert "3 rungs, 4 are needed" in why_not(only(LENGTHS[:3], BATCHES[:1]), (1600, 128, SIZE))
    assert "nothing is known of parameters=1000" in why_not(simulated, (3200, 128, 1000))
    assert "every rung has batch=128" in why_not(only(LENGTHS, BATCHES[:1]), (3200, 512, SIZE))
    assert "too far" in why_not(simulated, (30_000, 128, SIZE))
    assert "too far" in why_not(simulated, (3200, 4096, SIZE))
    assert "too far" in why_not(simulated, (10, 128, SIZE))
    assert "no rung" in why_not(replace(simulated, rungs=()), end)


def test_the_longest_rungs_are_foretold_from_the_shorter(simulated: Ladder) -> None:
    forecast = answer(simulated, (12_800, 128, SIZE), 3)
    assert forecast.is_beyond
    assert forecast.left_out == ["parameters"]
    assert [each.rung.updates for each in forecast.longest] == [3200, 3200]
    shorter = replace(simulated, rungs=simulated.rungs[:-2])
    again = answer(shorter, simulated.rungs[-1].settings, 3)
    assert again.point is not None
    assert forecast.longest[-1].point.gap == pytest.approx(again.point.gap)
    assert not answer(simulated, (1000, 200, SIZE), 3).is_beyond


def test_rungs_that_do_not_support_it_are_not_foretold(simulated: Ladder) -> None:
    few = replace(simulated, rungs=simulated.rungs[:6])
    assert answer(few, (3200, 128, SIZE), 3).longest == []
