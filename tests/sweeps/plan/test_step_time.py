"""Seconds of counted work: closed forms, and the ratios of pipelines."""

import pytest

from pipegap.analysis.advice.speed import Costs, speed_up
from pipegap.sweeps.plan.devices import (
    OF_STEP,
    Device,
    Rates,
    core,
    device_of,
    known_devices,
    of_update_and_forward,
)
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.work import StageWork

compose = Composer()
SIMPLE = Device(
    "simple", products={"float32": 50.0}, attention={"float32": 25.0}, bytes=5.0, host=0.0
)


def test_seconds_are_work_over_rates_and_a_core_works_for_its_host_too() -> None:
    stages = [StageWork(75, 50, 5, 20, 100, 1), StageWork(0, 0, 10, 0, 0, 2)]
    assert SIMPLE.passes(stages, "float32") == 1 + 3 + 1 + 2
    assert SIMPLE.update(stages, "float32") == pytest.approx(20 / 5 + 100 / 50 / OF_STEP)
    gpu = known_devices()["H100"]
    idle, busy = StageWork(0, 0, 0, 0, 0, 1000), StageWork(0, 0, gpu.bytes * 10, 0, 0, 1000)
    assert gpu.passes([idle], "float32") == pytest.approx(1000 * gpu.host)
    assert gpu.passes([busy], "float32") == pytest.approx(10)
    slow, fast = (
        core(Rates({"float32": 1e11 * x, "bfloat16": 2e11 * x}, 1e11 * x, 1e-6 / x), "update")
        for x in (1, 4)
    )
    on_core = slow.passes([busy._replace(bytes=slow.bytes)], "float32")
    assert on_core == pytest.approx(1 + 1000 * slow.host)
    assert slow.passes([busy], "float32") == pytest.approx(4 * fast.passes([busy], "float32"))


def test_a_trial_s_device() -> None:
    plain, compiled = (
        device_of(compose(["num_updates=1", f"compile={way}"])) for way in ("false", "update")
    )
    assert (plain.name, compiled.name) == ("core", "core")
    assert not compiled.is_gpu
    assert compiled.host < plain.host
    assert device_of({"device": "cuda:1"}).is_gpu


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8)])
def test_a_true_pipeline_s_time_is_that_of_its_schedule(p: int, m: int) -> None:
    """Flushed over 2BW: as the simulation of the advice with the same costs says."""
    shape = (f"pipeline.num_stages={p}", f"pipeline.num_microbatches={m}", "runner=pipelined")
    words = ("model=tiny_deep", "num_updates=9", f"batch_size={m}", *shape)
    times = {
        name: of_update_and_forward(compose([*words, f"pipeline={name}"]), 9, SIMPLE)[0]
        for name in ("sync", "pipedream_2bw")
    }
    alone = compose([*words, "runner=emulated"])
    whole, forward = of_update_and_forward(alone, 9, SIMPLE)
    assert 3 * forward < whole < p * times["sync"]
    equal = speed_up(Costs((1.0,) * p, (2.0,) * p), m)
    assert 1 < times["sync"] / times["pipedream_2bw"] <= equal + 1e-9


def test_replicas_share_the_batch() -> None:
    one, two = (
        of_update_and_forward(
            compose(["num_updates=1", "runner=pipelined", "batch_size=64", f"num_replicas={n}"]),
            1,
            SIMPLE,
        )[0]
        for n in (1, 2)
    )
    assert one / 2 < two < 0.6 * one
