"""Products of small matrices, against exact and wider ones."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from itertools import product as every
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from torch import Tensor

from trainer.base.compiler import compiler
from trainer.base.errors import BadInput
from trainer.compiled import graphs
from trainer.compiled.graphs import operators, products_of

pytestmark = pytest.mark.skipif(
    shutil.which(compiler()) is None, reason=f"needs a C++ compiler: {compiler()} is not installed"
)
SIZES = (1, 5, 6, 16, 31, 64, 65, 130)
"""Whole tiles, and what is left of rows, vectors and columns."""
LONG = (255, 256, 257, 600)
"""Sums within a panel and over several."""


def layouts(stack: tuple[int, ...], rows: int, columns: int) -> Iterator[Tensor]:
    """Small whole numbers: in order, transposed, and as every other column of a wider matrix."""
    drawn = torch.Generator().manual_seed(rows * 1000 + columns)

    def whole(*size: int) -> Tensor:
        return torch.randint(-8, 9, size, generator=drawn).float()

    yield whole(*stack, rows, columns)
    yield whole(*stack, columns, rows).mT
    yield whole(*stack, rows, 2 * columns)[..., ::2]


def assert_exact(stack: tuple[int, ...], m: int, k: int, n: int) -> None:
    for a, b in every(layouts(stack, m, k), layouts(stack, k, n)):
        made = operators().product(a, b)
        assert made.is_contiguous()
        assert torch.equal(made, (a.long() @ b.long()).float()), (stack, m, k, n)


@pytest.mark.parametrize("stack", [(), (3,)])
def test_whole_numbers_are_multiplied_exactly(stack: tuple[int, ...]) -> None:
    for m, k, n in every(SIZES, (1, 20), SIZES):
        assert_exact(stack, m, k, n)
    for k in LONG:
        assert_exact(stack, 7, k, 70)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_nothing_to_multiply(m: int, k: int, n: int) -> None:
    assert_exact((), m, k, n)


@pytest.mark.parametrize("ends", [(5, 5, 9, 80), (0, 80), (80,), (0, 0)])
def test_groups_of_rows_are_multiplied_exactly(ends: tuple[int, ...]) -> None:
    """Rows by the matrix of their group, and sums over the rows of a group, which may be empty."""
    rows, groups = ends[-1], [*pairwise((0, *ends))]
    bounds = torch.tensor(ends, dtype=torch.int32)
    for k, n in ((20, 70), (300, 5)):
        for a, b in every(layouts((), rows, k), layouts((len(ends),), k, n)):
            parts = [a[s:e].long() @ b[g].long() for g, (s, e) in enumerate(groups)]
            assert torch.equal(operators().grouped(a, b, bounds), torch.cat(parts).float())
        for a, b in every(layouts((), k, rows), layouts((), rows, n)):
            parts = [a[:, s:e].long() @ b[s:e].long() for s, e in groups]
            assert torch.equal(operators().grouped(a, b, bounds), torch.stack(parts).float())


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((6, 4), (2, 5, 3), (2, 6)),
        ((6, 4), (2, 4, 3), (2, 4, 6)),
        ((6, 4), (2, 4, 3), (2, 7)),
        ((6, 4), (2, 4, 3), (4, 2)),
        ((6, 4), (2, 4, 3), (2, 5)),
        ((4, 6), (6, 3), (2, 5)),
        ((4, 6), (6, 3), (2, 7)),
        ((2, 6, 4), (2, 4, 3), (2, 6)),
    ],
)
def test_groups_that_do_not_fit_are_refused(
    a: tuple[int, ...], b: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    bounds = torch.tensor(ends, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="grouped"):
        operators().grouped(torch.zeros(a), torch.zeros(b), bounds)
    with pytest.raises(RuntimeError, match="grouped"):
        operators().grouped(torch.zeros(a), torch.zeros(b), bounds.long())


@pytest.mark.parametrize("k", [64, 2048])
def test_it_rounds_no_worse_than_torch(k: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(50, k), torch.randn(k, 70)
    exact = a.double() @ b.double()
    both = operators().product(a, b), a @ b
    error, of_torch = ((made - exact).square().mean().sqrt() for made in both)
    assert error < 2 * of_torch


def test_an_entry_depends_on_its_row_and_column_alone() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(50, 300), torch.randn(300, 70)
    product = operators().product
    made = product(a, b)
    assert torch.equal(product(a[17:18], b), made[17:18])
    assert torch.equal(product(a, b[:, 33:34].contiguous()), made[:, 33:34])


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (5, 6)), ((2, 3, 4), (3, 4, 5)), ((2, 3, 4), (4, 5)), ((3,), (3,))]
)
def test_sizes_that_do_not_fit_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="product"):
        operators().product(torch.zeros(a), torch.zeros(b))


def test_several_threads_take_torchs_products() -> None:
    """But for those by groups, which torch's compiler does not take in fp32."""
    aten = torch.ops.aten
    assert [*products_of(2)] == [aten._grouped_mm.default]
    assert [*products_of(1)] == [aten._grouped_mm.default, aten.mm.default, aten.bmm.default]


def test_a_library_is_built_once_and_never_seen_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def cut(command: list[str], **_: object) -> CompletedProcess[str]:
        built.append(Path(command[-1]))
        built[-1].write_text("a part")
        if len(built) == 1:
            raise KeyboardInterrupt
        return CompletedProcess(command, 0)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(graphs.subprocess, "run", cut)
    with pytest.raises(KeyboardInterrupt):
        graphs._built()
    assert not [*tmp_path.glob("*.so")]
    assert graphs._built() == graphs._built()
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
    assert len(built) == 2


def test_a_compiler_that_fails_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'unrecognized option -std=c++20' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(BadInput, match=r"^compile=update: needs a C\+\+20 compiler; .*option -std"):
        graphs._built()
    assert not [*(tmp_path / "cache").glob("*.so")]
