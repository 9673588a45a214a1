"""The function of docs/torchtitan.md, on a container as torchtitan's: a list stepped as one."""

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from tests.support.markdown import ROOT, blocks
from trainer.delayed import DelayedOptimizer

DOCUMENT = ROOT / "docs" / "torchtitan.md"


class Container:
    """Of one optimizer per part."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        self.optimizers: list[Any] = [
            torch.optim.AdamW(part.parameters(), lr=0.1) for part in parts
        ]


def trained(wrap: Any) -> tuple[list[torch.Tensor], float]:
    """Weights after six steps, and the loss at the newest weights."""
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)]
    container = Container(parts)
    schedules = [LambdaLR(each, lambda t: 1 / (t + 1)) for each in container.optimizers]
    newest = wrap(container)
    x = torch.randn(8, 4)
    for _ in range(6):
        for optimizer in container.optimizers:
            optimizer.zero_grad()
        parts[1](parts[0](x).tanh()).square().mean().backward()
        for each in (*container.optimizers, *schedules):
            each.step()
    with newest(container), torch.no_grad():
        loss = parts[1](parts[0](x).tanh()).square().mean().item()
        return [weight.clone() for part in parts for weight in part.parameters()], loss


def test_each_part_is_delayed() -> None:
    assert len(DOCUMENT.read_text().splitlines()) <= 60
    [block] = [block for block in blocks(DOCUMENT) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(block.text, names)

    def by_the_page(container: Container) -> Any:
        names["delay_optimizers"](container)
        return names["newest"]

    def by_hand(container: Container) -> Any:
        container.optimizers = [DelayedOptimizer(each, 1, 1.0) for each in container.optimizers]
        return names["newest"]

    def bare(container: Container) -> Any:
        names["delay_optimizers"](container, 0)
        return names["newest"]

    (weights, loss), (expected, _), (_, undelayed) = map(trained, (by_the_page, by_hand, bare))
    assert all(map(torch.equal, weights, expected))
    assert loss != undelayed
