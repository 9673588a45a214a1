"""A trial on a GPU that is not there; tests/fake_cuda/test_choices.py has every choice."""

import pytest

from tests.support.fake_cuda.asked import answers, needed, require_sound, small

EF = ("correction=error_feedback", "pipeline.num_stages=2", "model.num_layers=2")
MANY = ("pipeline.num_microbatches=2",)


@pytest.mark.long
@needed
def test_what_a_trial_does_on_a_gpu(request: pytest.FixtureRequest) -> None:
    """Updates, an evaluation, a comparison with the fresh update, and a checkpoint; and what a rank
    sends to the one that writes the checkpoint of a gang."""
    words = small(*EF, *MANY)
    question = {"module": "trials", "words": words, "updates": 2, "whole": True}
    facts, sent = answers(request.config, [question, {"module": "gang_state"}])
    require_sound(facts)
    assert sent == {"devices": ["cpu"] * 3, "is_shared": True, "others": [3]}, (
        "the recording rank would restore another rank's tensors on its own GPU"
    )
