"""What mixtures of experts and the hybrid cost beside the dense model, on one core.

    python -m bench.mixtures [rounds=15]

Prints two tables of this process's CPU time, medians of rounds in which all take turns: whole
updates of the tiny models on the same batches, and the optimizer's step alone, gradients given.
"""

import sys
from dataclasses import replace

import torch
from torch import nn

from bench.steps import ours
from bench.timing import Call, cpu_seconds_of, medians
from trainer.base.build import build
from trainer.base.resources import reproducible
from trainer.config.compose import compose_node
from trainer.models.llama import Llama
from trainer.models.recipe import Recipe
from trainer.optimizers.routing import EXPERTS, Kind, Parameters
from trainer.parts import optimizer_of

DENSE, MIXTURE = "tiny", "tiny_moe"
AIMS = {DENSE: "", "micro_moe": "", MIXTURE: "2.2", "tiny_hybrid": "2.0"}
"""Model → how many times the dense update its own may take."""
OPTIMIZERS = ("adamw", "muon")
STACKS_AIM = "1.5"
"""How many times the dense step that of stacks may take."""


def recipe_of(model: str) -> Recipe:
    """The recipe of a choice in conf/model."""
    recipe: Recipe = build(compose_node([f"model={model}"])["model"])
    return recipe


def dense_as_large(num_parameters: int) -> Llama:
    """The dense model with a feed-forward part so wide that it has as many parameters.

    Up to half of what one more unit of width adds.
    """
    recipe: Llama = build(compose_node([f"model={DENSE}"])["model"])
    wider = replace(recipe, intermediate_size=recipe.intermediate_size + 1)
    by_unit = wider.num_parameters - recipe.num_parameters
    more = round((num_parameters - recipe.num_parameters) / by_unit)
    return replace(recipe, intermediate_size=recipe.intermediate_size + more)


def weights_of(recipe: Recipe) -> Parameters:
    """All weights with their kinds, initialised, with gradients of full rank."""
    with torch.device("meta"):
        module = recipe.stage(0, recipe.split(1, 1))
    module.to_empty(device="cpu")
    recipe.initialise(module, seed=0)
    generator, kinds = torch.Generator().manual_seed(0), recipe.kinds(module)
    for weight in module.parameters():
        weight.grad = 1e-3 * torch.randn(weight.shape, generator=generator)
    return [(kinds[name], weight) for name, weight in module.named_parameters()]


def apart(weights: Parameters) -> Parameters:
    """The weights with each matrix of a stack as a weight of its own."""
    return [own for kind, weight in weights for own in _matrices(kind, weight)]


def _matrices(kind: Kind, weight: nn.Parameter) -> Parameters:
    if kind != EXPERTS or weight.grad is None:
        return [(kind, weight)]
    matrices: list[tuple[Kind, nn.Parameter]] = []
    for values, gradient in zip(weight.detach().clone(), weight.grad, strict=True):
        matrix = nn.Parameter(values)
        matrix.grad = gradient
        matrices.append(("matrix", matrix))
    return matrices


def updates(rounds: int) -> str:
    """The table of whole updates, with AdamW."""
    contenders = {model: ours([f"model={model}"]) for model in AIMS}
    seconds = medians(contenders, rounds, cpu_seconds_of)
    lines = [f"| | ms per update | / `{DENSE}` | aim, at most |", "| --- | --- | --- | --- |"]
    for model, aim in AIMS.items():
        own, ratio = seconds[model], seconds[model] / seconds[DENSE]
        lines.append(f"| `{model}` | {own * 1e3:.1f} | {ratio:.2f} | {aim} |")
    return "\n".join(lines)


def steps(rounds: int) -> str:
    """The table of the optimizer's step on the weights of the mixture."""
    mixture = recipe_of(MIXTURE)
    ways = {
        "dense": lambda: weights_of(dense_as_large(mixture.num_parameters)),
        "apart": lambda: apart(weights_of(mixture)),
        "stacks": lambda: weights_of(mixture),
    }
    contenders: dict[str, Call] = {}
    for name in OPTIMIZERS:
        make = optimizer_of(compose_node([f"optimizer={name}"])["optimizer"])
        contenders |= {f"{name}, {way}": make(weights()).step for way, weights in ways.items()}
    seconds = medians(contenders, rounds, cpu_seconds_of)
    return "\n".join(
        [
            "| | dense of equal size, ms | a weight per matrix, ms | stacks, ms "
            "| stacks / dense | aim, at most | stacks / a weight per matrix |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(_row(name, *(seconds[f"{name}, {way}"] for way in ways)) for name in OPTIMIZERS),
        ]
    )


def _row(name: str, dense: float, apart: float, stacks: float) -> str:
    times = " | ".join(f"{seconds * 1e3:.1f}" for seconds in (dense, apart, stacks))
    return f"| {name} | {times} | {stacks / dense:.2f} | {STACKS_AIM} | {stacks / apart:.2f} |"


def main() -> None:
    """Prints the tables."""
    given = dict(word.split("=") for word in sys.argv[1:])
    rounds = int(given.get("rounds", "15"))
    with reproducible(seed=0, num_threads=1):
        print(updates(rounds), steps(rounds), sep="\n\n")


if __name__ == "__main__":
    main()
