"""Arms differ in staleness only and are called alike everywhere; a sweep's keys stay its own."""

from pathlib import Path

import pytest

from pipegap.analysis.table.rows import arm_columns
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.files import known
from pipegap.sweeps.request.schema import check_sweep
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from tests.support.refusals import Refused
from tests.support.sweep_requests import only

SYNC, DELAY = ["pipeline=sync"], ["pipeline=pipedream_2bw"]


@pytest.mark.parametrize(
    ("delay", "named"),
    [
        ([*SYNC, "pipeline.num_microbatches=2"], "sync again"),
        ([*DELAY, "++seq_len=64"], "seq_len=64"),
        ([*DELAY, "optimizer.lr=0.5"], "optimizer="),
    ],
)
def test_arms_differ_in_staleness_only(delay: list[str], named: str, tmp_path: Path) -> None:
    arms = {"sync": SYNC, "delay": delay}
    sweep = check_sweep({"base": [], "grid": {}, "arms": arms, "seeds": [0], "verdict": "none"})
    with pytest.raises(BadInput) as raised:
        points(sweep, tmp_path)
    assert named in str(raised.value)
    assert "sweep.arms" in str(raised.value)


def test_an_arm_may_be_sync_at_some_point_and_run_otherwise(tmp_path: Path) -> None:
    content = {"base": ["pipeline.num_microbatches=4"], "grid": {"pipeline.num_stages": [1, 2]}}
    arms = {"sync": SYNC, "delay": [*DELAY, "timeout=9.0"]}
    sweep = check_sweep({**content, "arms": arms, "seeds": [0], "verdict": "none"})
    assert len(points(sweep, tmp_path)) == 2


def test_a_second_synchronous_arm_may_look_ahead(tmp_path: Path) -> None:
    arms = {"sync": SYNC, "sync_ema_nesterov": [*SYNC, "correction=ema_nesterov"]}
    sweep = check_sweep({"base": [], "grid": {}, "arms": arms, "seeds": [0], "verdict": "none"})
    assert len(points(sweep, tmp_path)) == 1
    arms["sync_ema_nesterov"] = [*SYNC, "correction=error_feedback"]
    with pytest.raises(BadInput, match="sync again"):
        points(sweep.model_copy(update={"arms": arms}), tmp_path)


@pytest.mark.parametrize("values", ["[1,'1']", "['0.1','1e-1']"])
def test_a_value_that_is_written_twice_is_refused(values: str, refused: Refused) -> None:
    words = ["sweep=main", "grid.optimizer=[adamw]", f"grid.optimizer.lr={values}"]
    assert "must not repeat a value" in refused(lambda: main(words))


@pytest.mark.parametrize("word", ["+seed=1", "~seed=1", "++out=x"])
def test_hydras_prefixes_hide_no_reserved_key(word: str) -> None:
    with pytest.raises(BadInput, match=word.partition("=")[0].strip("+~")):
        parse_request(["sweep=main", word])
    content = {"base": [word], "grid": {}, "arms": {"sync": SYNC}, "seeds": [0], "verdict": "n"}
    with pytest.raises(BadInput, match=word.partition("=")[0].strip("+~")):
        check_sweep(content)


def test_hydras_prefixes_hide_no_key_of_the_grid() -> None:
    with pytest.raises(BadInput, match=r"grid\.optimizer"):
        parse_request(["sweep=main", "++optimizer=lion"])


@pytest.fixture(scope="module")
def composer() -> Composer:
    """One for all sweeps, which share most of what they choose."""
    return Composer()


@pytest.mark.parametrize("name", known("sweep"))
def test_an_arm_has_the_name_that_the_report_gives_it(
    name: str, composer: Composer, tmp_path: Path
) -> None:
    for point in points(only(f"sweep={name}"), tmp_path, composer):
        assert {arm: arm_columns(config, {})["arm"] for arm, config in point.configs.items()} == {
            arm: arm for arm in point.configs
        }
