"""What graphs multiply by, and which process compiles them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from bench.steps import executor, resolved
from trainer.base.compiler import compiler
from trainer.base.resources import reproducible
from trainer.compiled import passes
from trainer.compiled.graphs import _compiling_alone
from trainer.compiled.products import products_of
from trainer.executors.gradients import Update

SHORT = passes.SHORT
SMALL = (
    *("model=nano", "model.num_layers=1", "model.hidden_size=16", "model.intermediate_size=24"),
    *("model.vocab_size=30", "batch_size=4", "seq_len=8"),
)


@pytest.mark.skipif(shutil.which(compiler()) is None, reason=f"needs {compiler()}")
def test_products_and_short_attention_are_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, list[Update]] = {"false": [], "update": []}
    codes = []

    def as_it_is(graph: Any, *_: Any) -> Callable[..., Any]:
        codes.append(graph.code)
        run: Callable[..., Any] = graph.forward
        return run

    monkeypatch.setattr("trainer.compiled.graphs.compiled", as_it_is)
    monkeypatch.setattr("trainer.compiled.graphs.products_of", products_of)  # see `graphs`
    monkeypatch.setattr("trainer.compiled.passes.SHORT", SHORT)
    passes._graph.cache_clear()
    with reproducible(0, 1):
        for way, updates in made.items():
            executor(resolved([*SMALL, f"compile={way}"])).run(0, 1, updates.append)
    passes._graph.cache_clear()
    [code] = codes
    assert "pipegap.product" in code
    assert not any(theirs in code for theirs in ("aten.mm", "aten.bmm", "scaled_dot_product"))
    [plain], [compiled] = made.values()
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-6)
    assert compiled.grad_norm == pytest.approx(plain.grad_norm, rel=5e-6)


def test_one_process_compiles_and_later_ones_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    lock = FileLock(tmp_path / "pipegap-graph-a.lock", timeout=0, is_singleton=False)
    with _compiling_alone("a"), _compiling_alone("b"), pytest.raises(Timeout):
        lock.acquire()
    with lock, _compiling_alone("a"):
        pass


def test_a_graph_that_failed_is_not_taken_for_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with pytest.raises(ZeroDivisionError), _compiling_alone("a"):
        raise ZeroDivisionError
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
