"""Every optimizer of conf/optimizer/ equals its published equations over ten updates."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.optimizers.averaging import evaluated
from pipegap.trainer.optimizers.orthogonal import POLAR_EXPRESS
from tests.oracles import matrix_optimizers
from tests.oracles import matrix_optimizers as of_matrices
from tests.oracles import optimizers as references
from tests.oracles.matrix_optimizers import kl_soap as equations
from tests.support.choices import OPTIMIZERS, optimizer_maker

T = 10
WEIGHTS = [("matrix", shape) for shape in references.MATRICES] + [
    ("embedding", (7, 8)),
    ("vector", (8,)),
]
EVERY = {reference.__name__: reference for reference in references.OF_EVERY_WEIGHT}
MATRICES = {
    reference.__name__: reference
    for reference in (*of_matrices.OF_MATRICES, *matrix_optimizers.OF_MATRICES_OF_HYPERBALL)
}
TOLERANCES = {
    "adamuon": 1e-8,  # 7e-9: eps beside the norm, which the paper divides by alone
    "basis_rotation": 1e-8,  # 2e-9: rounding in the null space of the first g gᵀ, over eps
    "dion": 1e-6,  # 3e-7: eps beside the norm of a basis' column
    "kron": 1e-7,  # 2e-8: the library solves triangular systems in fp32
    "mars": 1e-4,  # 1e-5: eps before the bias correction, not after (conf/optimizer/mars.yaml)
    "nadamw": 1e-5,  # 1e-6: torch keeps the product of its momenta in fp32
    "normuon": 1e-8,  # 7e-10: eps beside the norm
    "soap": 1e-6,  # 2e-7: the library's QR is in fp32
}
"""Largest error relative to the whole displacement, with what was measured; else `ROUNDING`."""
ROUNDING = 1e-12

REFINEMENTS = ("equilibrate_rows", "renormalise", "second_moment", "cautious_decay")
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in OPTIMIZERS]
CASES += [
    ("sgd", {"nesterov": True, "weight_decay": 0.1}),
    ("sgdw", {"nesterov": True}),
    ("nadamw", {"momentum": 0.99, "momentum_decay": 1e9}),
    ("ademamix", {"slow_warmup": 4}),
    ("muon", {"scaling": "original", "nesterov": False}),
    ("normuon", {"scaling": "preserve_norm", "nesterov": False}),
    ("adamuon", {"nesterov": False, "variance_decay": 0.9}),
    ("soap", {"precondition_every": 3}),
    ("kl_soap", {"precondition_every": 3, "variance_decay": 0.8}),
    ("basis_rotation", {"precondition_every": 3}),
    ("shampoo", {"precondition_every": 1, "auxiliary_lr": None}),
    ("dion", {"rank_fraction": 1.0}),
    ("dion2", {"fraction": 1.0}),
    ("dion3", {"fraction": 0.5}),
    ("muonh", {"nesterov": False, "orthogonalisation": "newton_schulz", "newton_schulz_steps": 3}),
    ("muonh", {"orthogonalisation": "polar_express", "weight_decay": 0.1}),
    ("muon", {"orthogonalisation": "polar_express", "cautious_decay": True}),
    ("muon", {"orthogonalisation": "convergent", "newton_schulz_steps": 12}),
    ("soap_muon", {"precondition_every": 1, "nesterov": False}),
    ("muown", {"nesterov": False, "weight_decay": 0.1}),
    ("nanochat", dict.fromkeys(REFINEMENTS, False)),
    *[("nanochat", {**dict.fromkeys(REFINEMENTS, False), key: True}) for key in REFINEMENTS],
]
LONG = ("adamh", "dion2", "dion3", "muonh", "muown", "nanochat", "normuonh")
"""Optimizers that are compared over fifty updates; KL-SOAP has a test of its own.

By hand their matrices were compared over fifty updates with their authors' code, without its casts:
MuonH, AdamH and NorMuonH of modded-nanogpt at f411b3d (records/track_3_optimization/results/
20260430_*) and nanochat at 92d63d4. They differed by at most 4e-15 of the displacement in fp64, and
by 1.0e-6 of the weights in fp32. So were, in fp64, SOAP-Muon with modded-nanogpt's
20260609_soap_f1_auxb2_clean, without its control of norms (1.3e-15; bases of 1, 3 and 10 updates),
and Muown with kcc-lion/muown at 3bd0c05 (2.1e-14; with and without decay and look-ahead).
"""


def reference(name: str, kind: str) -> references.Reference:
    """The equations of a kind of weight; a YAML without them fails here."""
    if kind == "vector" and name == "scion":
        return _adamw
    equations = EVERY | {"scion": of_matrices.scion}
    equations["schedule_free_adamw"] = references.schedule_free_adamw
    equations |= MATRICES if kind == "matrix" else dict.fromkeys(MATRICES, _adamw)
    return equations[name]


def _adamw(w: Tensor, batches: references.Batches, o: SimpleNamespace, place: int) -> Tensor:
    return references.auxiliary(w, batches, o, o.variance_decay)


@pytest.fixture
def double_newton_schulz(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 rounds away 5 to 20 % of a small matrix's update: the equations are compared in fp64."""
    from pytorch_optimizer.optimizer import scion
    from pytorch_optimizer.optimizer.muon import base
    from pytorch_optimizer.optimizer.utils import matrix

    exact = partial(matrix.zero_power_via_newton_schulz_5, dtype=torch.float64)
    for module in (scion, base, matrix):
        monkeypatch.setattr(module, "zero_power_via_newton_schulz_5", exact)


def problem(updates: int = T) -> tuple[list[Tensor], list[tuple[list[Tensor], float]]]:
    """Weights, and gradients with a factor of the learning rate for each update."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, dtype=torch.float64, generator=generator)
    weights = [draw(shape) for _, shape in WEIGHTS]
    drawn = [[0.1 * draw(shape) for _, shape in WEIGHTS] for _ in range(updates)]
    return weights, [(gradients, (t + 1) / updates) for t, gradients in enumerate(drawn)]


def trained(
    name: str, changes: dict[str, Any], updates: int = T, dtype: torch.dtype = torch.float64
) -> tuple[list[nn.Parameter], Any]:
    start, batches = problem(updates)
    ours = [nn.Parameter(weight.to(dtype, copy=True)) for weight in start]
    kinds = [kind for kind, _ in WEIGHTS]
    optimizer = optimizer_maker(name, **changes)(list(zip(kinds, ours, strict=True)))
    peaks = [group["lr"] for group in optimizer.param_groups]
    for gradients, factor in batches:
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        for weight, gradient in zip(ours, gradients, strict=True):
            weight.grad = gradient.to(dtype, copy=True)
        optimizer.step()
    return ours, optimizer


def errors(
    name: str, changes: dict[str, Any], updates: int = T, dtype: torch.dtype = torch.float64
) -> dict[str, float]:
    """Weight → how far it is from its equations in fp64, as a share of its displacement.

    In fp32 as a share of the weight, which is what fp32 rounds.
    """
    ours, _ = trained(name, changes, updates, dtype)
    start, batches = problem(updates)
    found = {}
    for i, (kind, _) in enumerate(WEIGHTS):
        options = SimpleNamespace(**optimizer_maker(name, **changes).keywords)
        if kind == "vector":
            options.weight_decay = 0.0
        mine = [(gradients[i], factor) for gradients, factor in batches]
        place = i if kind == "matrix" else -1
        theirs = reference(name, kind)(start[i], mine, options, place)
        unit = theirs - start[i] if dtype == torch.float64 else theirs
        error = (ours[i].detach() - theirs).norm() / unit.norm()
        found[f"{kind} {i}"] = float(error)
    return found


@pytest.mark.usefixtures("double_newton_schulz")
@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_it_equals_its_equations(name: str, changes: dict[str, Any]) -> None:
    torch.manual_seed(3)
    found = errors(name, changes)
    assert max(found.values()) <= TOLERANCES.get(name, ROUNDING), found


IN_FP64 = [(name, torch.float64, 1e-12) for name in (*LONG, "soap_muon")]
"""In fp32 the first eigenvectors of SOAP-Muon's null spaces are others."""


@pytest.mark.parametrize(
    ("name", "dtype", "bound"), [*IN_FP64, *((name, torch.float32, 1e-6) for name in LONG)], ids=str
)
def test_it_still_does_after_fifty_updates(name: str, dtype: torch.dtype, bound: float) -> None:
    found = errors(name, {}, 50, dtype)
    assert max(found.values()) <= bound, found


@pytest.mark.parametrize("scaling", ["original", "match_rms_adamw"])
def test_muon_equals_torch(scaling: str) -> None:
    """In bf16, one matrix of a shape at a time: a batch of them sums in another order."""
    torch.manual_seed(0)
    shapes = [(24, 24), (12, 40), (40, 16)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    mine = optimizer_maker("muon", lr=0.02, scaling=scaling)([("matrix", p) for p in ours])
    oracle = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn=scaling)
    for _ in range(T):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        mine.step()
        oracle.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("double_newton_schulz")
def test_schedule_free_is_evaluated_at_its_average() -> None:
    """And no other optimizer elsewhere than at the weights; asking changes nothing."""
    ours, optimizer = trained("schedule_free_adamw", {})
    y = [weight.detach().clone() for weight in ours]
    start, batches = problem()
    options = SimpleNamespace(**optimizer_maker("schedule_free_adamw").keywords)
    for i, average in enumerate(evaluated(optimizer, ours)[:-1]):
        mine = [(gradients[i], factor) for gradients, factor in batches]
        _, x = references.schedule_free(start[i], mine, options)
        torch.testing.assert_close(average, x, rtol=1e-12, atol=1e-12)
        assert not torch.equal(average, ours[i])
    assert all(map(torch.equal, ours, y))
    for name in set(OPTIMIZERS) - {"schedule_free_adamw"}:
        ours, optimizer = trained(name, {})
        assert all(a is b for a, b in zip(evaluated(optimizer, ours), ours, strict=True))


@pytest.mark.parametrize("scale", [0.1, 1e-3])
@pytest.mark.parametrize(
    ("dtype", "shape", "bound"),
    [
        (torch.float64, (8, 8), 1e-12),
        (torch.float64, (12, 20), 1e-12),
        # 1.3e-6: rounding of the first eigenvectors. Those of a null space would be others.
        (torch.float32, (8, 8), 1e-5),
    ],
)
def test_kl_soap_equals_its_equations(
    dtype: torch.dtype, shape: tuple[int, int], bound: float, scale: float
) -> None:
    """Over fifty updates, also where its eigenvalues are clamped; relative to the displacement in
    fp64, and to the weight in fp32, which rounds that."""
    generator = torch.Generator().manual_seed(0)
    start, *drawn = torch.randn(51, *shape, dtype=torch.float64, generator=generator)
    make = optimizer_maker("kl_soap", variance_decay=0.8)
    weight = nn.Parameter(start.to(dtype, copy=True))
    optimizer = make([("matrix", weight)])
    for gradient in drawn:
        weight.grad = (scale * gradient).to(dtype)
        optimizer.step()
    batches = [(scale * gradient, 1.0) for gradient in drawn]
    expected = equations(start, batches, SimpleNamespace(**make.keywords), 0)
    unit = expected - start if dtype == torch.float64 else expected
    assert (weight.detach() - expected).norm() / unit.norm() <= bound
    smallest = max(10, shape[0]) ** -2
    values = optimizer.state[weight]["row_values"]
    assert torch.isclose(values, torch.full_like(values, smallest)).any() == (scale < 0.1)


CUSHION, SAFETY = 0.02, 1.02


def test_polar_express_is_minimax() -> None:
    """By alternation (Chebyshev): an odd quintic whose error takes its largest size at four points
    of an interval with changing sign is closer to a constant there than any other.

    The constant is such that the smallest and the largest singular value end as far from 1.
    """
    low, high = 1e-3, 1.0
    for step, tabled in enumerate(POLAR_EXPRESS):
        safety = 1.0 if step == len(POLAR_EXPRESS) - 1 else SAFETY
        a, b, c = (factor * safety ** (2 * i + 1) for i, factor in enumerate(tabled))
        turns = np.sort(np.sqrt(np.roots([5 * c, 3 * b, a]).real))
        begin = max(low, CUSHION * high)
        assert begin < turns[0] < turns[1] < high
        x = np.array([begin, *turns, high])
        least, most, least_too, most_too = a * x + b * x**3 + c * x**5
        assert least_too == pytest.approx(least, rel=1e-10)
        assert most_too == pytest.approx(most, rel=1e-10)
        assert most > least
        assert a * low + b * low**3 + c * low**5 + most_too == pytest.approx(2, rel=1e-10)
        low = sum(factor * low ** (2 * i + 1) for i, factor in enumerate(tabled))
        high = 2 - low


def test_more_steps_than_polynomials_are_refused() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    for name in ("muon", "nanochat"):
        made = optimizer_maker(name, orthogonalisation="polar_express", newton_schulz_steps=6)
        with pytest.raises(BadInput, match=r"newton_schulz_steps=6: must be at most 5"):
            made([("matrix", weight)])
