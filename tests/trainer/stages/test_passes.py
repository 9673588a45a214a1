"""The passes over memory that versions and a correction add to an update."""

import pytest

from tests.support.passes import passes_of_versions

SMALL = ("model=nano", "model.num_layers=1", "seq_len=32", "batch_size=4")
DELAY = "pipeline=pipedream_2bw"


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        (("pipeline=sync",), [0, 0, 0]),
        ((DELAY,), [1, 1, 0]),
        ((DELAY, "correction=error_feedback"), [9, 5, 1]),
    ],
    ids=["sync", "delay", "error_feedback"],
)
def test_what_delay_and_error_feedback_add(words: tuple[str, ...], passes: list[float]) -> None:
    """In fp32 the delay copies W(t) to the next slot. Error Feedback copies W(t) once more and
    subtracts what the optimizer made of it (3 reads, 2 writes). Then it reads u_{t−1}, and writes
    in place its difference to u_t, and W(t + 1) (5 reads, 2 writes). A λ other than 1 adds a read
    and a write."""
    words = (*SMALL, "pipeline.num_microbatches=4", *words)
    assert passes_of_versions(words) == pytest.approx(passes, abs=0.01)
