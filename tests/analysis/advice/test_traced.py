"""Costs of a trace, the measured time of a step, and what share of it 2BW can win."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipegap.analysis.advice.speed import Costs, flushed_speeds, with_step_time
from pipegap.analysis.advice.timing import LITTLE, timing, traced_costs
from pipegap.analysis.commands import advise
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.tracing.trace import Span, write_trace
from tests.support.simulated_advice import ask
from tests.support.synthetic_store import put

MEASURED = Costs((1.0,) * 4, (2.0,) * 4)


def spans(rank: int, stages: list[int], *, in_halves: bool) -> list[Span]:
    """Two microbatches per stage of 1 and 3 seconds, times the rank's number; updates of 0.5."""
    scale, made = rank + 1, []
    for stage in stages:
        for microbatch, time in enumerate((1.0, 3.0)):
            kinds = (
                {"F": time, "I": time, "W": 2 * time} if in_halves else {"F": time, "B": 2 * time}
            )
            kinds |= {"wait F": 9.0, "reduce": 7.0}
            made += [
                Span(kind, stage, 0, microbatch, 5.0, 5.0 + scale * seconds)
                for kind, seconds in kinds.items()
            ]
        made.append(Span("U", stage, 0, 0, 5.0, 5.5))
    return made


@pytest.mark.parametrize("in_halves", [False, True])
def test_costs_are_mean_times_of_each_rank_s_stages(tmp_path: Path, in_halves: bool) -> None:
    """A forward of 2 seconds per stage, and two stages on each rank of a V; of one replica."""
    replica = [spans(0, [0, 3], in_halves=in_halves), spans(1, [1, 2], in_halves=in_halves)]
    longer = [[span._replace(end=span.end + 99) for span in of_rank] for of_rank in replica]
    write_trace(tmp_path / "trace.json", [*replica, *longer], 2)
    costs = traced_costs(tmp_path / "trace.json", 2, 2)
    backward = 3 if in_halves else 2
    assert costs.forward == pytest.approx((4e6, 8e6))
    assert costs.backward == pytest.approx((backward * 4e6, backward * 8e6))
    assert costs.update == pytest.approx(1e6)
    with pytest.raises(BadInput, match=r"stages=4: must be 2, the ranks in .*trace\.json"):
        traced_costs(tmp_path / "trace.json", 4, 2)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": []}', "{}"]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    for place in (path, tmp_path):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"trace=.*must be the trace\.json of a true pipeline"):
            traced_costs(place, 2, 2)


def test_a_trace_in_which_no_time_passes_is_refused(tmp_path: Path) -> None:
    """Of this library and of torch's profiler: a clock that stands, or steps without kernels."""
    still = [[Span(kind, rank, 0, 0, 5.0, 5.0) for kind in "FBU"] for rank in (0, 1)]
    write_trace(tmp_path / "trace.json", still, 2)
    steps = [event("user_annotation", f"ProfilerStep#{step}", 1.0, 1.0) for step in (0, 1)]
    (tmp_path / "ranks").mkdir()
    for rank in (0, 1):
        path = tmp_path / "ranks" / f"{rank}.json"
        path.write_text(json.dumps({"traceEvents": steps}))
    for place in (tmp_path / "trace.json", tmp_path / "ranks"):
        with pytest.raises(BadInput, match=r"trace=.*must be the trace\.json of a true pipeline"):
            traced_costs(place, 2, 2)


def test_a_time_that_is_no_number_is_refused(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 0, "tid": 0, "cat": "F", "dur": float("nan"), "args": {"stage": 0}}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(BadInput, match="trace="):
        traced_costs(tmp_path / "trace.json", 1, 2)


def test_what_a_measured_step_has_beyond_the_simulated_one_no_pipeline_wins() -> None:
    """1F1B takes 33 by its operations, 9 of them its bubble; the rest of the 60 stays."""
    costs = with_step_time(MEASURED, 8, 60.0)
    assert costs.overhead == pytest.approx(27)
    speeds = flushed_speeds(costs, 8)
    assert speeds["1F1B"].batch_time == pytest.approx(60)
    assert speeds["ZB-H1"].batch_time == pytest.approx(27 + 27)
    with pytest.raises(BadInput, match="step_time=32: must be 33 or more"):
        with_step_time(MEASURED, 8, 32.0)


@pytest.mark.parametrize(
    ("step_time", "first", "second"),
    [
        (
            40.0,
            "2BW can win at most 22.5% of a step of 1F1B, ",
            "  against {rivals} that is little",
        ),
        (
            200.0,
            "2BW can win at most 4.5% of a step of 1F1B, ",
            "  that is little: the bubble is not",
        ),
    ],
)
def test_the_share_that_can_be_won_stands_first(
    tmp_path: Path, step_time: float, first: str, second: str
) -> None:
    """9 of 40 or of 200; with measured costs only. Rivals that win as much of it are named."""
    put(tmp_path, "sync", [1.0, 1.01])
    put(tmp_path, "delay", [1.0, 1.02])
    assert ask(tmp_path).limits == ()
    advice = ask(tmp_path, costs=with_step_time(MEASURED, 8, step_time))
    assert str(advice).split("\n\n")[1] == "\n".join(advice.limits), "below what it is for"
    assert advice.limits[-2].startswith(first)
    wins = {name: 1 - 1 / rival.speed_up for name, rival in advice.rivals.items()}
    little = [name for name, share in wins.items() if share < LITTLE]
    assert ("1F1B" in little, "ZB-V" in little) == (step_time == 200, True)
    assert advice.limits[-1].startswith(second.format(rivals=", ".join(little)))


def test_the_command_takes_a_trace_or_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "sync", [1.0, 1.01])
    put(tmp_path, "delay", [1.0, 1.02])
    trace = tmp_path / "trace.json"
    write_trace(trace, [spans(rank, [rank], in_halves=False) for rank in (0, 1)], 2)
    words: dict[str, Any] = {"stages": "2", "microbatches": "4", "results": str(tmp_path)}
    words |= {"optimizer": "adamw", "trace": str(trace)}
    advise.main({**words, "format": "json", "communication": "5"})
    costs = json.loads(capsys.readouterr().out)["costs"]
    expected = Costs((2e6, 4e6), (4e6, 8e6), 0.5e6, 5.0)
    assert costs["forward"] == pytest.approx(expected.forward)
    assert (costs["update"], costs["communication"]) == pytest.approx((5e5, 5))
    advise.main({**words, "step_time": "1e9"})
    assert "that is little: the bubble is not the bottleneck" in capsys.readouterr().out
    with pytest.raises(BadInput, match="forward=1: must not stand beside trace"):
        advise.main({**words, "forward": "1"})


def event(cat: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin}


def gpu(idle: float) -> list[dict[str, Any]]:
    """Two steps of 100: kernels of passes for 30, of the update for 10, of a message until `idle`
    before the end, which ends with nothing."""
    events = [{"ph": "M", "name": "process_name"}]
    for step, at in enumerate((1000.0, 1100.0)):
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, at + 100),
            event("gpu_user_annotation", f"ProfilerStep#{step}", at, at + 100),
            event("kernel", "gemm", at, at + 20),
            event("kernel", "gemm beside it", at + 10, at + 30),
            event("gpu_user_annotation", "Optimizer.step#AdamW.step", at + 30, at + 45),
            event("user_annotation", "Optimizer.step#AdamW.step", at, at + 5),
            event("kernel", "adam", at + 30, at + 40),
            event("kernel", "ncclDevKernel_SendRecv", at + 40, at + 100 - idle),
        ]
    return events


def test_ranks_of_the_profiler_take_the_time_of_their_kernels(tmp_path: Path) -> None:
    """Microbatches of 30 / 2 each, a third of it forwards; no kernel at all is the host's fault,
    and a kernel that waits is not."""
    for rank in range(11):
        idle = 45.0 if rank == 10 else 5.0
        path = tmp_path / f"rank{rank}_trace.json"
        path.write_text(json.dumps({"traceEvents": gpu(idle)}))
    costs = traced_costs(tmp_path, 11, 2)
    assert costs.forward == pytest.approx((5.0,) * 11)
    assert costs.backward == pytest.approx((10.0,) * 11)
    assert costs.update == pytest.approx(10)
    assert costs.overlap == pytest.approx(11 * 30 / 90)
    assert costs.busy == pytest.approx((0.95,) * 10 + (0.55,))
    told = [*timing(costs, 22).limits]
    assert told[0].startswith("stages overlap 3.7 times, where 1F1B lets them overlap 7.6 times")
    assert told[1:] == ["rank 10: its host is the limit: no kernel runs for 45% of a step"]


def test_without_a_gpu_operations_of_the_host_count(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 100),
        event("cpu_op", "aten::linear", 0, 30),
        event("cpu_op", "aten::addmm", 5, 25),
        event("cpu_op", "c10d::recv_", 30, 90),
        event("user_annotation", "Optimizer.step#AdamW.step", 88, 100),
        event("cpu_op", "aten::_fused_adamw_", 90, 100),
    ]
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
    costs = traced_costs(tmp_path, 1, 2)
    assert (costs.forward, costs.update) == (pytest.approx((5.0,)), 10)
    assert costs.overlap == pytest.approx(30 / 90)
    assert not any("host" in line for line in timing(costs, 2).limits)


def test_stages_that_hardly_overlap_are_said_first(tmp_path: Path) -> None:
    """Eight stages of 16 microbatches: 3 · 16 · 8 in a step of 300 is 1.3, of 69 allowed 5.6."""
    costs = Costs((1.0,) * 8, (2.0,) * 8)
    [first, *_] = timing(with_step_time(costs, 16, 300.0), 16).limits
    assert first.startswith("stages overlap 1.3 times, where 1F1B lets them overlap 5.6 times")
    said = [any(timing(with_step_time(costs, 16, 384 / x), 16).limits) for x in (3.2, 3.4)]
    assert said == [True, False], "less than half way from 1 to 5.57"
    made = [
        Span(kind, rank, batch, 0, start + 10.0 * batch, start + 10.0 * batch + 4)
        for rank in (0, 1)
        for batch in range(3)
        for kind, start in (("F", 4.0 * rank), ("U", 5.5))
    ]
    write_trace(tmp_path / "trace.json", [made[:6], made[6:]], 2)
    assert traced_costs(tmp_path / "trace.json", 2, 1).overlap == pytest.approx(8 / 10)


def test_the_shares_are_the_whole_step() -> None:
    """4 stages, 8 microbatches: 24 of computing, 9 of bubble, messages, an update, and the rest."""
    costs = Costs((1.0,) * 4, (2.0,) * 4, update=0.5, communication=0.1)
    [said, *_] = timing(with_step_time(costs, 8, 50.0), 8).shares
    parts = (part.split(" ", 1) for part in said.removeprefix("a step of 1F1B is ").split(", "))
    shares = {name: float(share.rstrip("%")) for share, name in parts}
    assert sum(shares.values()) == pytest.approx(100, abs=0.3)
    assert shares["compute"] == 48.0
    assert shares["bubble"] == 18.0
    assert shares["update"] == 1.0
    assert shares["messages"] > 0
