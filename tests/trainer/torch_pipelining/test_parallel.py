"""Stages that are sharded, replicated, cut, compiled, recomputed or in bf16 end where a delay that
is emulated on the same ranks ends, and where the equations end."""

from itertools import groupby

import pytest

from tests.support.torch_parallel import SETTINGS, assert_alike

BY_SHAPE = {
    shape: list(names)
    for shape, names in groupby(
        sorted(SETTINGS, key=lambda n: (SETTINGS[n].data, SETTINGS[n].tensor)),
        lambda n: (SETTINGS[n].data, SETTINGS[n].tensor),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", BY_SHAPE, ids="{0[0]}x{0[1]}".format)
def test_wrapped_stages_train_alike(shape: tuple[int, int]) -> None:
    """But for rounding in sums over ranks; the clip acts, and replicas count once in its norm."""
    assert_alike(BY_SHAPE[shape])
