"""When the sums of tied weights begin, beside the simulation of a trial."""

import pytest

from pipegap.trainer.schedules.proof import simulate
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.torch_pipelining.sums import way_back

COSTS = {"F": 1.0, "B": 2.0, "U": 0.0}


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8])
def test_the_last_stage_asks_for_a_tied_sum_once_it_can_be_there(p: int, slack: bool) -> None:
    """Before that it would wait, after it the norm would be late."""
    m = 2 * p if slack else p
    shape = {"num_stages": p, "num_microbatches": m, "slack": slack}
    schedule = pipedream_2bw(6, **shape, synchronous_start=0, synchronous_cooldown=0)
    spans = simulate(schedule.operations(0, 6), [COSTS] * p).spans
    for batch in (3, 4):
        [whole] = [
            end
            for op, _, end in spans[0]
            if (op.kind, op.batch, op.microbatch) == ("B", batch, m - 1)
        ]
        starts = [start for op, start, _ in spans[-1] if (op.kind, op.batch) == ("F", batch + 1)]
        assert next(i for i, start in enumerate(starts) if start >= whole) == way_back(p)
