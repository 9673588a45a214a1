"""WPipe: the first half of the model is one update late, the second is not, and fewer versions.

test_conformance.py has that it trains its equations.
"""

import pytest

from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.recipes import wpipe
from tests.support.delayed import PHASES

T, M = 6, 3


def schedule(num_stages: int = 1) -> Schedule:
    return wpipe(T, num_stages=num_stages, num_microbatches=M, **PHASES)


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_the_next_batch_enters_the_first_group_before_this_one_comes_back(num_stages: int) -> None:
    for ops in schedule(num_stages).operations(0, T):
        at = {op[:4]: i for i, op in enumerate(ops)}
        group = {op.stage: op.stage >= num_stages for op in ops}
        for (kind, stage, batch, microbatch), i in at.items():
            if kind == "F" and batch > 0:
                before = at["B", stage, batch - 1, microbatch] < i
                assert before == group[stage]


def test_the_second_group_keeps_one_version() -> None:
    assert schedule(3).lags == (1, 1, 1, 0, 0, 0)
    assert Op("F", 0, 1, 0, 0, 0) in schedule().operations(0, T)[0]
    assert Op("F", 1, 1, 0, 1, 0) in schedule().operations(0, T)[0]
