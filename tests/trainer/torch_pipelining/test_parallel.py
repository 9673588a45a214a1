"""Stages that are sharded, replicated, cut, compiled, recomputed or in bf16 end where a delay that
is emulated on the same ranks ends, and where the equations end."""

import pickle
from collections import defaultdict
from itertools import groupby

import pytest
import torch

from tests.support.torch_parallel import MICROBATCHES, SETTINGS, Weights, as_rank
from tests.support.torch_pipeline import Case, expected
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent

BY_SHAPE = {
    shape: list(names)
    for shape, names in groupby(
        sorted(SETTINGS, key=lambda n: (SETTINGS[n].data, SETTINGS[n].tensor)),
        lambda n: (SETTINGS[n].data, SETTINGS[n].tensor),
    )
}


OWN_EQUATIONS = ("two tensors", "fsdp2, bf16", "autocast")
"""Settings that compute something else than the equations: the emulated delay alone is right."""


def assert_close(weights: Weights, right: Weights) -> None:
    """But for rounding: with compute in bf16 that is of fp32 masters."""
    for key, weight in weights.items():
        tolerance = 1e-6 if weight.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(weight, right[key], rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("shape", BY_SHAPE, ids="{0[0]}x{0[1]}".format)
def test_wrapped_stages_train_alike(shape: tuple[int, int]) -> None:
    """But for rounding in sums over ranks; the clip acts, and replicas count once in its norm."""
    names = BY_SHAPE[shape]
    trained: dict[str, list[list[Weights]]] = defaultdict(list)

    def on_message(message: tuple[str, int, bytes]) -> None:
        trained[message[0]].append(pickle.loads(message[2]))

    run_gang(as_rank, (names,), 2 * shape[0] * shape[1], Parent(on_message, timeout=300))
    reference, _ = expected(Case(MICROBATCHES, error_feedback=1.0), 2, torch.float64)
    for name in names:
        assert {key for ours, *_ in trained[name] for key in ours} == set(reference)
        for ours, emulated in trained[name]:
            assert_close(ours, emulated)
            if name not in OWN_EQUATIONS:
                assert_close(ours, reference)
