"""What the graphs compute, before the compiler rounds otherwise: plain updates, evaluations."""

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.build import build, locate
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.compiled import passes, stage
from pipegap.trainer.compiled.passes import Blocks, StackedParts, StackedVersions, _alone
from pipegap.trainer.compiled.rules import RULES, feedback, orthogonal, require_graphs, rules
from pipegap.trainer.compiled.stage import CompiledStage
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Diverged, Update
from pipegap.trainer.optimizers import entrywise
from pipegap.trainer.optimizers.routing import Chained, Parameters, moved_by
from tests.support import every_correction
from tests.support.choices import OPTIMIZERS
from tests.support.steps import DENSE, executor, resolved

DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")
RULED = ("adamw", "adan", "lion", "mars", "muon", "normuon", "soap")
FAR = {"adan": 5e-4}
"""What an optimizer makes of rounding, if it is more than others make: Adan has a difference of two
gradients in its step."""
Weights = dict[str, Tensor]


def trainer(*words: str) -> Emulated:
    return executor(resolved([*DENSE, "optimizer.lr=0.01", *words]))


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
def test_a_rule_makes_the_step_of_the_library(
    optimizer: str, graphs: list[Any], library_in_fp32: None
) -> None:
    """From a state of the library it goes on as the library does, and the other way round."""
    words = (*DELAYED, f"optimizer={optimizer}", "optimizer.weight_decay=0.5")
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
    ("correction=ema_nesterov", "correction.start=0", "correction.look_ahead=2"),
    (*DELAY, "correction=ema_nesterov", "correction.start=0", "correction.coefficient=0.7"),
    (*DELAYED, "model.loss_chunk=5"),
    (*DELAYED, "dtype=bfloat16", "pipeline.num_microbatches=2"),
    (*DELAYED, "dtype=bfloat16", "model.num_layers=2", "pipeline.num_stages=2"),
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
]
"""Of these a part of the update is made as without a compiler."""


@pytest.mark.parametrize("words", [*WAYS, *WITHOUT_A_GRAPH], ids=" ".join)
def test_every_way_to_train(words: tuple[str, ...], graphs: list[Any]) -> None:
    plain, compiled = trained(*words), trained(*words, "compile=update")
    start = trained(*words, updates=0)
    assert distance(compiled, plain, start) < 2e-5


def stacked_gradients() -> tuple[StackedParts, list[Tensor]]:
    """Gradients in blocks, and a copy of each."""
    shapes = [torch.Size(shape) for shape in ((5,), (7, 33), (129, 3), (5,), (7, 33), (1,))]
    drawn = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=drawn) for shape in shapes]
    layout = Blocks(shapes, [0] * len(shapes))
    return StackedParts(layout, layout.stacked(tensors)), tensors


def test_norms_of_stacked_gradients_are_those_of_each_to_the_bit() -> None:
    gradients, tensors = stacked_gradients()
    assert torch.equal(gradients.norms(), torch.stack(torch._foreach_norm(tensors)))


def test_a_clip_reaches_whoever_reads_gradients_and_is_made_once() -> None:
    gradients, tensors = stacked_gradients()
    factor = torch.tensor(0.3)
    gradients.multiply(factor)
    pairs = zip(gradients, tensors, strict=True)
    assert all(torch.equal(gradient, tensor * factor) for gradient, tensor in pairs)
    assert gradients.take_factor() == 1
    gradients.multiply(factor)
    assert gradients.take_factor() == factor  # the caller's now: the blocks stay
    assert torch.equal(gradients[3], tensors[3] * factor)
    for _ in range(2):
        gradients.multiply(factor)
    assert torch.equal(gradients[3], tensors[3] * factor * factor * factor)


def test_a_strong_clip_is_part_of_the_step(graphs: list[Any]) -> None:
    """With this eps the size of a gradient counts: a step without the clip would be another one."""
    words = (*DELAYED, "clip_norm=0.01", "optimizer.eps=0.1")
    plain, compiled = trained(*words), trained(*words, "compile=update")
    assert distance(compiled, plain, trained(*words, updates=0)) < 2e-5


def test_an_update_without_a_graph_in_between_is_seen_by_the_next_graph(graphs: list[Any]) -> None:
    plain, compiled = trainer(*DELAYED), trainer(*DELAYED, "compile=update")
    start = deepcopy(compiled.weights())
    [stage_of_graphs] = compiled.stages
    make_update = stage_of_graphs.update

    def as_a_list(batch: int, gradients: Any) -> None:
        make_update(batch, [*gradients] if batch == 4 else gradients)

    stage_of_graphs.update = as_a_list  # type: ignore[method-assign]
    with reproducible(0, 1):
        for run in (plain, compiled):
            run.run(0, 8, lambda update: None)
    assert distance(compiled.weights(), plain.weights(), start) < 2e-5


def test_a_gradient_that_is_not_finite_is_not_applied(graphs: list[Any]) -> None:
    compiled = trainer(*DELAYED, "compile=update")
    with reproducible(0, 1):
        compiled.run(0, 4, lambda update: None)
        before = deepcopy(compiled.weights())
        # The loss stays finite, its gradient does not.
        take, [only_stage] = compiled.stages[0].take_gradients, compiled.stages

        def spoilt() -> Any:
            gradients = take()
            assert isinstance(gradients, StackedParts)
            gradients.blocks[-1].view(-1)[0] = torch.inf
            return gradients

        only_stage.take_gradients = spoilt  # type: ignore[method-assign]
        with pytest.raises(Diverged) as raised:
            compiled.run(4, 8, lambda update: None)
    assert raised.value.batch == 4
    assert all(torch.equal(compiled.weights()[name], weight) for name, weight in before.items())


def test_a_matrix_that_has_not_moved_yet_is_not_corrected(graphs: list[Any]) -> None:
    """Error Feedback begins when there is an earlier update: before, u_{t−1} is zero."""
    plain, compiled = trainer(*DELAYED), trainer(*DELAYED, "compile=update")
    plain.run(0, 3, lambda update: None)
    state, before = deepcopy((plain.state(), plain.weights()))
    for of_weight in [*state.values()][::2]:
        of_weight["correction"]["update_1"].zero_()
    for run in (plain, compiled):
        run.restore(deepcopy(state))
        run.run(3, 4, lambda update: None)
    assert distance(compiled.weights(), plain.weights(), before) < 2e-5


def test_what_a_correction_keeps_beside_the_graph_survives_a_checkpoint(graphs: list[Any]) -> None:
    """The graph has u_{t−1} of EMA-Nesterov, and the correction its x and m."""
    words = (*DELAY, "correction=ema_nesterov", "correction.start=0", "correction.coefficient=1")
    straight = trained(*words, "compile=update")
    first, second = trainer(*words, "compile=update"), trainer(*words, "compile=update")
    with reproducible(0, 1):
        first.run(0, 5, lambda update: None)
        second.restore(deepcopy(first.state()))
        for run in (first, second):
            run.run(5, 8, lambda update: None)
            assert all(torch.equal(run.weights()[name], w) for name, w in straight.items())


def test_one_graph_serves_trials_with_other_numbers(graphs: list[Any]) -> None:
    trained(*DELAYED, "compile=update", updates=3)
    options = ("optimizer.lr=0.1", "optimizer.momentum=0.5", "optimizer.eps=1e-3", "seed=3")
    num_graphs = len(graphs)
    trained(*DELAYED, *options, "correction.coefficient=0.3", "compile=update", updates=3)
    assert len(graphs) == num_graphs


def test_pipelines_share_the_graph_of_a_step_and_optimizers_that_of_feedback(
    graphs: list[Any],
) -> None:
    """The compiler takes seconds for each: one of the passes, one of AdamW, and so on."""
    counts = []
    for words in (
        ("optimizer=adamw", "pipeline=sync"),
        ("optimizer=adamw", "pipeline=pipedream_2bw"),
        ("optimizer=adamw", "pipeline=pipedream_2bw", "correction=error_feedback"),
        ("optimizer=lion", "pipeline=pipedream_2bw", "correction=error_feedback"),
        ("optimizer=lion", "pipeline=pipedream_2bw", "correction=adaptive_error_feedback"),
    ):
        num_graphs = len(graphs)
        trained(*words, "model.vocab_size=31", "compile=update", updates=3)
        counts.append(len(graphs) - num_graphs)
    assert counts == [2, 0, 1, 1, 0]


def test_a_step_never_writes_where_it_reads_weights(
    graphs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler may read an old weight after it has written the new one."""
    made, places = stage.update_graph, []

    def watched(blocks: tuple[stage.Block, ...], num_threads: int) -> Any:
        graph = made(blocks, num_threads)

        def run(numbers: Tensor, *tensors: Tensor) -> Any:
            places.append([tensor.data_ptr() for tensor in tensors])
            return graph(numbers, *tensors)

        return run

    monkeypatch.setattr(stage, "update_graph", watched)
    trained("pipeline=sync", "compile=update", updates=3)
    assert len(places) == 2
    assert all(len({*of_update}) == len(of_update) for of_update in places)


def test_a_gradient_is_that_of_autograd(graphs: list[Any]) -> None:
    norms: dict[str, list[Update]] = {"false": [], "update": []}
    for way, updates in norms.items():
        with reproducible(0, 1):
            trainer(f"compile={way}").run(0, 1, updates.append)
    assert norms["update"] == norms["false"]


def test_it_goes_on_from_a_plain_trial_in_bf16() -> None:
    """Whose versions are rounded, and whose master is not."""
    plain, compiled = (
        trainer(*DELAYED, "dtype=bfloat16", f"compile={way}") for way in ("false", "update")
    )
    plain.run(0, 3, lambda update: None)
    compiled.restore(plain.state())
    weights = compiled.weights()
    assert all(torch.equal(weights[name], weight) for name, weight in plain.weights().items())


def test_the_angles_of_a_graph_are_computed_once(graphs: list[Any]) -> None:
    trained("dtype=bfloat16", "model.hidden_size=32", "compile=update", updates=1)
    assert "cos" not in str(graphs[-1].code)


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
    nodes = {name: every_correction.settings(name) for name in every_correction.NAMES}
    made = {name for name, node in nodes.items() if feedback(build(node, 9, [1])) is not None}
    assert made == {"error_feedback", "matched_error_feedback", "ema_nesterov"}


class Reversed(ErrorFeedback):
    """Of one's own: another correction than the class that it derives from."""

    @override
    def _factors(self, *sizes: Any) -> Tensor:
        return -super()._factors(*sizes)


class Doubling(Chained):
    """Of one's own: steps twice."""

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        super().step()


def hooked(optimizer: Optimizer) -> Optimizer:
    optimizer.register_step_post_hook(lambda *arguments: None)
    return optimizer


def replaced(optimizer: Optimizer) -> Optimizer:
    vars(optimizer)["step"] = lambda closure=None: None
    return optimizer


@pytest.mark.parametrize(
    ("around", "num_ruled"),
    [
        (lambda adamw: adamw, 1),
        (lambda adamw: Chained([Chained([adamw])]), 1),
        (lambda adamw: Chained([Chained([adamw], within=lambda groups: nullcontext())]), 0),
        (lambda adamw: moved_by(adamw, lambda group, weights, updates: None), 0),
        (lambda adamw: Doubling([adamw]), 0),
        (hooked, 0),
        (replaced, 0),
    ],
)
def test_a_rule_is_of_an_optimizer_that_stands_alone(
    around: Callable[[Optimizer], Optimizer], num_ruled: int
) -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert len(rules(around(torch.optim.AdamW([weight])))) == num_ruled
    for option in ("amsgrad", "maximize"):
        assert not rules(torch.optim.AdamW([weight], **{option: True}))


def test_a_class_that_derives_from_a_correction_is_not_compiled_as_that() -> None:
    parts = {"coefficient": 1.0, "lag": 1}
    assert feedback(ErrorFeedback(9, [1], **parts)) is not None
    assert feedback(Reversed(9, [1], **parts)) is None


def test_what_stands_around_an_optimizer_acts_in_a_compiled_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`moved_by` around AdamW that moves no weight: no weight moves."""
    adamw = entrywise.adamw

    @wraps(adamw)
    def still(parameters: Parameters, **options: Any) -> Optimizer:
        return moved_by(adamw(parameters, **options), lambda group, weights, updates: None)

    monkeypatch.setattr(entrywise, "adamw", still)
    start, end = (trained("compile=update", updates=num) for num in (0, 3))
    assert all(torch.equal(end[name], weight) for name, weight in start.items())


def test_what_is_not_compiled_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    trainer("compile=update", *DELAYED)
    trainer("compile=update", "optimizer=dion", "correction=taylor")
    said = "compile=update: optimizer=dion and correction=taylor: not compiled, run as with false"
    assert capsys.readouterr().err.splitlines() == [said]


@pytest.mark.parametrize(
    "words",
    [
        DENSE,
        (*DENSE, "model.num_layers=2", "pipeline.num_stages=2"),
        (*DENSE, "eval_dtype=bfloat16", "model.num_layers=2", "pipeline.num_stages=2"),
    ],
    ids=len,
)
def test_an_evaluation_is_a_plain_stages(words: tuple[str, ...], graphs: list[Any]) -> None:
    """Batches of the first one's shape are a graph's; the last batch is shorter."""
    batches = torch.randint(30, (11, 9), generator=torch.Generator().manual_seed(0)).split(5)
    with reproducible(0, 1):
        plain, compiled = (
            executor(resolved([*words, *DELAYED, f"compile={way}"])) for way in ("false", "update")
        )
        expected, num_graphs = plain.evaluate(batches), len(graphs)
        assert compiled.evaluate(batches) == expected
        assert len(graphs) == num_graphs + len(compiled.stages)
        for first, last in ((0, 3), (3, 4)):  # the newest version lies in another slot each time
            for run in (plain, compiled):
                run.run(first, last, lambda update: None)
            expected = pytest.approx(plain.evaluate(batches), rel=1e-6)
            assert compiled.evaluate(batches) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer=schedule_free_adamw",),
        ("correction=ema_nesterov", "correction.start=0", "correction.look_ahead=50"),
    ],
)
def test_averages_are_not_evaluated_as_the_newest_weights(
    words: tuple[str, ...], graphs: list[Any]
) -> None:
    batches = torch.randint(30, (8, 9), generator=torch.Generator().manual_seed(0)).split(4)
    found = []
    for way in ("false", "update"):
        run = executor(resolved([*DENSE, *words, f"compile={way}"]))
        with reproducible(0, 1):
            run.run(0, 3, lambda update: None)
            found.append(run.evaluate(batches))
    assert found[1] == pytest.approx(found[0], rel=1e-6)


# What graphs of short sequences attend by, who compiles a graph, and what is made by graphs.

SHORT = passes.SHORT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_short_attention_is_two_products_and_a_softmax(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, list[Update]] = {"false": [], "update": []}
    codes = []

    def as_it_is(graph: Any, *_: Any) -> Callable[..., Any]:
        codes.append(graph.code)
        run: Callable[..., Any] = graph.forward
        return run

    monkeypatch.setattr("pipegap.trainer.compiled.passes.compiled", as_it_is)
    monkeypatch.setattr("pipegap.trainer.compiled.passes.SHORT", SHORT)  # see `graphs`
    passes.graph_of_stage.cache_clear()
    with reproducible(0, 1):
        for way, updates in made.items():
            words = (f"compile={way}", f"dtype={dtype}")
            executor(resolved([*DENSE, *words])).run(0, 1, updates.append)
    passes.graph_of_stage.cache_clear()
    [code] = codes
    assert "aten.mm" in code
    assert "scaled_dot_product" not in code
    [plain], [compiled] = made.values()
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-6)
    assert compiled.grad_norm == pytest.approx(plain.grad_norm, rel=5e-6)


def test_one_process_compiles_a_graph_while_the_others_wait_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    begun: list[str] = []

    def compile_it(which: str) -> None:
        with _alone(which):
            begun.append(which)

    same, other = (threading.Thread(target=compile_it, args=[which]) for which in ("same", "other"))
    with caplog.at_level(logging.WARNING), _alone("same"):
        same.start()
        other.start()
        other.join(10)
        same.join(0.2)
        assert begun == ["other"]
    same.join(10)
    assert begun == ["other", "same"]
    assert "waits for another process" in caplog.text


def reads_ahead(name: str) -> bool:
    """Whether `compile=update` refuses a correction, because its class says so."""
    correction: Any = locate(every_correction.settings(name)["_target_"])
    return bool(correction.reads_ahead)


CHOICES = [
    *((f"optimizer={name}",) for name in OPTIMIZERS),
    ("optimizer=muon", "optimizer.orthogonalisation=polar_express"),
    ("optimizer=muon", "optimizer.cautious_decay=true"),
    ("optimizer=muon", "optimizer.nesterov=false", "optimizer.newton_schulz_steps=3"),
    ("optimizer=normuon", "optimizer.scaling=preserve_norm"),
    *(
        (f"correction={path.stem}",)
        for path in sorted((CONF / "correction").glob("*.yaml"))
        if not reads_ahead(path.stem)
    ),
    ("correction=error_feedback", "correction.lag=delay"),
    ("correction=error_feedback", "correction.coefficient=2"),
    ("correction=matched_error_feedback", "correction.lag=delay"),
]
"""Those that `compile=update` refuses are left out."""


@pytest.mark.parametrize("words", CHOICES, ids=" ".join)
def test_a_plan_and_a_stage_agree(words: tuple[str, ...]) -> None:
    given = (*DENSE, "pipeline=pipedream_2bw", *words, "compile=update")
    config = resolved(given)
    [stage] = executor(config).stages
    assert isinstance(stage, CompiledStage)
    try:
        require_graphs(config)
        is_whole = True
    except BadInput:
        is_whole = False
    assert is_whole == (not stage.without_graph)
