"""What the graphs compute, before the compiler rounds otherwise, is the plain update."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5
from torch import Tensor

from tests.support import smallest
from tests.support.smallest import BIASED, DENSE, HYBRID, MOE
from trainer.base.resources import reproducible
from trainer.compiled.chosen import FEEDBACK, RULES, rules
from trainer.compiled.rules_of_matrices import orthogonal
from trainer.compiled.versions import StackedVersions
from trainer.corrections.error_feedback import ErrorFeedback
from trainer.corrections.matched_error_feedback import MatchedErrorFeedback
from trainer.executors.emulated import Emulated
from trainer.executors.gradients import Update

DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")
RULED = ("adamw", "adan", "lion", "mars", "muon", "normuon", "soap")
FAR = {"adan": 5e-4}
"""What an optimizer makes of rounding, if it is more than others make: Adan has a difference of two
gradients in its step."""
Weights = dict[str, Tensor]


def trainer(*words: str) -> Emulated:
    return smallest.trainer(*DENSE, "optimizer.lr=0.01", *words)


def trained(*words: str, updates: int = 8) -> Weights:
    """The weights after so many updates."""
    with reproducible(0, 1):
        run = trainer(*words)
        run.run(0, updates, lambda update: None)
    return run.weights()


def distance(weights: Weights, others: Weights, start: Weights) -> float:
    """The largest difference of a weight, as a share of what training changed in it."""
    return max(
        float((weights[name] - others[name]).norm() / (weights[name] - start[name]).norm())
        for name in weights
    )


@pytest.mark.parametrize("optimizer", RULED)
@pytest.mark.parametrize("model", [(), BIASED, HYBRID], ids=["dense", "mixture", "hybrid"])
def test_a_rule_makes_the_step_of_the_library(
    model: tuple[str, ...], optimizer: str, graphs: list[Any], library_in_fp32: None
) -> None:
    """From a state of the library it goes on as the library does, and the other way round.

    Routers are vectors here: the rows of a router's gradient sum to rounding, of which SOAP makes a
    step of full size.
    """
    words = (*model, *DELAYED, f"optimizer={optimizer}", "optimizer.weight_decay=0.5")
    plain, compiled = trainer(*words), trainer(*words, "compile=update")
    plain.run(0, 11, lambda update: None)
    for first in (11, 12):
        before = plain.weights()
        compiled.restore(plain.state())
        for run in (plain, compiled):
            run.run(first, first + 1, lambda update: None)
        far = distance(compiled.weights(), plain.weights(), before)
        assert far < FAR.get(optimizer, 1e-4)
        plain.restore(compiled.state())
    assert len(rules(compiled.stages[0].optimizer)) == len(before)


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 24, 16), (2, 16, 24)])
def test_orthogonal_matrices_are_those_of_the_library(shape: tuple[int, ...]) -> None:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    theirs = zero_power_via_newton_schulz_5(drawn, 5, dtype=torch.float32)
    assert torch.allclose(orthogonal(drawn, 5), theirs, rtol=1e-5, atol=1e-5)


DELAY = ("pipeline=pipedream_2bw",)
WAYS = [
    (),
    ("correction=none", *DELAY),
    (*DELAYED, "pipeline.num_microbatches=2", "num_replicas=2"),
    (*DELAYED, "model.num_layers=2", "pipeline.num_stages=2"),
    (
        *("pipeline=pipedream", "model.num_layers=2", "pipeline.num_stages=2"),
        "correction=matched_error_feedback",
    ),
    (*DELAYED, "pipeline.synchronous_start=4", "correction.coefficient=0.5"),
    (*DELAYED, "clip_scope=stage", "clip_norm=0.1"),
    (*DELAYED, "model.loss_chunk=5"),
    (*DELAYED, "dtype=bfloat16", "pipeline.num_microbatches=2"),
    (*DELAYED, "dtype=bfloat16", "model.num_layers=2", "pipeline.num_stages=2"),
    MOE,
    (*MOE, *DELAY, "correction=none"),
    (*BIASED, *DELAYED, "pipeline.num_microbatches=2", "num_replicas=2"),
    (
        *(*BIASED, "pipeline=pipedream", "model.num_layers=2", "pipeline.num_stages=2"),
        "correction=matched_error_feedback",
    ),
    (*MOE, *DELAYED, "model.loss_chunk=5"),
    HYBRID,
    (*HYBRID, *DELAYED),
    (*HYBRID, "model.balance=bias", *DELAYED, "pipeline.num_stages=2"),
]
WITHOUT_A_GRAPH = [
    (*DELAY, "correction=taylor"),
    (*DELAY, "correction=error_feedback_gradient"),
    (*DELAY, "correction=adaptive_error_feedback"),
    (*DELAYED, "correction.lag=delay"),
    (*DELAY, "correction=learning_rate"),
    (*DELAY, "optimizer=sgd"),
    (*DELAY, "optimizer=schedule_free_adamw", "correction=none"),
    (*DELAYED, "optimizer=dion"),
    *((*BIASED, *DELAY, f"correction={name}") for name in ("taylor", "adaptive_error_feedback")),
    (*MOE, *DELAY, "correction=error_feedback_gradient"),
    (*MOE, *DELAY, "correction=learning_rate"),
    (*BIASED, *DELAYED, "correction.lag=delay"),
    (*BIASED, *DELAYED, "optimizer=dion"),
    (*MOE, *DELAY, "optimizer=schedule_free_adamw", "correction=none"),
]
"""Of these a part of the update is made as without a compiler."""


@pytest.mark.parametrize("words", [*WAYS, *WITHOUT_A_GRAPH], ids=" ".join)
def test_every_way_to_train(words: tuple[str, ...], graphs: list[Any]) -> None:
    plain, compiled = trained(*words), trained(*words, "compile=update")
    start = trained(*words, updates=0)
    assert distance(compiled, plain, start) < 2e-5


@pytest.mark.parametrize("model", [(), MOE], ids=["dense", "mixture"])
def test_a_matrix_that_has_not_moved_yet_is_not_corrected(
    model: tuple[str, ...], graphs: list[Any]
) -> None:
    """Error Feedback begins when there is an earlier update: before, u_{t−1} is zero."""
    plain, compiled = trainer(*model, *DELAYED), trainer(*model, *DELAYED, "compile=update")
    plain.run(0, 3, lambda update: None)
    state, before = deepcopy((plain.state(), plain.weights()))
    for of_weight in [*state.values()][::2]:
        earlier = of_weight["correction"]["update_1"]
        (earlier[1:3] if earlier.ndim == 3 else earlier).zero_()
    for run in (plain, compiled):
        run.restore(deepcopy(state))
        run.run(3, 4, lambda update: None)
    assert distance(compiled.weights(), plain.weights(), before) < 2e-5


def test_one_graph_serves_trials_with_other_numbers(graphs: list[Any]) -> None:
    trained(*DELAYED, "compile=update", updates=3)
    options = ("optimizer.lr=0.1", "optimizer.momentum=0.5", "optimizer.eps=1e-3", "seed=3")
    num_graphs = len(graphs)
    trained(*DELAYED, *options, "correction.coefficient=0.3", "compile=update", updates=3)
    assert len(graphs) == num_graphs


@pytest.mark.parametrize("model", [(), MOE, BIASED, HYBRID], ids=len)
def test_a_gradient_is_that_of_autograd(model: tuple[str, ...], graphs: list[Any]) -> None:
    norms: dict[str, list[Update]] = {"false": [], "update": []}
    for way, updates in norms.items():
        with reproducible(0, 1):
            trainer(*model, f"compile={way}").run(0, 1, updates.append)
    assert norms["update"] == norms["false"]


def test_balance_biases_count_as_a_plain_stages(graphs: list[Any]) -> None:
    """Whole steps, by the loads of each batch; neither clip nor Error Feedback changes them."""
    plain, compiled = (
        trained(*BIASED, *DELAYED, "clip_norm=0.01", f"compile={way}")
        for way in ("false", "update")
    )
    [name] = [name for name in plain if name.endswith(".bias")]
    assert plain[name].abs().max() >= 2
    assert torch.equal(compiled[name], plain[name])


def test_it_goes_on_from_a_plain_trial_in_bf16() -> None:
    """Whose versions are rounded, and whose master is not."""
    plain, compiled = (
        trainer(*DELAYED, "dtype=bfloat16", f"compile={way}") for way in ("false", "update")
    )
    plain.run(0, 3, lambda update: None)
    compiled.restore(plain.state())
    weights = compiled.weights()
    assert all(torch.equal(weights[name], weight) for name, weight in plain.weights().items())


@pytest.mark.parametrize(
    ("dtype", "angles"), [("float32", "in the graph"), ("bfloat16", "computed once")]
)
def test_constants_of_a_graph(dtype: str, angles: str, graphs: list[Any]) -> None:
    """Losses of fp32 trials are published: folded constants would change their last digits."""
    trained(f"dtype={dtype}", "model.hidden_size=32", "compile=update", updates=1)
    made = str(graphs[-1].code)
    assert ("cos" in made) == (angles == "in the graph")


def test_a_version_that_is_gone_is_not_read(graphs: list[Any]) -> None:
    run = trainer(*DELAYED, "compile=update")
    run.run(0, 3, lambda update: None)
    versions = run.stages[0].versions
    assert isinstance(versions, StackedVersions)
    with pytest.raises(LookupError, match=r"version 1 is not there, only \[2, 3\]"):
        versions.read([1] * len(versions.names))


def test_what_has_a_rule_stays() -> None:
    """Another entry changes the numbers of trials that have an id: it needs another name."""
    names = ("Adan", "Lion", "MARS", "Muon", "NorMuon", "SOAP")
    assert RULES.keys() == {"torch.AdamW", *(f"pytorch_optimizer.{name}" for name in names)}
    assert FEEDBACK.keys() == {ErrorFeedback, MatchedErrorFeedback}


def test_what_is_not_compiled_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    trainer("compile=update", *DELAYED)
    trainer("compile=update", "optimizer=dion", "correction=taylor")
    said = "compile=update: optimizer=dion and correction=taylor: not compiled, run as with false"
    assert capsys.readouterr().err.splitlines() == [said]
