"""Rivals by their measured times: what others found with theirs, and what is refused."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from pipegap.analysis.advice.speed import (
    Costs,
    equal_stages,
    flushed_speeds,
    slowest,
    with_step_time,
)
from pipegap.analysis.advice.timing import APART, ratio, timing
from pipegap.analysis.advice.verdict import SHORT
from pipegap.analysis.commands import advise
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed import DelayedOptimizer, record
from tests.support.synthetic_store import put

GO, STAY, OPEN = SHORT.values()
PIPELINE = {"optimizer": "adamw", "stages": "8", "microbatches": "16"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A delay that costs nothing: a go wherever it saves time."""
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    put(tmp_path, "delay", [0.97, 0.98, 0.991])
    put(tmp_path, "delay", [0.80, 0.81, 0.82], num_updates=575)
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], store: Path, **words: str) -> tuple[Any, list[str]]:
    """The answer to programs, and the lines to people."""
    words = PIPELINE | {"results": str(store)} | {k.replace("__", "."): v for k, v in words.items()}
    advise.main(words | {"format": "json"})
    told = json.loads(capsys.readouterr().out)
    advise.main(words)
    return told, capsys.readouterr().out.splitlines()


def test_a_ratio_has_the_interval_of_welch() -> None:
    theirs, own = [1.10, 1.12, 1.09, 1.13], [1.00, 1.03, 0.99]
    at, logs = ratio(theirs, own), (np.log(theirs), np.log(own))
    expected = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert (at.low, at.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    assert at.value == pytest.approx(np.exp(logs[0].mean() - logs[1].mean()))
    assert ratio([1.5], [1.0]) == pytest.approx((1.5, 1.5, 1.5)), "one time is exact"
    one = stats.ttest_1samp(logs[0], 0).confidence_interval(0.95)
    assert ratio(theirs, [1.0])[1:] == pytest.approx((np.exp(one.low), np.exp(one.high)))


# What others measured, as times of a step, and the rival that they ended with.
FIELD: dict[str, tuple[dict[str, str], str, dict[str, str]]] = {
    # A mixture of experts on 8 H100, in tokens/s: FSDP 187,000, GPipe 39,441, asynchronous 32,702.
    "marin, experts": (
        {"step_time": "25.35", "time_2bw": "30.58", "rival__fsdp": "5.35"},
        "fsdp",
        {"fsdp": STAY, "1F1B": STAY},
    ),
    # 6.1B on 8 H100, seconds. 2BW was not run: at best it takes 2.20 · 16 / 23 = 1.53.
    "marin, 6.1B": (
        {"step_time": "2.20", "rival__fsdp": "1.01", "rival__ZB-H1": "2.43"},
        "fsdp",
        {"fsdp": STAY, "ZB-H1": OPEN},
    ),
    # Zero-bubble over FSDP: 0.78 on a host of v6e, 1.22 over a data centre's network.
    "marin, a host": (
        {"step_time": "1.25", "rival__fsdp": "0.78", "rival__ZB-H1": "1"},
        "fsdp",
        {"fsdp": STAY, "ZB-H1": OPEN},
    ),
    "marin, a network": (
        {"step_time": "1.25", "rival__fsdp": "1.22", "rival__ZB-H1": "1", "chunks": "1"},
        "ZB-H1",
        {"fsdp": OPEN, "ZB-H1": OPEN},
    ),
    # zero-bubble 21: 55, 66, 67 and 64 samples/s; of 24 microbatches.
    "zero-bubble": (
        {"microbatches": "24", "step_time": "18.18", "rival__interleaved": "15.15"}
        | {"rival__ZB-2P": "14.93", "rival__ZB-V": "15.63", "chunks": "1"},
        "ZB-2P",
        {"ZB-2P": OPEN, "ZB-V": OPEN, "interleaved": OPEN},
    ),
}


@pytest.mark.parametrize("row", FIELD)
def test_what_others_found(capsys: pytest.CaptureFixture[str], store: Path, row: str) -> None:
    words, fastest, verdicts = FIELD[row]
    told, lines = asked(capsys, store, **words)
    assert told["rival"] == fastest
    found = {name: SHORT[rival["decision"]["word"]] for name, rival in told["rivals"].items()}
    assert verdicts.items() <= found.items()
    if verdicts[fastest] == STAY:
        assert f"stay with {fastest}: its step takes " in "\n".join(lines[1:3])
    assert not any("to go with" in line for line in lines) or STAY not in verdicts.values()


# marin's model of a network between 8 slices of 256 chips: FLOP/s and bytes/s of a chip, parameters
# and those that a token meets, and the share of an all-reduce that it takes to be hidden.
FLOPS, BANDWIDTH, PARAMETERS, MET, HIDDEN, TAX = 0.4 * 900e12, 25e9, 300e9, 20e9, 0.5, 1.16


@pytest.mark.parametrize(("tokens", "left"), [(8e6, 0.97), (4e6, 1.08), (2e6, 1.30), (1e6, 1.73)])
def test_what_is_left_of_a_speed_up_over_replicas(tokens: float, left: float) -> None:
    """Replicas compute, and wait for half of the all-reduce of their gradients in float32; 2BW, as
    it is simulated, only computes. All communication / compute are by this: 0.25, 0.5, 1 and 2."""
    compute = 6 * MET * tokens / (8 * 256 * FLOPS)
    all_reduce = 2 * 7 / 8 * 4 * PARAMETERS / 256 / BANDWIDTH
    costs = with_step_time(equal_stages(8), 32, compute * 39 / 32)  # 1F1B's
    replicas = compute + (1 - HIDDEN) * all_reduce
    gain = timing(costs, 32, measured={"replicas": [replicas]}).ratios["replicas"].value
    assert all_reduce / compute == pytest.approx(2e6 / tokens, rel=0.01)
    assert round(gain / TAX, 2) == left
    assert tokens != 2e6 or round(gain, 2) == 1.50, "the break-even"


def test_the_order_of_schedules_that_zero_bubble_21_measured() -> None:
    """6.2B on 8 GPUs: 55, 66 and 64 samples/s with 1F1B, interleaved 1F1B of most parts and ZB-V,
    and 48, 57 and 53 GB. Of 24 microbatches, as its authors run 6.2B, all but one follow.

    ZB-V comes first here, as its bubble is shortest. That its halves compute less well than whole
    backwards, and start twice as many kernels and messages, no number of stages says: a rival that
    might be the fastest must be measured. ZB-2P keeps twice the activations: it is not simulated.
    """
    speeds = flushed_speeds(equal_stages(8), 24, inf)
    gains = {name: speeds["1F1B"].batch_time / at.batch_time for name, at in speeds.items()}
    assert gains["interleaved 1F1B"] == pytest.approx(66 / 55, abs=0.005)
    assert gains["ZB-V"] == pytest.approx(1.23, abs=0.005)
    assert gains["ZB-V"] > gains["interleaved 1F1B"] > gains["ZB-H1"] > 1
    kept = {name: at.activations / 8 for name, at in speeds.items()}
    assert kept["interleaved 1F1B"] == pytest.approx(57 / 48, abs=0.035)
    assert kept["1F1B"] == kept["ZB-V"] < kept["interleaved 1F1B"]


def test_a_bubble_that_shrinks_without_effect_is_not_the_limit() -> None:
    """marin 6532, GPipe of 8 ranks: a bubble of 47 % with 8 microbatches, 30 % with 16 half as
    long, and 8,077 and 7,987 tokens/s. By the bubble alone it would be 1.30 times as fast."""
    steps = {m: slowest(equal_stages(8), m) for m in (8, 16)}
    bubbles = {m: 1 - 3 * m / step for m, step in steps.items()}
    assert bubbles == pytest.approx({8: 0.47, 16: 0.30}, abs=0.005)
    assert steps[8] / (steps[16] / 2) == pytest.approx(1.30, abs=0.005)
    [said, *_] = timing(with_step_time(Costs((1.0,) * 8, (2.0,) * 8), 16, 300.0), 16).limits
    assert said.startswith("stages overlap 1.3 times, where 1F1B lets them overlap 5.6 times")


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 8), (8, 64)])
def test_half_the_overlap_is_where_more_is_lost_than_the_bubble(p: int, m: int) -> None:
    costs = Costs((1.0,) * p, (2.0,) * p)
    step = slowest(costs, m)
    allowed = 3 * m * p / step
    at_limit = 3 * m * p / (1 + APART * (allowed - 1))
    lost = (m - 1) * (p - 1) / (2 * m * p)
    assert 1 - step / at_limit == pytest.approx(lost)
    assert (step - 3 * m) / at_limit < lost
    said = [any(timing(with_step_time(costs, m, x * at_limit), m).limits) for x in (0.99, 1.01)]
    assert said == [False, True]


def test_of_a_simulated_rival_a_measured_2bw_knows_one_side(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    """2BW at 1.9 against a 1F1B of 2.2 is slower than ZB-V as simulated from that, 1.60, in which
    no message is waited for: that is no stay before ZB-V was measured."""
    words = {"step_time": "2.20", "time_2bw": "1.9"}
    told, lines = asked(capsys, store, **words)
    rival = told["rivals"]["ZB-V"]
    assert rival["speed_up"] == pytest.approx(2.2 * (16 + 7 / 6) / 23 / 1.9)
    assert rival["speed_up_interval"][1] is None, "it may be infinite"
    assert SHORT[rival["decision"]["word"]] == OPEN
    assert "measure a step of it, rival.NAME=" in rival["decision"]["why"]
    assert any(line.startswith("ZB-V ") and "≥ 0.864" in line for line in lines)
    assert not any("stay with" in line for line in lines)
    told, lines = asked(capsys, store, **words, **{"rival__ZB-V": "1.65"})
    assert SHORT[told["rivals"]["ZB-V"]["decision"]["word"]] == STAY
    assert "stay with ZB-V: its step takes 1.65, 2BW takes 1.9" in lines
    told, lines = asked(capsys, store, step_time="1.8", time_2bw="1.9")
    assert "stay with 1F1B: its step takes 1.8, 2BW takes 1.9" in lines


def test_of_a_tax_the_break_even_is_what_is_left_of_the_speed_up(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    """A tax of 1.16 leaves 1.29 of a speed-up of 1.5, and nothing of one of 1.125."""
    put(store / "taxed", "sync", [1.00, 1.01, 1.02])
    for updates, level in ((400, 1.1), (450, 1.02), (464, 1.0), (600, 0.85)):
        losses = [level, level + 0.01, level + 0.02]
        put(store / "taxed", "delay", losses, num_updates=updates)
    words = {"step_time": "9", "time_2bw": "1", "rival__half": "1.5", "rival__little": "1.125"}
    told, lines = asked(capsys, store / "taxed", updates="400", **words)
    assert told["gap"]["tax"][0] == pytest.approx(1.16)
    [half, little] = [line for line in lines if "over half" in line or "over little" in line]
    assert half.endswith("the tax is lower, so the delay pays: 1.29 times as fast to sync's loss")
    assert little.endswith("the tax is higher, so the delay does not pay")
    found = {name: SHORT[rival["decision"]["word"]] for name, rival in told["rivals"].items()}
    assert (found["half"], found["little"]) == (GO, STAY)


def test_a_go_needs_the_measured_time_of_2bw(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    slow = {"step_time": "2.20", "rival__fsdp": "2.0", "rival__slow": "9"}
    told, lines = asked(capsys, store, **slow)
    assert SHORT[told["rivals"]["fsdp"]["decision"]["word"]] == OPEN
    assert "measure a step of it, time_2bw=" in told["rivals"]["slow"]["decision"]["why"]
    told, lines = asked(capsys, store, **slow, time_2bw="1.6,1.58,1.61")
    assert SHORT[told["rivals"]["fsdp"]["decision"]["word"]] == GO
    low, high = told["rivals"]["fsdp"]["speed_up_interval"]
    assert told["rivals"]["fsdp"]["same_time"]["speed_up"] == pytest.approx(low)
    assert low < told["rivals"]["fsdp"]["speed_up"] < high
    assert any("to go with" in line for line in lines)


def test_a_measured_step_is_filled_by_equal_stages() -> None:
    """33 units of 2.2 / 33; with messages and updates the stages are as much shorter."""
    costs = with_step_time(equal_stages(4), 8, 2.2)
    assert costs.forward == pytest.approx((2.2 / 33,) * 4)
    assert costs.overhead == pytest.approx(0, abs=1e-8)
    more = replace(equal_stages(4), update=0.1, communication=0.02)
    costs = with_step_time(more, 8, 2.2)
    assert slowest(costs, 8) == pytest.approx(2.2)
    assert costs.forward[0] < (2.2 - 0.1) / 33
    with pytest.raises(BadInput, match=r"step_time=0\.05: must be above"):
        with_step_time(more, 8, 0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rival.fsdp": "1"}, "rival.fsdp=1: must stand beside step_time"),
        ({"time_2bw": "1"}, "time_2bw=1: must stand beside step_time"),
        ({"rival.": "1", "step_time": "1"}, "must name the rival"),
        ({"rival.1F1B": "1", "step_time": "1"}, "must be given as step_time"),
        ({"rival.fsdp": "0", "step_time": "1"}, "rival.fsdp=0: must be times from 1e-09 to 1e"),
        ({"rival.fsdp": "1,1e-300", "step_time": "1"}, "must be times from 1e-09 to 1e"),
        ({"step_time": "1e-300"}, "step_time=1e-300: must be 0 or a number from 1e-09 to 1e"),
        ({"forward": "5e-324"}, "forward=5e-324: must be 0 or a number from 1e-09 to 1e"),
        ({"rival.fsdp": "1,nan", "step_time": "1"}, "rival.fsdp=1,nan"),
        ({"rival.fsdp": "", "step_time": "1"}, "rival.fsdp="),
    ],
)
def test_what_is_no_time_is_refused(store: Path, words: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        advise.main(PIPELINE | {"results": str(store)} | words)


def test_losses_of_ones_own_loop_answer_in_one_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for seed in (0, 1):
        for delay in (0, 1):
            torch.manual_seed(seed)
            model = torch.nn.Linear(2, 1)
            adamw = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.5, 0.9))
            optimizer = DelayedOptimizer(adamw, delay, 0.0)
            words = {"model": "mine", "data": "ours", "optimizer": "adamw", "optimizer.lr": 0.01}
            words |= {"batch_size": 1, "seq_len": 32, "num_updates": 110, "seed": seed}
            with record(tmp_path, optimizer, words) as run:
                for _ in range(110):
                    optimizer.zero_grad()
                    loss = model(torch.ones(2)).square().mean()
                    loss.backward()
                    optimizer.step()
                    run.update(loss.item(), loss.item())
    advise.main({"stages": "4", "microbatches": "8", "results": str(tmp_path)})
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("mine (3 parameters), ours, 110 updates, delay: how its losses change")


def test_a_faster_rival_needs_no_losses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"stages": "8", "microbatches": "16", "step_time": "2.20"}
    advise.main(words | {"rival.fsdp": "1.01"})
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "stay with fsdp: its step takes 1.01, 2BW takes 1.53 even without a bubble"
    with pytest.raises(BadInput, match="results"):
        advise.main(words | {"rival.fsdp": "1.6"})


TIME = st.sampled_from([1e-9, 1.0, 3.0, 1e9]) | st.floats(1e-9, 1e9)


@settings(max_examples=60)
@given(
    words=st.dictionaries(
        st.sampled_from(["forward", "backward", "update", "communication", "step_time"]), TIME
    ),
    measured=st.dictionaries(st.sampled_from(["time_2bw", "rival.fsdp"]), TIME),
)
@example({"forward": 1e-9, "update": 1e9, "step_time": 1e9}, {"time_2bw": 1e-9})
def test_times_of_any_size_are_compared_or_refused(
    words: dict[str, float], measured: dict[str, float]
) -> None:
    """No quotient of two of them is infinite or no number."""
    given_words = {key: repr(time) for key, time in {**words, **measured}.items()}
    with suppress(BadInput):
        times, own_times = advise._measured(given_words)
        timed = timing(advise._costs(given_words, 2, 4), 4, measured=times, own_times=own_times)
        assert all(0 < ratio.value < math.inf for ratio in timed.ratios.values())
        assert all("nan" not in line for line in (*timed.limits, *timed.shares))


@pytest.mark.parametrize("times", [{"measured": {"fsdp": [0.0]}}, {"own_times": [math.nan]}])
def test_times_that_are_none_are_refused_in_python_too(times: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must be times from 1e-09"):
        timing(equal_stages(2), 4, **times)
