"""The sharpness is that of a quadratic whose answer is known, of the run that a trial would be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis.__main__ import main
from tests.support import every_optimizer, small
from tests.support.refusals import Refused
from tests.support.trials import rows
from trainer.base.errors import BadInput
from trainer.models.loss import cross_entropy
from trainer.parts import build_emulated, build_parts
from trainer.sharpness import UPDATES_BEFORE_ONE, hessian_product, inverse_root, measured, sharpness
from trainer.trial import run_trial

COVERED = [address.rpartition(".")[2] for address in UPDATES_BEFORE_ONE]
LR = 1e-3
ANY_BATCH = [torch.zeros(1, 2)]


class Quadratic(nn.Module):
    """Half of wᵀ A w, where w are both weights in a row."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix
        self.square = nn.Parameter(torch.zeros(3, 3))
        self.vector = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        w = torch.cat([self.square.flatten(), self.vector])
        return w @ self.matrix @ w / 2


def node(name: str, **changes: Any) -> dict[str, Any]:
    made = every_optimizer.maker(name, lr=LR, weight_decay=0.0, **changes)
    return {"_target_": every_optimizer.address(name), **made.keywords}


def stepped(name: str, weights: list[nn.Parameter], gradients: list[list[Tensor]]) -> Any:
    """Settings without momentum, the optimizer after these gradients, and its last update."""
    still = {"momentum": 1e-12, "difference_decay": 0.0, "slow_share": 0.0, "correction": 0.0}
    of = node(name, **still, auxiliary_momentum=0.0, precondition_every=10**6)
    kinds = ["matrix" if weight.ndim == 2 else "vector" for weight in weights]
    settings = {key: value for key, value in of.items() if key != "_target_"}
    optimizer = every_optimizer.maker(name, **settings)([*zip(kinds, weights, strict=True)])
    update = []
    for each in gradients:
        before = [weight.detach().clone() for weight in weights]
        for weight, gradient in zip(weights, each, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
        update = [one - weight.detach() for one, weight in zip(before, weights, strict=True)]
    return of, optimizer, update


def some_gradients(num: int) -> list[list[Tensor]]:
    """Small ones, which MARS does not clip."""
    draw = torch.Generator().manual_seed(3)
    shapes = ((3, 3), (4,))
    return [[0.1 * torch.randn(s, generator=draw) for s in shapes] for _ in range(num)]


@pytest.mark.parametrize("name", COVERED)
def test_twice_the_inverse_root_is_what_the_optimizer_does_to_a_gradient(name: str) -> None:
    """Without momentum u = lr P⁻¹ g, with the P that holds g's own square."""
    weights = [nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(4))]
    gradients = some_gradients(6)
    of, optimizer, update = stepped(name, weights, gradients)
    half = inverse_root(of, optimizer, weights, len(gradients))
    for mine, theirs in zip(half(half(gradients[-1])), update, strict=True):
        torch.testing.assert_close(LR * mine, theirs, rtol=2e-4, atol=1e-8)


@pytest.mark.parametrize("name", ["adamw", "soap"])
def test_the_sharpness_of_a_quadratic_is_the_largest_eigenvalue(name: str) -> None:
    """Of P⁻¹ A, by numpy; A has negative eigenvalues that are larger in absolute value."""
    draw = torch.randn(13, 13, generator=torch.Generator().manual_seed(1))
    matrix = draw + draw.T - 5 * torch.eye(13)
    module = Quadratic(matrix)
    weights = [module.square, module.vector]
    of, optimizer, _ = stepped(name, weights, some_gradients(6))
    half = inverse_root(of, optimizer, weights, 6)
    named = dict(module.named_parameters())
    product = hessian_product(module, named, lambda output, _: output, ANY_BATCH)
    largest = sharpness(product, half, [weight.shape for weight in weights], seed=0)
    columns = [half([unit[:9].reshape(3, 3), unit[9:]]) for unit in torch.eye(13)]
    root = torch.stack([torch.cat([part.flatten() for part in column]) for column in columns])
    eigenvalues = np.linalg.eigvals((root @ root @ matrix).double().numpy()).real
    assert largest == pytest.approx(eigenvalues.max(), rel=1e-3)
    assert eigenvalues.max() < -eigenvalues.min()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return small.config(tmp_path_factory.mktemp("sharpness"))


def test_the_product_is_the_change_of_the_gradient(config: dict[str, Any]) -> None:
    """Of the model: central differences in fp64, over two batches."""
    parts = build_parts(config, 12)
    [stage] = build_emulated(config, parts, torch.device("cpu")).stages
    module = stage._module.double()
    weights = {
        name: weight.detach().double()
        for name, weight in zip(stage.versions.names, stage.versions.master, strict=True)
    }
    batches = [parts.batches[t] for t in range(2)]
    draw = torch.Generator().manual_seed(0)
    along = [torch.randn(w.shape, generator=draw, dtype=w.dtype) for w in weights.values()]

    def gradient(step: float) -> list[Tensor]:
        moved = {
            name: (w + step * by).requires_grad_(True)
            for (name, w), by in zip(weights.items(), along, strict=True)
        }
        losses = [
            cross_entropy(torch.func.functional_call(module, moved, (b[:, :-1],)), b[:, 1:])
            for b in batches
        ]
        return [*torch.autograd.grad(torch.stack(losses).mean(), [*moved.values()])]

    expected = [
        (one - other) / 2e-5 for one, other in zip(gradient(1e-5), gradient(-1e-5), strict=True)
    ]
    products = hessian_product(module, weights, cross_entropy, batches)(along)
    scale = max(of.abs().max() for of in expected)
    for mine, theirs in zip(products, expected, strict=True):
        assert (mine - theirs).abs().max() < 1e-5 * scale


def test_it_is_measured_on_the_very_run_of_the_trial(config: dict[str, Any]) -> None:
    points = [*measured(config, every=5, num_tokens=64)]
    result = run_trial(config)
    trained = rows(Path(config["results"]) / "trials" / result["trial_id"])
    assert [point.num_updates for point in points] == [5, 10, 12]
    at = [trained[point.num_updates - 1] for point in points]
    assert [(point.train_loss, point.lr) for point in points] == [
        (r["train_loss"], r["lr"]) for r in at
    ]
    assert all(point.k == point.lr * point.largest > 0 for point in points)


def test_the_clip_counts_as_a_smaller_curvature(config: dict[str, Any]) -> None:
    """Clipped to a hundredth, gradients give AdamW the same updates and a hundredth of P."""
    loose, tight = (
        next(measured({**config, "clip_norm": norm}, every=4, num_tokens=64))
        for norm in (0.1, 0.001)
    )
    assert tight.k == pytest.approx(loose.k, rel=0.01)


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(BadInput, match="optimizer=muon: must divide by the root"):
        inverse_root(node("muon"), torch.optim.SGD([nn.Parameter(torch.ones(1))]), [], 1)


def test_the_command_says_where_the_run_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w for w in small.overrides(tmp_path) if not w.startswith("results=")]
    assert main(["sharpness", *words, "every=6", "tokens=64", "format=json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [row["num_updates"] for row in points] == [6, 12]
    assert all(row["of_delayed"] == row["k"] / row["delayed"] for row in points)
    assert points[0]["delayed"] == pytest.approx(1.0, rel=1e-4)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus"}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("pipeline=pipedream_2bw", "cannot be chosen"),
        ("correction.coefficient=1", "cannot be chosen"),
        ("every=0", "every=0: must be a whole number"),
        ("delay=1.5", "delay=1.5: must be a whole number"),
        ("optimizer=lion", "optimizer=lion: must divide"),
        ("num_updtes=3", "num_updtes"),
    ],
)
def test_a_bad_word_is_refused_in_one_line(word: str, says: str, refused: Refused) -> None:
    assert says in refused(lambda: main(["sharpness", word]))
