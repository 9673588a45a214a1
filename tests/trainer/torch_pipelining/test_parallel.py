"""Stages that are sharded, replicated, cut, compiled or recomputed end where the equations end."""

import pickle

import pytest
import torch
from torch import Tensor

from tests.support.torch_parallel import MICROBATCHES, WRAPS, as_rank
from tests.support.torch_pipeline import Case, expected
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPS)
def test_wrapped_stages_train_alike(name: str) -> None:
    """But for rounding in sums over ranks; the clip acts, and replicas count once in its norm."""
    weights: list[dict[str, Tensor]] = []

    def on_message(message: tuple[str, int, bytes]) -> None:
        weights.append(pickle.loads(message[2]))

    run_gang(as_rank, ([name],), 4, Parent(on_message, timeout=60))
    reference, _ = expected(Case(MICROBATCHES, error_feedback=1.0), 2)
    assert {key for of_rank in weights for key in of_rank} == set(reference)
    for of_rank in weights:
        for key, weight in of_rank.items():
            torch.testing.assert_close(weight, reference[key], rtol=0, atol=1e-5)
