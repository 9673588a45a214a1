"""What graphs of short sequences attend by, who compiles a graph, and what is made by graphs."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.build import locate
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.compiled import passes
from pipegap.trainer.compiled.chosen import require_graphs
from pipegap.trainer.compiled.passes import _alone
from pipegap.trainer.compiled.stage import CompiledStage
from pipegap.trainer.executors.gradients import Update
from tests.support import every_correction
from tests.support.every_optimizer import NAMES
from tests.support.steps import DENSE, executor, resolved

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
    *((f"optimizer={name}",) for name in NAMES),
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
