"""The comparison of delayed and fresh updates: right, without a trace, alike in both executors."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.stages.probe import summary
from tests.oracles import semantics
from tests.support import moe, toy
from tests.support.delayed import ADAMW, PHASES, T, expected
from tests.support.trials import ran

DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")
TWO = ("pipeline.num_stages=2", "pipeline.num_microbatches=2")


def test_a_comparison_changes_no_number(tmp_path: Path) -> None:
    """Kron draws numbers. A dry update of every optimizer: optimizers/test_in_parts.py."""
    words = (*DELAYED, *TWO, "optimizer=kron", "clip_norm=0.5")
    plain = ran(tmp_path, "a", *words)[1]
    compared = ran(tmp_path, "b", *words, "diagnostics=3")[1]
    assert [row["update"] for row in compared if row.pop("diagnostics", None)] == [0, 3, 6, 9]
    assert plain == compared


def test_both_executors_find_the_same(tmp_path: Path) -> None:
    words = (*moe.WORDS, *DELAYED, *TWO, "diagnostics=3")  # of experts there is more to find
    assert ran(tmp_path, "a", *words)[1] == ran(tmp_path, "b", *words, "runner=pipelined")[1]


def test_without_delay_there_is_no_difference(tmp_path: Path) -> None:
    for row in ran(tmp_path, "a", "diagnostics=1")[1]:
        for group in row["diagnostics"].values():
            assert group["update_cosine"] == group["applied_cosine"] == pytest.approx(1, abs=1e-7)
            assert group["update_error"] == group["applied_error"] == group["gradient_change"] == 0


def test_it_is_in_metrics_by_group(tmp_path: Path) -> None:
    written = ran(tmp_path, "a", *DELAYED, "diagnostics=4", "num_updates=5")[1]
    groups = written[4]["diagnostics"]
    assert set(groups) == {"all", "matrix", "embedding", "vector"}
    for name in ("weight_norm", "update_norm", "gradient_norm"):
        parts = [groups[kind][name] for kind in ("matrix", "embedding", "vector")]
        assert groups["all"][name] == pytest.approx(math.hypot(*parts))
    assert groups["all"]["gradient_norm"] == pytest.approx(written[4]["grad_norm"])
    assert 0 < groups["matrix"]["update_cosine"] < 1
    json.dumps(written, allow_nan=False)


def test_it_equals_the_equations() -> None:
    """Update 6 with error feedback: u of the delayed and of the fresh gradient, from one state."""

    def version(t: int) -> int:
        return max(0, t - 1)

    def fresh_once(t: int) -> int:
        return t if t == 6 else version(t)

    history, _ = expected(ADAMW, torch.float64, version, coefficient=0.7)
    fresh, _ = expected(ADAMW, torch.float64, fresh_once, coefficient=0.7)
    # With a fresh gradient there is no correction, so W(6) − W(7) is the fresh u itself.
    u_fresh = flat(fresh[6]) - flat(fresh[7])
    applied = flat(history[6]) - flat(history[7])

    schedule = pipedream_2bw(T, num_stages=2, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, ADAMW, partial(ErrorFeedback, coefficient=0.7, lag=1))
    toy.run(executor, (0, 6))
    executor.probe(6)
    toy.run(executor, (6, 7))
    comparison = {
        f"{i}.{name}": products
        for i, stage in enumerate(executor._stages)
        for name, products in stage.take_comparison().items()
    }
    all_of_it = summary(comparison)["all"]
    cosine = applied.dot(u_fresh) / (applied.norm() * u_fresh.norm())
    assert all_of_it["applied_cosine"] == pytest.approx(float(cosine), rel=1e-10)
    error = (applied - u_fresh).norm() / u_fresh.norm()
    assert all_of_it["applied_error"] == pytest.approx(float(error), rel=1e-10)
    assert all_of_it["weight_norm"] == pytest.approx(float(flat(history[6]).norm()))


def flat(weights: semantics.Weights) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights])


def test_the_change_of_a_gradient_is_told(tmp_path: Path) -> None:
    """So that the Taylor coefficient can be swept until it acts."""
    changes = []
    for coefficient in (1.0, 10.0):
        words = ("pipeline=pipedream_2bw", "correction=taylor", "diagnostics=4")
        _, written = ran(
            tmp_path, str(coefficient), *words, f"correction.coefficient={coefficient}"
        )
        changes.append(written[4]["diagnostics"]["all"]["gradient_change"])
    assert changes[1] == pytest.approx(10 * changes[0], rel=0.2)


@pytest.mark.parametrize("runner", ["emulated", "pipelined"])
def test_a_divergence_is_noticed_at_its_own_update(tmp_path: Path, runner: str) -> None:
    """A fresh gradient that is not finite is no result: the delayed one may still be."""
    words = (*TWO, "pipeline=pipedream_2bw", "optimizer=sgd", "optimizer.lr=1e12", "clip_norm=null")
    plain, _ = ran(tmp_path, "a", *words)
    compared, _ = ran(tmp_path, "b", *words, "diagnostics=1", f"runner={runner}")
    assert plain["status"] == compared["status"] == "diverged"
    assert plain["diverged_at"] == compared["diverged_at"]
