"""What graphs multiply by."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.smallest import DENSE, MOE, trainer
from trainer.base.compiler import compiler
from trainer.base.resources import reproducible
from trainer.compiled import passes
from trainer.compiled.graphs import products_of
from trainer.executors.gradients import Update

SHORT = passes.SHORT


@pytest.mark.skipif(shutil.which(compiler()) is None, reason=f"needs {compiler()}")
@pytest.mark.parametrize(
    ("model", "dtype", "made_by", "not_by"),
    [
        (DENSE, "float32", "pipegap.product", ("aten.mm", "aten.bmm", "scaled_dot_product")),
        (DENSE, "bfloat16", "aten.mm", ("pipegap.product", "scaled_dot_product")),
        (MOE, "float32", "pipegap.grouped", ("aten.mm", "aten._grouped_mm")),
        (MOE, "bfloat16", "pipegap.grouped", ("aten._grouped_mm",)),
    ],
)
def test_who_makes_products_and_short_attention(
    model: tuple[str, ...],
    dtype: str,
    made_by: str,
    not_by: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours is faster in fp32, torch's in bf16, for which processors have instructions."""
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
            words = (f"compile={way}", f"dtype={dtype}")
            trainer(*model, *words).run(0, 1, updates.append)
    passes._graph.cache_clear()
    [code] = codes
    assert made_by in code
    assert not any(other in code for other in not_by)
    [plain], [compiled] = made.values()
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-6)
    assert compiled.grad_norm == pytest.approx(plain.grad_norm, rel=5e-6)
