"""Optimizers get every parameter once, by its module, and equal their library oracles."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import toy
from test_delayed_update import ADAMW, MUON, SGD
from test_model_llama import SMALL
from torch import nn
from torch.optim import AdamW, Muon

from trainer.optimizers import kinds

MAKERS = {"adamw": ADAMW, "sgd": SGD, "muon": MUON}


def model() -> nn.Module:
    module = SMALL.stage(0, SMALL.split(1, 8))
    SMALL.initialise(module, 0)
    return module


def named(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    kind = kinds(module)
    return [(kind[name], p) for name, p in module.named_parameters()]


def test_kinds_follow_the_module_not_the_shape() -> None:
    found = kinds(model())
    assert {name for name, kind in found.items() if kind == "embedding"} == {
        "model.embed_tokens.weight"
    }
    assert {name for name, kind in found.items() if kind == "vector"} == {
        name for name in found if name.endswith("norm.weight")
    }
    assert sum(kind == "matrix" for kind in found.values()) == 7 * 4


@pytest.mark.parametrize("name", MAKERS)
def test_groups_are_a_partition_and_vectors_do_not_decay(name: str) -> None:
    module = model()
    optimizer = MAKERS[name](named(module))
    members = [p for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, members)) == sorted(map(id, module.parameters()))
    for group in optimizer.param_groups:
        is_vector = {p.ndim == 1 for p in group["params"]}
        assert len(is_vector) == 1
        assert (group["weight_decay"] == 0) == is_vector.pop()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ["matrix", "vector"])
def test_a_stage_may_lack_a_kind(name: str, kind: str) -> None:
    parameter = nn.Parameter(torch.ones(4, 4) if kind == "matrix" else torch.ones(4))
    optimizer = MAKERS[name]([(kind, parameter)])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not torch.equal(parameter, torch.ones_like(parameter))


@pytest.mark.parametrize("scaling", ["original", "match_rms_adamw"])
def test_muon_equals_torch(scaling: str) -> None:
    """One matrix of a shape at a time: a batch of them sums in another order (bf16)."""
    torch.manual_seed(0)
    shapes = [(24, 24), (12, 40), (40, 16)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    mine = partial(MUON.func, **{**MUON.keywords, "scaling": scaling})(
        [("matrix", p) for p in ours]
    )
    oracle = Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn=scaling)
    for step in range(10):
        torch.manual_seed(step)
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        mine.step()
        oracle.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


def test_the_other_half_of_muon_is_adamw() -> None:
    ours, theirs = (nn.Parameter(torch.ones(5, 3, dtype=torch.float64)) for _ in range(2))
    mine = MUON([("embedding", ours)])
    oracle = AdamW([theirs], lr=0.02, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(10):
        ours.grad = toy.batch(step)[:5, :3].double()
        theirs.grad = ours.grad.clone()
        mine.step()
        oracle.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
