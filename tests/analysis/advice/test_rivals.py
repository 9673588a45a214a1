"""Rivals by their measured times: what others found with theirs, and what is refused."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.advice.advise import ROW, advices, handover, verdict_rows
from pipegap.analysis.advice.speed import (
    CHUNKS,
    FLUSHED,
    SETTLED,
    TWO_BUFFERED,
    Costs,
    TwoSteps,
    equal_stages,
    fastest,
    flushed_speeds,
    slowest,
    speed,
    speed_up,
    with_step_time,
    with_two_steps,
)
from pipegap.analysis.advice.timing import APART, ratio, timing
from pipegap.analysis.advice.verdict import GO, SHORT, UNDECIDED, listed, ranking, sentence
from pipegap.analysis.commands import advise
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.report.report import report
from pipegap.trainer import delayed
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.schedules.proof import simulate
from tests.support.pages import with_figures
from tests.support.synthetic_store import ids, put, record, write_arms

GO_OF_RIVALS, STAY, OPEN = SHORT.values()
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
    # marin 9277: 535B, 192 H100, 15.523 % and 4.917 % of their peak. All else is simulated.
    "marin, 535B": (
        {"stages": "24", "microbatches": "48", "step_time": "174.432", "chunks": "2"}
        | {"rival__DualPipeV": str(174.432 * 15.523 / 4.917)},
        "ZB-V",
        {"DualPipeV": OPEN, "1F1B": GO_OF_RIVALS, "ZB-V": GO_OF_RIVALS},
    ),
    # marin 7024: 67B, 64 H100, 543,490 and 603,327 tokens/s with batches of 2 ** 20 and 2 ** 21.
    "marin, 67B": (
        {"rival__DualPipeV": f"{2**20 / 543_490.02}@16,{2**21 / 603_326.77}@32"},
        "ZB-V",
        {"DualPipeV": OPEN, "1F1B": GO_OF_RIVALS, "ZB-V": GO_OF_RIVALS},
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


def test_what_two_steps_of_a_v_say_that_no_simulation_says(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    """marin 7024: of 16 and 32 microbatches, 543,490 and 603,327 tokens/s. Simulated, a step costs
    7 / 6 microbatches beyond its work with equal stages, and twice as many microbatches gain 3.5 %
    in place of 11; with their layers, of which ranks 1 to 3 have most, only 1.3 %."""
    speeds = {m: flushed_speeds(equal_stages(8), m)["DualPipeV"].batch_time / m for m in (16, 32)}
    assert speeds[16] / speeds[32] - 1 == pytest.approx(0.035, abs=5e-4)
    layers = (2.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0)
    costs = Costs(layers, tuple(2 * time for time in layers))
    speeds = {m: flushed_speeds(costs, m)["DualPipeV"].batch_time / m for m in (16, 32)}
    assert speeds[16] / speeds[32] - 1 == pytest.approx(0.013, abs=5e-4)
    short, long = 2**20 / 543_490.02, 2**21 / 603_326.77
    told, lines = asked(capsys, store, rival__DualPipeV=f"{short}@16,{long}@32")
    assert "time measured of DualPipeV, else simulated for 8 stages" in lines[0]
    work = (long - short) / 16
    hidden = [f"{part:.1%}" for part in (7 / 6 * work / short, (2 * short - long) / short)]
    assert lines[2] == (
        "a step of DualPipeV costs 3.96 microbatches beyond its work, 1.17 as simulated: "
        f"a schedule without a bubble hides {hidden[0]} of it, and {hidden[1]} if all the rest is "
        "bubble too"
    )
    rival = told["rivals"]["DualPipeV"]
    assert rival["speed_up"] == pytest.approx(short / (short - 7 / 6 * work))
    assert rival["speed_up_interval"] == pytest.approx([0, short / (16 * work)])
    assert any(line.startswith("DualPipeV ") and "≤ 1.247" in line for line in lines)
    told, lines = asked(capsys, store, rival__DualPipeV=f"{short}@16,{long}@32", time_2bw="1.7")
    assert told["rivals"]["DualPipeV"]["speed_up_interval"] == pytest.approx([short / 1.7] * 2)
    assert told["rivals"]["1F1B"]["speed_up_interval"][1] is None, "no step of it was measured"


def test_two_steps_of_1f1b_bound_what_2bw_hides(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    """w = 1.8 / 16 in both: of b = 7 w and the 0.4 of a host 2BW keeps these, and may hide them; of
    b = 0.4, 3.56 w, it hides no more, though 7 w are simulated."""
    work = 1.8 / 16
    for step, kept, least in ((16 * work + 7 * work + 0.4, 0.4, 0), (2.2, 0, 0)):
        two = {"step_time": f"{step}@16,{step + 1.8}@32"}
        told, _ = asked(capsys, store, **two)
        low, high = told["rivals"]["1F1B"]["speed_up_interval"]
        assert (low, high) == pytest.approx((step / (1.8 + kept), step / (1.8 + least)))
        assert told["rivals"]["1F1B"]["speed_up"] == low
    told, lines = asked(capsys, store, **two, rival__fsdp="1.81")
    assert SHORT[told["rivals"]["fsdp"]["decision"]["word"]] == OPEN
    told, lines = asked(capsys, store, **two, rival__fsdp="1.79@16,3.5@32")
    assert "stay with fsdp: its step takes 1.79, 2BW takes 1.8 even without a bubble" in lines
    assert "a step of fsdp costs 0.75 microbatches beyond its work" in lines


def test_the_interval_of_two_steps_holds_their_spread() -> None:
    """t(m) / (t(2m) - t(m)) is a function of t(2m) / t(m), whose interval is Welch's."""
    short, long = [1.90, 1.93, 1.95], [3.45, 3.50, 3.48, 3.47]
    costs = with_two_steps(equal_stages(8), 16, "ZB-V", two := TwoSteps({16: short, 32: long}))
    at = timing(costs, 16, two_steps={"ZB-V": two}).ratios["ZB-V"]
    quotient = ratio(long, short)
    least = 1 / (quotient.high - 1)
    assert at.low == 0
    assert at.high > 1 / (quotient.value - 1) > least
    assert at.high == pytest.approx(1 / (quotient.low - 1), rel=2e-3)
    fsdp = timing(costs, 16, measured={"fsdp": [2.0]}, two_steps={"ZB-V": two}).ratios["fsdp"]
    assert fsdp.high > 2.0 / (16 * two.work)


def test_what_only_a_simulation_makes_fast_must_be_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the time of 1F1B the delay ends lower; in that of a V a line between runs ends higher,
    which decides nothing. Measured to be no faster than 1F1B, a V is beaten with it."""
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    put(tmp_path, "delay", [1.04, 1.05, 1.061])
    put(tmp_path, "delay", [0.90, 0.91, 0.92], num_updates=575)
    told, lines = asked(capsys, tmp_path)
    decisions = {name: rival["decision"] for name, rival in told["rivals"].items()}
    simulated = [name for name, decision in decisions.items() if decision["must_be_measured"]]
    assert {"interleaved 1F1B", "ZB-V", "DualPipeV"} <= {*simulated}
    assert {"1F1B", "ZB-H1"}.isdisjoint(simulated)
    for name in simulated:
        decision = decisions[name]
        assert SHORT[decision["word"]] == OPEN, "which programs go by"
        assert f"rival.{name}=TIME" in decision["why"]
    labels = {name: "interleaved 1F1B (4 parts)" if "inter" in name else name for name in decisions}
    settled = listed([labels[name] for name in decisions if name not in simulated])
    unsettled = listed([labels[name] for name in simulated])
    assert lines[2].startswith(f"AdamW: go against {settled}; {unsettled} must be measured; ")
    assert any("to settle it against ZB-V, measure a step of it, or run" in line for line in lines)
    # A V that was measured to be slow says nothing of another one, nor does a 2BW that was not.
    told, lines = asked(capsys, tmp_path, step_time="2.3", rival__DualPipeV="7")
    must = {name: of["decision"]["must_be_measured"] for name, of in told["rivals"].items()}
    assert must["ZB-V"]
    assert must["interleaved 1F1B"]
    assert not must["DualPipeV"]
    assert not must["1F1B"]
    assert "DualPipeV" in lines[0]
    measured = {f"rival__{name}": "2.3" for name in simulated}
    told, lines = asked(capsys, tmp_path, step_time="2.3", time_2bw="1.6", **measured)
    assert {rival["decision"]["word"] for rival in told["rivals"].values()} == {GO}
    names = listed([labels[name] for name in ("1F1B", *simulated)])
    assert f"time measured of {names}, else simulated" in lines[0]
    # Against 1F1B itself nothing is decided: a V is not what stands in the way.
    noisy = tmp_path / "noisy"
    put(noisy, "sync", [1.00, 1.01, 1.02])
    put(noisy, "delay", [1.04, 1.05, 1.061])
    put(noisy, "delay", [0.90, 1.11, 0.92], num_updates=575)
    told, lines = asked(capsys, noisy, step_time="2.3", rival__fsdp="2.3")
    assert SHORT[told["rivals"]["1F1B"]["decision"]["word"]] == OPEN
    assert not any(rival["decision"]["must_be_measured"] for rival in told["rivals"].values())


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
    assert (found["half"], found["little"]) == (GO_OF_RIVALS, STAY)


def test_a_go_needs_the_measured_time_of_2bw(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    slow = {"step_time": "2.20", "rival__fsdp": "2.0", "rival__slow": "9"}
    told, lines = asked(capsys, store, **slow)
    assert SHORT[told["rivals"]["fsdp"]["decision"]["word"]] == OPEN
    assert "measure a step of it, time_2bw=" in told["rivals"]["slow"]["decision"]["why"]
    told, lines = asked(capsys, store, **slow, time_2bw="1.6,1.58,1.61")
    assert SHORT[told["rivals"]["fsdp"]["decision"]["word"]] == GO_OF_RIVALS
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
        ({"step_time": "1@16"}, "must be times at two numbers of microbatches, one of them 16"),
        ({"step_time": "1@8,3@32"}, "one of them 16: step_time=1.9@16,3.5@32"),
        ({"step_time": "1@16,1.8@32,1.9@32"}, "must have one time at each number"),
        ({"step_time": "1@16,2@32"}, "must be of steps that take longer with more"),
        ({"step_time": "1@16,.9@32"}, "must be of steps that take longer with more"),
        ({"step_time": "2", "rival.fsdp": "1@16,1@32"}, "rival.fsdp=1@16,1@32: must take longer"),
        ({"step_time": "1@16,1.8"}, "must be times at two numbers of microbatches"),
        ({"rival.fsdp": "1@16,1.8@32"}, "must stand beside step_time"),
        ({"step_time": "2@16,3.9@32", "forward": "1"}, "must cost 0.83125 or more beyond its"),
        ({"step_time": "2@16,3@32", "communication": "1"}, "must not stand beside step_time=2@16"),
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
            with delayed.record(tmp_path, optimizer, words) as run:
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
    two_steps=st.dictionaries(
        st.sampled_from(["step_time", "rival.ZB-V", "rival.fsdp"]),
        st.tuples(TIME, st.floats(1, 2) | TIME),
    ),
)
@example({"forward": 1e-9, "update": 1e9, "step_time": 1e9}, {"time_2bw": 1e-9}, {})
@example({}, {}, {"step_time": (1.0, 1.5), "rival.ZB-V": (1e-9, 1.0)})
def test_times_of_any_size_are_compared_or_refused(
    words: dict[str, float], measured: dict[str, float], two_steps: dict[str, tuple[float, float]]
) -> None:
    """No quotient of two of them is infinite or no number."""
    given_words = {key: repr(time) for key, time in {**words, **measured}.items()}
    given_words |= {k: f"{time!r}@4,{time * more!r}@8" for k, (time, more) in two_steps.items()}
    with suppress(BadInput):
        times, own_times, two_steps = advise._measured(given_words, 2, 4)
        more: Any = {"measured": times, "own_times": own_times, "two_steps": two_steps}
        timed = timing(advise._costs(given_words, 2, 4, two_steps, CHUNKS), 4, **more)
        assert all(0 < ratio.value < math.inf for ratio in timed.ratios.values())
        assert all("nan" not in line for line in (*timed.limits, *timed.shares))


@pytest.mark.parametrize("times", [{"measured": {"fsdp": [0.0]}}, {"own_times": [math.nan]}])
def test_times_that_are_none_are_refused_in_python_too(times: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must be times from 1e-09"):
        timing(equal_stages(2), 4, **times)


# What each pipeline gains in time, by stages worked out by hand.

STAGES, MICROBATCHES = st.integers(1, 6), st.integers(1, 8)


@settings(max_examples=40)
@given(p=STAGES, m=MICROBATCHES)
def test_equal_stages_gain_the_bubble(p: int, m: int) -> None:
    """1F1B idles (p − 1) forwards and backwards a batch; ZB-H1 a third of that, if m ≥ p; ZB-V half
    of this again, if m ≥ 2p − 1, and so does DualPipeV, which keeps a chunk more. Interleaved 1F1B
    has half of 1F1B's, and keeps more."""
    m = max(m, p)
    assert speed_up(equal_stages(p), m) == pytest.approx(1 / (1 - (p - 1) / (m + p - 1)))
    assert flushed_speeds(equal_stages(p), m)["ZB-H1"].batch_time == pytest.approx(3 * m + p - 1)
    m = max(2 * p, m - m % p)
    speeds = flushed_speeds(equal_stages(p), m, chunks=2)
    assert speeds["1F1B"].batch_time == max(at.batch_time for at in speeds.values())
    assert speeds["ZB-V"].batch_time == pytest.approx(3 * m + (p - 1) / 2)
    assert speeds["DualPipeV"].batch_time == pytest.approx(3 * m + (p - 1) / 2)
    assert speeds["DualPipeV"].activations == p + 0.5
    assert speeds["interleaved 1F1B"].batch_time == pytest.approx(3 * (m + (p - 1) / 2))
    assert speeds["interleaved 1F1B"].activations == (3 * p - 1) / 2
    assert {speeds[name].activations for name in ("1F1B", "ZB-H1", "ZB-V")} == {p}
    assert speed(TWO_BUFFERED, equal_stages(p), m).activations == p


def test_the_rival_is_the_fastest_that_keeps_no_more() -> None:
    """A forward of 8 and halves of 1: where the halves fill little, more chunks gain most."""
    costs = Costs((8.0,) * 4, (2.0,) * 4)
    speeds = flushed_speeds(costs, 8, chunks=2)
    times = {name: at.batch_time for name, at in speeds.items()}
    assert min(times, key=lambda name: times[name]) == "interleaved 1F1B"
    assert fastest(speeds, 4) == "ZB-V"
    assert fastest(speeds, 5.5) == "interleaved 1F1B"
    with pytest.raises(BadInput, match="activations=3: must be 4 or more"):
        fastest(speeds, 3)
    left_out = {*FLUSHED} - {*flushed_speeds(costs, 6)}
    assert {"interleaved 1F1B", "DualPipeV"} <= left_out, "a multiple of 4, and 8 or more"
    assert left_out.isdisjoint({"1F1B", "ZB-H1", "ZB-V"})


def test_the_slowest_stage_sets_the_pace_of_2bw() -> None:
    costs = Costs((1.0, 3.0, 2.0), (2.0, 6.0, 4.0))
    assert speed(TWO_BUFFERED, costs, 4).batch_time == pytest.approx(4 * 9)


def test_a_rank_with_several_chunks_does_the_work_of_one_with_one() -> None:
    """Alone it is never idle, whatever the schedule; an update counts once."""
    speeds = flushed_speeds(Costs((3.0,), (5.0,), update=0.5), 4)
    assert {name: at.batch_time for name, at in speeds.items()} == pytest.approx(
        dict.fromkeys(FLUSHED, 4 * 8 + 0.5)
    )


def test_the_steady_state_is_reached_whatever_a_message_and_an_update_take() -> None:
    costs = Costs((1.0, 2.0, 1.0, 1.0), (2.0, 4.0, 3.0, 2.0), update=0.7, communication=0.9)
    schedule = TWO_BUFFERED(40, num_stages=4, num_microbatches=5)
    by_rank = [
        {"F": f, "B": b, "U": 0.7} for f, b in zip(costs.forward, costs.backward, strict=True)
    ]
    spans = [simulate(schedule.operations(0, k), by_rank, 0.9).makespan for k in (20, 40)]
    assert speed(TWO_BUFFERED, costs, 5).batch_time == pytest.approx((spans[1] - spans[0]) / 20)
    assert SETTLED < 20


@pytest.mark.parametrize(
    ("activations", "communication", "chunks"),
    [(5.5, 0.0, 4), (4.75, 0.0, 4), (4.4, 0.0, 8), (4.0, 0.0, 8), (5.5, 0.5, 2)],
)
def test_interleaved_1f1b_has_its_best_number_of_parts(
    activations: float, communication: float, chunks: int
) -> None:
    """More parts have less of a bubble, (m + (p − 1) / v) instead of m + p − 1, and keep less,
    p + (p − 1) / v; but more messages are waited for. If none fits, the one that keeps least."""
    costs = Costs((1.0,) * 4, (2.0,) * 4, communication=communication)
    at = flushed_speeds(costs, 8, activations, chunks=8 if activations < 4.5 else 4)
    interleaved = at["interleaved 1F1B"]
    assert interleaved.num_chunks == chunks
    assert interleaved.activations == 4 + 3 / chunks
    if not communication:
        assert interleaved.batch_time == pytest.approx(3 * (8 + 3 / chunks))


def test_a_model_with_one_part_per_rank_has_no_pipeline_of_two() -> None:
    speeds = flushed_speeds(equal_stages(4), 8, chunks=1)
    assert {"1F1B", "ZB-H1"} <= {*speeds}
    assert {speed.num_chunks for speed in speeds.values()} == {1}


# The rows of all optimizers of a store, and the sentence of each.


def add_runs(store: Path, short: float, long: float) -> None:
    """Sync ends at 1, delayed runs of 400 and of 550 updates at these losses; three seeds."""
    put(store, "sync", [1.0, 1.01, 1.02])
    put(store, "delay_ef", [short, short + 0.01, short + 0.021])
    put(store, "delay_ef", [long, long + 0.01, long + 0.021], num_updates=550)


def test_one_row_per_optimizer_and_rival(tmp_path: Path) -> None:
    """At 37.5 % more updates the loss is 0.1 lower, at 6.25 % a sixth of the way there."""
    add_runs(tmp_path, 1.04, 0.9)
    write_arms(tmp_path, {"sync": [1.0, 1.1]}, optimizer="lion")  # no delay: no advice
    write_arms(tmp_path, {"sync": [1.0, 1.1], "delay": [1.2, None]}, optimizer="muon")
    table = verdict_rows(load(tmp_path), stages=4, microbatches=8)
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == ROW
    assert [*dict.fromkeys(table["optimizer"])] == ["adamw", "muon"], "the lowest loss first"
    by_rival = table.set_index("rival")
    muon, adamw = (by_rival[by_rival["optimizer"] == name] for name in ("muon", "adamw"))
    assert [*muon.index] == [*adamw.index]
    assert adamw.index.is_unique
    between = "between 400 and 550 against 400 updates"
    for rival, speedup, verdict, evidence in (
        ("1F1B", 11 / 8, "go", "550 against 400 updates"),
        ("interleaved 1F1B (4 parts)", 35 / 32, "must be measured", between),
        ("ZB-H1", 9 / 8, "go", between),
        ("ZB-V", 17 / 16, "must be measured", between),
        ("DualPipeV", 17 / 16, "must be measured", between),
    ):
        assert adamw.loc[rival, ["verdict", "evidence"]].tolist() == [verdict, evidence]
        assert adamw.loc[rival, "speedup"] == pytest.approx(speedup)
        share = (speedup - 1) / (11 / 8 - 1)
        assert adamw.loc[rival, "difference"] == pytest.approx(0.04 - 0.14 * share + 1e-3 / 3)
    assert {*adamw["n"]} == {3}
    assert {*muon["verdict"]} == {"stay"}  # it diverged
    assert {*muon["n"]} == {0}


@pytest.mark.parametrize(
    ("short", "long", "said"),
    [
        (
            1.0,
            0.9,
            "AdamW: go, against every schedule; in the time of 1F1B it makes 37 % more updates and "
            "ends lower by 0.0997 [",
        ),
        (
            1.02,
            0.9,
            "AdamW: go against {go}; {open} must be measured; in the time of 1F1B it makes "
            "37 % more updates and ends lower by 0.0997 [",
        ),
        (
            1.3,
            1.2,
            "AdamW: stay, against every schedule; in the time of 1F1B it makes 37 % more updates "
            "and ends higher by 0.2003 [",
        ),
        (
            1.3,
            0.999,
            "AdamW: not enough data, against any schedule; in the same time its loss is -0.0007 [",
        ),
    ],
    ids=["go", "go against some", "stay", "undecided"],
)
def test_one_sentence_per_optimizer(tmp_path: Path, short: float, long: float, said: str) -> None:
    add_runs(tmp_path, short, long)
    [advice] = advices(load(tmp_path), stages=4, microbatches=8)
    if "{go}" in said:
        labels: dict[str, list[str]] = {GO: [], UNDECIDED: []}
        for rival in advice.rivals.values():
            labels[rival.decision.word].append(rival.label)
        said = said.format(go=listed(labels[GO]), open=listed(labels[UNDECIDED]))
    assert sentence(advice).startswith(said)
    first, _, then = str(advice).partition("\n\n")
    size = "how its losses change with size is not known"
    of = f"delay + Error Feedback: {size}; time simulated for 4 stages, 8 microbatches"
    assert first == f"tiny (450k parameters), wiki, 400 updates, {of}"
    assert then.startswith(said)


BY_LOSS = {"adamw": (1.30, 1.20), "muon": (1.00, 0.92), "soap": (1.01, 0.90)}
"""Optimizer → the loss of sync after 400 updates, and that of the delayed run after 550."""
RANKED = ["soap", "muon", "adamw"]


def rank_store(store: Path) -> None:
    """All go; after 400 updates Muon ends lowest, in the time of 1F1B SOAP does."""
    for optimizer, (sync, long) in BY_LOSS.items():
        put(store, "sync", [sync, sync + 0.01, sync + 0.02], optimizer=optimizer)
        put(store, "delay_ef", [sync, sync + 0.01, sync + 0.021], optimizer=optimizer)
        losses = [long, long + 0.01, long + 0.021]
        put(store, "delay_ef", losses, optimizer=optimizer, num_updates=550)


def test_optimizers_stand_by_their_loss_in_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the answer, its lines of code, tables and figures: not by name, nor by the loss after as
    many updates."""
    rank_store(tmp_path)
    trials = load(tmp_path)
    answers = advices(trials.sort_values("trial_id"), stages=4, microbatches=8)
    assert [answer.optimizer for answer in answers] == RANKED
    line = "lowest loss in the time of 1F1B: SOAP 0.910, Muon 0.930, AdamW 1.210"
    assert [*ranking(answers)] == [line]
    assert handover(answers).startswith("to go with SOAP ")
    assert [*trials["optimizer"].unique()] == RANKED
    table = gaps(trials)
    assert [*table["optimizer"].unique()] == RANKED
    figure = BY_NAME["final_losses"]
    drawn = str([chart.to_dict() for chart in figure.charts(figure.data(trials, table))])
    assert "'sort': ['SOAP', 'Muon', 'AdamW']" in drawn
    assert analysis(["advise", "stages=4", "microbatches=8", f"results={tmp_path}"]) == 0
    assert line in capsys.readouterr().out


def test_a_report_has_one_order_of_optimizers_also_where_it_compares_the_short_runs(
    tmp_path: Path,
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    rank_store(store)
    compared = load(store).query("num_updates == 400")["trial_id"].tolist()
    record(store, "main", "tiny", ids(store), compared=compared)
    with with_figures(()):
        report(store, out, "main-tiny")
    text = (out / "index.html").read_text()
    for head in ('<table class="gaps">', '<table class="answer">'):
        rows = text.partition(head)[2].partition("</table>")[0]
        places = [rows.index(f"<th>{name}</th>") for name in ("SOAP", "Muon", "AdamW")]
        assert places == sorted(places)
    assert [*pd.read_csv(out / "gaps.csv")["optimizer"].unique()] == RANKED
    assert "<b>lowest loss in the time of 1F1B: SOAP 0.910, " in text
