"""What an update and its state cost, for every optimizer, at the shape of SmolLM2-135M.

    python -m bench.optimizers [rounds=3] [optimizers=adamh,muonh]

An update is all that a stage does once the gradient is there, in fp32 on one thread. Without a
choice all optimizers are measured. New preconditioners are made matrix by matrix, and timed
separately on one of 30 layers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.timing import options
from trainer.base.build import build
from trainer.base.places import CONF
from trainer.base.resources import reproducible
from trainer.config.compose import compose
from trainer.parts import build_stages
from trainer.stages.stage import Stage

RARELY = {
    name: ["optimizer.precondition_every=1000"]
    for name in ("basis_rotation", "kl_soap", "shampoo", "soap")
}
"""Words that leave new preconditioners out; some of them make the first ones in any case."""


def make_stage(optimizer: str, words: Sequence[str]) -> Stage:
    """The whole 135M model as one stage, on a CPU in fp32."""
    choices = ("model=smollm2_135m", "data=fineweb_edu", f"optimizer={optimizer}", "pipeline=sync")
    config = compose([*choices, *words])
    model, schedule = build(config["model"]), build(config["pipeline"], 1000)
    device = torch.device("cpu")
    [stage] = build_stages(config, model, schedule, lambda t: 1.0, device, range(1))
    return stage


def updater(stage: Stage) -> Callable[[], float]:
    """A function that applies an update and returns its seconds; gradients have full rank."""
    generator = torch.Generator().manual_seed(0)
    gradients = [1e-3 * torch.randn(w.shape, generator=generator) for w in stage.versions.master]
    batches = iter(range(1000))

    def update() -> float:
        t, copies = next(batches), [gradient.clone() for gradient in gradients]
        stage._read[t] = [t] * len(gradients)
        start = time.perf_counter()
        stage.update(t, copies)
        return time.perf_counter() - start

    return update


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def row(name: str, words: list[str], rounds: int) -> str:
    """A row: time of the first update, median of later ones, bytes of state per parameter."""
    stage = make_stage(name, words)
    update = updater(stage)
    first = update()
    seconds = median(update() for _ in range(rounds))
    size = sum(t.numel() * t.element_size() for t in tensors(dict(stage.optimizer.state)))
    parameters = sum(weight.numel() for weight in stage.versions.master)
    title = " ".join([name, *(f"`{word}`" for word in words)])
    return f"| {title} | {first * 1e3:.0f} | {seconds * 1e3:.0f} | {size / parameters:.2f} |"


def main() -> None:
    """Prints each row as soon as it is known."""
    every = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))
    given = options(rounds=3, optimizers=",".join(every))
    names = given.optimizers.split(",")
    if unknown := {*names} - {*every}:
        raise SystemExit(f"optimizers={','.join(sorted(unknown))}: not in conf/optimizer")
    with reproducible(0, 1):
        print("| | first update, ms | later update, ms | state, bytes per parameter |")
        print("| --- | --- | --- | --- |")
        for name in names:
            print(row(name, RARELY.get(name, []), given.rounds), flush=True)
        for name, rarely in RARELY.items():
            if name not in names:
                continue
            often = [word.replace("=1000", "=1") for word in rarely]
            for words in (rarely, often):
                print(row(name, ["model.num_layers=1", *words], given.rounds), flush=True)


if __name__ == "__main__":
    main()
