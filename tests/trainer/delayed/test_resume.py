"""A loop resumes from its checkpoints to the bit; a state that does not fit is refused."""

import copy
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.optim import SGD, AdamW, Optimizer

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.corrections.compensation import WeightPrediction
from pipegap.trainer.delayed import DelayedOptimizer
from tests.support import delayed
from tests.support.delayed import ADAMW, Loop, T, are_equal


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize(("keep", "delay"), [("weights", 1), ("weights", 3), ("gradients", 2)])
def test_resumes_to_the_bit(keep: str, delay: int, at: int, tmp_path: Path) -> None:
    options = {"keep": keep, "delay": delay, "num_updates": T}
    whole = Loop(ADAMW, **options)
    losses = whole.run(range(T), clip_norm=0.5)
    first = Loop(ADAMW, **options)
    assert first.run(range(at), clip_norm=0.5) == losses[:at]
    first.delayed.eval()  # a checkpoint that is saved after an evaluation
    saved = {"model": first.module, "optimizer": first.delayed, "lr": first.scheduler}
    torch.save({k: v.state_dict() for k, v in saved.items()}, tmp_path / "checkpoint.pt")
    first.delayed.train()
    assert first.run(range(at, T), clip_norm=0.5) == losses[at:], "saving changes nothing"
    second = Loop(ADAMW, **options)
    state = torch.load(tmp_path / "checkpoint.pt")
    second.module.load_state_dict(state["model"])
    second.delayed.load_state_dict(state["optimizer"])
    second.scheduler.load_state_dict(state["lr"])
    assert second.run(range(at, T), clip_norm=0.5) == losses[at:]
    assert all(map(torch.equal, second.weights(), whole.weights()))
    assert second.delayed.largest_delay == delay


def test_weight_prediction_resumes_too() -> None:
    options = {"correction": partial(WeightPrediction, horizon=1.0), "num_updates": T}
    whole, first, second = (Loop(ADAMW, **options) for _ in range(3))
    losses = whole.run(range(T))
    first.run(range(5))
    second.delayed.load_state_dict(copy.deepcopy(first.delayed.state_dict()))
    second.scheduler.load_state_dict(first.scheduler.state_dict())
    assert second.run(range(5, T)) == losses[5:]


def test_the_delay_begins_where_a_bare_optimizer_ended() -> None:
    """Either wrapped when it has a state, or given that state."""
    bare = Loop(ADAMW, delay=0)
    bare.run(range(4))
    inner, state = bare.delayed.optimizer, copy.deepcopy(bare.delayed.optimizer.state_dict())
    begun = Loop(ADAMW, synchronous_start=4)
    losses = begun.run(range(T))
    given = Loop(ADAMW)
    given.module.load_state_dict(bare.module.state_dict())
    given.delayed.load_state_dict(state)
    given.scheduler.load_state_dict(bare.scheduler.state_dict())
    wrapped = Loop(ADAMW)
    wrapped.module, wrapped.delayed = bare.module, DelayedOptimizer(inner)
    wrapped.scheduler = bare.scheduler
    assert given.run(range(4, 6)) == wrapped.run(range(4, 6)) == losses[4:6]


@pytest.mark.parametrize("shown", [True, False])
def test_weights_loaded_after_the_optimizer_must_be_those_to_read(shown: bool) -> None:
    """As torch.distributed.checkpoint does. Those to evaluate would be read as the old ones."""
    first, second = Loop(ADAMW), Loop(ADAMW)
    first.run(range(3))
    second.delayed.load_state_dict(first.delayed.state_dict())
    if shown:
        first.delayed.eval()
    second.module.load_state_dict(first.module.state_dict())
    if shown:
        with pytest.raises(RuntimeError, match="optimizer state after its weights"):
            second.delayed.step()
    else:
        second.scheduler.load_state_dict(first.scheduler.state_dict())
        assert second.run(range(3, 6)) == first.run(range(3, 6))


def test_the_state_of_another_delay_is_refused() -> None:
    loop = Loop(ADAMW, delay=2)
    loop.run(range(2))
    with pytest.raises(BadInput, match="delay=1: must be 2, with which the state was saved"):
        Loop(ADAMW).delayed.load_state_dict(loop.delayed.state_dict())
    with pytest.raises(ValueError, match="groups of"):
        DelayedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))])).load_state_dict(
            loop.delayed.state_dict()
        )


@pytest.mark.parametrize("lost", ["delay_update_1", "exp_avg"])
def test_a_state_that_lost_something_is_refused(lost: str) -> None:
    """torch.distributed.checkpoint leaves out what the optimizer does not have yet."""
    loop = Loop(ADAMW)
    loop.run(range(3))
    state = copy.deepcopy(loop.delayed.state_dict())
    for tensors in state["state"].values():
        del tensors[lost]
    with pytest.raises(ValueError, match=f"lacks {lost}, which was saved"):
        Loop(ADAMW).delayed.load_state_dict(state)


def test_a_state_whose_groups_lost_the_delay_is_refused() -> None:
    """Else it would be taken for a bare optimizer's, and the delay would begin anew in silence."""
    loop = Loop(ADAMW)
    loop.run(range(3))
    state = copy.deepcopy(loop.delayed.state_dict())
    for group in state["param_groups"]:
        del group["delayed"]
    with pytest.raises(ValueError, match="the state lost what its groups have as 'delayed'"):
        Loop(ADAMW).delayed.load_state_dict(state)


class Whole(Optimizer):
    """Plain descent whose rate falls by a count that lies at itself, in a state of its own form."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__(weights, {})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.count += 1
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad, alpha=0.1 / self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: Any) -> None:
        self.count = state_dict["count"]


def of_library(name: str, **options: Any) -> Callable[[list[nn.Parameter]], Optimizer]:
    def make(weights: list[nn.Parameter]) -> Optimizer:
        import pytorch_optimizer

        given = [w for w in weights if w.numel()]
        if name in ("Lookahead", "Magma"):  # which have another optimizer step
            given = AdamW(given, lr=0.05)  # type: ignore[assignment]
        made: Optimizer = getattr(pytorch_optimizer, name)(given, **options)
        return made

    return make


ELSEWHERE = {
    "at itself": Whole,
    "under a name": of_library("MADGRAD", lr=0.01),
    "under names": of_library("SPAM", lr=0.01),
    "beside both": of_library("StableSPAM", lr=0.01),
    "in groups": of_library("Ranger21", num_iterations=20, lr=0.01),
    "in a state within one": of_library("Lookahead", k=2),
    "by address": of_library("Magma"),
}
"""Where an optimizer keeps what belongs to no single weight → what makes it."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keep", ["weights", "gradients"])
@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_state_of_no_single_weight_is_restored(place: str, keep: str) -> None:
    make = ELSEWHERE[place]

    def resumes(optimizer: Any, weights: list[nn.Parameter], t: int) -> None:
        if t == 3:  # by a file, into an optimizer that is new
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            other = delayed.weights()
            again = DelayedOptimizer(make(other), keep=keep)  # type: ignore[arg-type]
            again.load_state_dict(torch.load(file, weights_only=True))
            mine = [w.detach().clone() for w in weights]
            assert keep == "gradients" or are_equal(other, mine)
            vars(optimizer).update(vars(again))
            for i, weight in enumerate(other):
                weight.data = weights[i].data
            weights[:] = other

    ours = delayed.delayed(make, 1, 1.0, resumes, keep=keep)
    assert are_equal(ours, delayed.delayed(make, 1, 1.0, keep=keep))
    assert are_equal(ours, delayed.naive(make, 1, 1.0))


@pytest.mark.parametrize("delay", [0, 1])
def test_the_state_of_a_bare_optimizer_of_its_own_form_is_taken(delay: int) -> None:
    weights = delayed.weights()
    bare = Whole(weights)
    bare.count = 7
    optimizer = DelayedOptimizer(Whole(weights), delay)
    optimizer.load_state_dict(bare.state_dict())
    assert optimizer.optimizer.count == 7  # type: ignore[attr-defined]


def test_a_state_of_the_first_releases_is_taken() -> None:
    """Each waiting gradient had all options that schedulers set, whether they had changed or not;
    the state had no key beside torch's own."""
    weights = [nn.Parameter(torch.ones(2))]
    gradient = torch.tensor([1.0, 2.0])
    optimizer = DelayedOptimizer(SGD(weights, lr=0.5, momentum=0.5), keep="gradients")
    settings = {name: getattr(optimizer, name) for name in ("delay", "pipeline", "correction")}
    state = {"momentum_buffer": gradient.clone(), "delay_waiting_0": gradient.clone()}
    state["delay_update_1"] = gradient / 4
    delayed = {**settings, "keep": "gradients", "num_taken": 2, "largest_delay": 0}
    options = [{"lr": 0.25, "momentum": 0.5, "weight_decay": 0}]
    delayed |= {"names": sorted(state), "delays": [1], "options": options}
    [group] = copy.deepcopy(optimizer.optimizer.state_dict()["param_groups"])
    optimizer.load_state_dict(
        {"state": {0: state}, "param_groups": [{**group, "delayed": delayed}]}
    )
    weights[0].grad = torch.zeros(2)
    optimizer.step()  # u = 0.25 · 1.5 g at the rate that came with it, and λ (g / 4 − u) is added
    assert torch.equal(weights[0], 1 - 0.375 * gradient + (0.25 - 0.375) * gradient)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_state_that_is_asked_for_takes_no_step() -> None:
    """torch.distributed.checkpoint steps an optimizer whose state is empty, as plain SGD's is."""
    module = nn.Linear(2, 2)
    optimizer = DelayedOptimizer(SGD(module.parameters(), lr=0.1))
    optimizer.step()
    get_optimizer_state_dict(module, optimizer)
    assert optimizer.num_taken == 1
    optimizer.state[module.weight]["mine"] = 1
    assert optimizer.optimizer.state[module.weight] == {"mine": 1}


class FewBits(Tensor):
    """A tensor of parts that has few operations and no copy, as low-bit states of Adam."""

    codes: Tensor

    @staticmethod
    def __new__(cls: type["FewBits"], codes: Tensor) -> "FewBits":
        wrapper: FewBits = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, codes.shape, dtype=torch.float64
        )
        wrapper.codes = codes
        return wrapper

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, *_: object) -> "FewBits":
        return cls(parts["codes"])

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            return args[0]
        raise NotImplementedError(f"FewBits has no {function}")


class Uncopied(Tensor):
    """A tensor without parts that nobody can copy."""

    def __deepcopy__(self, memory: Any) -> "Uncopied":
        raise NotImplementedError("Uncopied has no copy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.Tensor.as_subclass, (self.as_subclass(Tensor), Uncopied)


class WithMomenta(Optimizer):
    """Momentum whose state holds `kind`, a class of tensors."""

    def __init__(self, weights: list[nn.Parameter], kind: Callable[[Tensor], Tensor]) -> None:
        super().__init__(weights, {})
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            momentum = getattr(of := self.state[weight].get("m"), "codes", of)
            held = torch.zeros_like(weight) if momentum is None else momentum.as_subclass(Tensor)
            held = held.mul(0.5).add(weight.grad)
            self.state[weight]["m"] = self.kind(held)
            weight.sub_(held, alpha=0.1)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize(
    "kind", [FewBits, lambda tensor: tensor.as_subclass(Uncopied)], ids=["parts", "whole"]
)
def test_a_state_of_tensors_that_cannot_be_copied_is_loaded(
    kind: Callable[[Tensor], Tensor], delay: int
) -> None:
    """The one state serves two optimizers that go on alike, where its parts can be copied."""

    def trained(weights: list[nn.Parameter], optimizer: Any, batches: range) -> list[Tensor]:
        for t in batches:
            delayed.give(weights, weights, t)
            optimizer.step()
        with optimizer.newest():
            return [weight.detach().clone() for weight in weights]

    weights = delayed.weights()
    first = DelayedOptimizer(WithMomenta(weights, kind), delay)
    trained(weights, first, range(3))
    state = {**first.state_dict()}
    saved = [weight.detach().clone() for weight in weights]
    right = None
    for _ in range(2):
        others = [nn.Parameter(weight.clone()) for weight in saved]
        second = DelayedOptimizer(WithMomenta(others, kind), delay)
        second.load_state_dict(state)
        ours = trained(others, second, range(3, T))
        right = right or ours
        assert are_equal(ours, right)
    assert are_equal(trained(weights, first, range(3, T)), right)  # type: ignore[arg-type]


class Sharding(SGD):
    """Takes from a state what belongs to other ranks, as ZeroRedundancyOptimizer does."""

    def load_state_dict(self, state_dict: Any) -> None:
        for id_ in list(state_dict["state"])[1:]:
            state_dict["state"][id_] = None
        super().load_state_dict(state_dict)


@pytest.mark.parametrize("delay", [0, 1])
def test_an_optimizer_may_empty_the_state_that_it_loads(delay: int) -> None:
    weights, others = delayed.weights(), delayed.weights()
    first = DelayedOptimizer(SGD(weights, momentum=0.9), delay)
    delayed.give(weights, weights, 0)
    first.step()
    state = first.state_dict()
    second = DelayedOptimizer(Sharding(others, momentum=0.9), delay)
    second.load_state_dict(state)
    assert all(state["state"].values()), "the caller's own stays as it is"
    ours, theirs = (optimizer.state for optimizer in (second, first))
    assert torch.equal(ours[others[0]]["momentum_buffer"], theirs[weights[0]]["momentum_buffer"])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("frozen_from", [0, 2, 5], ids=["always", "settled", "just now"])
def test_a_frozen_weight_goes_through_distributed_checkpoints(
    frozen_from: int, delay: int, tmp_path: Path
) -> None:
    """Which drop its state: nothing is lost unless its versions differ yet, and then it is said."""

    def make() -> tuple[nn.Module, DelayedOptimizer]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
        return module, DelayedOptimizer(SGD(module.parameters(), lr=0.1), delay)

    def trained(pair: Any, batches: range) -> list[float]:
        module, optimizer = pair
        losses = []
        for t in batches:
            module[0].requires_grad_(t < frozen_from)
            optimizer.zero_grad()
            x = torch.randn(4, 2, generator=torch.Generator().manual_seed(t))
            loss = (module(x) - x.flip(1)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    first, second = make(), make()
    trained(first, range(6))
    folder = tmp_path / "checkpoint"
    dcp.save(dict(zip("mo", get_state_dict(*first), strict=True)), checkpoint_id=folder)
    second[0][0].requires_grad_(False)
    states = dict(zip("mo", get_state_dict(*second), strict=True))
    dcp.load(states, checkpoint_id=folder)
    load = partial(set_state_dict, *second)
    if delay and frozen_from == 5:
        with pytest.raises(ValueError, match="lacks the delay of a frozen weight"):
            load(model_state_dict=states["m"], optim_state_dict=states["o"])
        return
    load(model_state_dict=states["m"], optim_state_dict=states["o"])
    assert trained(second, range(6, 9)) == trained(first, range(6, 9))
