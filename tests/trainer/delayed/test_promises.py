"""What torch promises of an optimizer, and what its own tests try of it, by torch's own list."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed import DelayedOptimizer
from tests.support import delayed
from tests.support.delayed import T_OF_NAIVE_LOOP, Joined, are_equal, gradients, weights

KEEP = ("weights", "gradients")
MOST = [name for name in delayed.CLASSES if name != "SparseAdam"]  # takes none dense
WRAPS: dict[str, Callable[[Optimizer], Optimizer]] = {
    "bare": lambda optimizer: optimizer,
    "0": partial(DelayedOptimizer, delay=0),
    "1": DelayedOptimizer,
    "1 gradients": partial(DelayedOptimizer, keep="gradients"),
}
"""What is put around an optimizer. With a delay the numbers are of a naive delayed loop."""


def steps(optimizer: Any, own: list[nn.Parameter], batches: range) -> None:
    for t in batches:
        optimizer.zero_grad()
        delayed.give(own, own, t)
        optimizer.step()


def newest(optimizer: Any, own: list[nn.Parameter]) -> list[Tensor]:
    if isinstance(optimizer, DelayedOptimizer):
        optimizer.finish()
    return [weight.detach().clone() for weight in own]


@pytest.mark.parametrize("name", MOST)
def test_every_optimizer_equals_a_naive_loop(name: str) -> None:
    for options, make in delayed.of(name).items():
        for delay, coefficient in ((0, 0.0), (1, 0.0), (1, 1.0)):
            right = delayed.naive(make, delay, coefficient)
            for keep in KEEP[: 1 + delay]:
                ours = delayed.delayed(make, delay, coefficient, keep=keep)
                assert are_equal(ours, right), (options, keep)


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, partial(SGD, lr=0.1)])
def test_sparse_gradients(make: Callable[..., Optimizer]) -> None:
    def of_tables(own: list[nn.Parameter]) -> Optimizer:
        for weight in own[:2]:
            weight.is_looked_up = True  # type: ignore[attr-defined]
        return make(own[:2])

    for delay in (0, 1):
        right = delayed.naive(of_tables, delay, 1.0)
        for keep in KEEP:
            assert are_equal(delayed.delayed(of_tables, delay, 1.0, keep=keep), right)


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What hooks of all optimizers and of one have seen, in order."""
    calls: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("every before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("every after")),
    ]
    yield calls
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("wrap", WRAPS)
def test_hooks_on_steps_run_once_for_each_update(wrap: str, seen: list[str]) -> None:
    own = weights()
    inner = AdamW(own)
    inner.register_step_pre_hook(lambda *_: seen.append("inner before"))
    optimizer = WRAPS[wrap](inner)
    given: list[object] = []
    optimizer.register_step_pre_hook(lambda it, *_: (given.append(it), seen.append("before"))[0])
    last = optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    steps(optimizer, own, range(3))
    newest(optimizer, own)
    assert seen == ["every before", "inner before", "before", "after", "every after"] * 3
    assert all(it is optimizer for it in given)
    last.remove()
    seen.clear()
    steps(optimizer, own, range(1))
    newest(optimizer, own)
    assert seen == ["every before", "inner before", "before", "every after"]


def halves(optimizer: Any, *_: object) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = weight.grad / 2


def clamps(optimizer: Any, *_: object) -> None:
    with torch.no_grad():
        for weight in optimizer.param_groups[0]["params"]:
            weight.clamp_(-0.5, 0.5)


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("where", ["inner", "outer"])
@pytest.mark.parametrize(
    ("when", "hook"), [("pre", halves), ("post", clamps)], ids=["halves", "clamps"]
)
def test_hooks_on_steps_act_as_on_the_bare_optimizer(
    when: str, hook: Callable[..., None], where: str, keep: str
) -> None:
    def hooked(own: list[nn.Parameter]) -> Optimizer:
        optimizer = AdamW(own, lr=0.05)
        getattr(optimizer, f"register_step_{when}_hook")(hook)
        return optimizer

    def attach(optimizer: Any, own: list[nn.Parameter], t: int) -> None:
        if t == 0:
            getattr(optimizer, f"register_step_{when}_hook")(hook)

    right = delayed.naive(hooked, 1, 1.0)
    assert not are_equal(right, delayed.naive(partial(AdamW, lr=0.05), 1, 1.0))
    make, does = (hooked, delayed.nothing)
    if where == "outer":
        make, does = partial(AdamW, lr=0.05), attach  # type: ignore[assignment]
    assert are_equal(delayed.delayed(make, 1, 1.0, does, keep=keep), right)


@pytest.mark.parametrize("wrap", WRAPS)
def test_hooks_on_states(wrap: str) -> None:
    """On the inner optimizer too; what a hook returns takes the place of the state."""
    own = weights()
    inner = AdamW(own)
    optimizer = WRAPS[wrap](inner)
    steps(optimizer, own, range(2))
    calls: list[str] = []
    both = {"outer": optimizer} if wrap == "bare" else {"outer": optimizer, "inner": inner}
    for name, each in both.items():
        each.register_state_dict_pre_hook(lambda *_, n=name: calls.append(f"{n} saves"))
        each.register_state_dict_post_hook(lambda *_, n=name: calls.append(f"{n} saved"))
        each.register_load_state_dict_pre_hook(lambda *_, n=name: calls.append(f"{n} loads"))
        each.register_load_state_dict_post_hook(lambda *_, n=name: calls.append(f"{n} loaded"))
    optimizer.register_state_dict_post_hook(lambda it, packed: {**packed, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda it, packed: {n: of for n, of in packed.items() if n != "more"}, prepend=True
    )
    packed = optimizer.state_dict()
    assert packed["more"] == 1
    optimizer.load_state_dict(packed)
    names = [*both] if wrap == "bare" else ["outer", "inner"]
    saves = [f"{n} saves" for n in names] + [f"{n} saved" for n in reversed(names)]
    loads = [f"{n} loads" for n in names] + [f"{n} loaded" for n in reversed(names)]
    assert calls == saves + loads


def by_pickle(it: Any) -> Any:
    return pickle.loads(pickle.dumps(it))


def by_state(it: tuple[Optimizer, list[nn.Parameter]], make: Any) -> Any:
    optimizer, own = it
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(own)
    again = make(other)
    again.load_state_dict(torch.load(file, weights_only=True))
    return again, other


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", MOST)
def test_copies_go_on_as_the_original(name: str, wrap: str) -> None:
    """Also of an optimizer with a scheduler, whose patches cannot be copied."""
    own, last = weights(), [*delayed.of(name).values()][-1]

    def make(of: list[nn.Parameter]) -> Optimizer:
        return WRAPS[wrap](last(of))

    optimizer = make(own)
    StepLR(optimizer, 100)
    steps(optimizer, own, range(3))
    pair = optimizer, own
    copies = [copy.deepcopy(pair), by_pickle(pair)]
    if wrap != "bare":  # torch casts what NAdam has in another dtype than its weights
        copies.append(by_state(pair, make))
    assert copies[0][0].__dict__.keys() == optimizer.__dict__.keys() - {"step"} or wrap == "bare"
    steps(*pair, range(3, T_OF_NAIVE_LOOP))
    right = newest(*pair)
    for each in copies:
        steps(*each, range(3, T_OF_NAIVE_LOOP))
        assert are_equal(newest(*each), right)


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_seen_is_the_wrapped_optimizers(wrap: str) -> None:
    own = weights()
    inner = AdamW(own, lr=0.5)
    optimizer = WRAPS[wrap](inner)
    steps(optimizer, own, range(3))
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    assert {*optimizer.state} == {*own}
    if wrap in ("bare", "0"):  # no tensor beside those of the optimizer
        assert {*optimizer.state[own[0]]} == {"step", "exp_avg", "exp_avg_sq"}
    assert str(optimizer).split("\n")[1:] == str(inner).split("\n")[1:]
    own[0].grad = torch.ones_like(own[0])
    optimizer.zero_grad(set_to_none=False)
    assert own[0].grad.sum() == 0
    optimizer.zero_grad()
    assert own[0].grad is None
    with pytest.raises(ValueError, match="some parameters appear in more than one"):
        optimizer.add_param_group({"params": [own[0]]})


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_closure_computes_the_gradients_once(wrap: str) -> None:
    own, other = weights(), weights()
    optimizer, plain = WRAPS[wrap](AdamW(own)), WRAPS[wrap](AdamW(other))
    for t in range(T_OF_NAIVE_LOOP):
        calls: list[int] = []

        def closure(t: int = t, calls: list[int] = calls) -> float:
            assert torch.is_grad_enabled()
            calls.append(t)
            delayed.give(own, own, t)
            return 0.5

        assert optimizer.step(closure) == 0.5  # type: ignore[func-returns-value,arg-type]
        assert calls == [t]
    steps(plain, other, range(T_OF_NAIVE_LOOP))
    assert are_equal(newest(optimizer, own), newest(plain, other))


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("of_inner", [False, True])
def test_a_scheduler_may_be_of_either_optimizer(of_inner: bool, keep: str) -> None:
    """And warns of nothing, though gradients may wait."""
    own = weights()
    optimizer = DelayedOptimizer(SGD(own, lr=0.1, momentum=0.9), keep=keep)  # type: ignore[arg-type]
    scheduler = StepLR(optimizer.optimizer if of_inner else optimizer, 1, gamma=0.5)
    for t in range(T_OF_NAIVE_LOOP):
        steps(optimizer, own, range(t, t + 1))
        scheduler.step()

    def halves_the_rate(it: Any, _: object, t: int) -> None:
        it.param_groups[0]["lr"] = 0.1 * 0.5**t

    right = delayed.naive(partial(SGD, lr=0.1, momentum=0.9), 1, 1.0, halves_the_rate)
    assert are_equal(newest(optimizer, own), right)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.bfloat16, torch.float32])
def test_weights_of_other_numbers(dtype: torch.dtype) -> None:
    """Beside those of float64, in one group."""

    def make(own: list[nn.Parameter]) -> Optimizer:
        own[0] = nn.Parameter(own[0].detach().to(dtype))
        return AdamW(own, lr=0.05)

    for keep in KEEP:
        ours = delayed.delayed(make, 1, 1.0, keep=keep)
        assert are_equal(ours, delayed.naive(make, 1, 1.0))
        assert ours[0].dtype == dtype


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("keep", KEEP)
def test_an_optimizer_that_steps_the_memory_beneath_the_weights(keep: str, each: bool) -> None:
    """Weights that are part of a vector stay there."""
    make = partial(Joined, lr=0.1, each=each)
    ours = delayed.delayed(make, 1, 1.0, keep=keep)
    assert are_equal(ours, delayed.naive(partial(SGD, lr=0.1), 1, 1.0))


class OfMasters(SGD):
    """Keeps fp32 masters of the weights, as apex's and Transformer Engine's FusedAdam do."""

    def __init__(self, own: list[nn.Parameter]) -> None:
        super().__init__(own, lr=0.1)
        self.masters = [[weight.detach().float() for weight in own]]

    def step(self, closure: Any = None) -> None:
        """Steps the masters, and rounds them to the weights."""
        for master, weight in zip(self.masters[0], self.param_groups[0]["params"], strict=True):
            weight.data.copy_(master.sub_(0.1 * weight.grad))


@pytest.mark.parametrize("keep", KEEP)
def test_error_feedback_is_refused_where_masters_are_stepped(keep: str) -> None:
    """It would be lost with the next step, which begins at them; a delay alone is right."""

    def make(own: list[nn.Parameter], kind: type[Optimizer] = OfMasters) -> Optimizer:
        own[:] = [nn.Parameter(weight.detach().bfloat16()) for weight in own]
        return kind(own)

    ours = delayed.delayed(make, 1, 0.0, keep=keep)
    assert are_equal(ours, delayed.naive(make, 1, 0.0))
    with pytest.raises(BadInput, match=r"error_feedback=1.0: must be 0 where an"):
        delayed.delayed(make, 1, 1.0, keep=keep)
    delayed.delayed(partial(make, kind=AdamW), 1, 1.0, keep=keep)


def test_gradients_stay_as_the_optimizer_leaves_them() -> None:
    """A loop may add to them, or read them after a step."""
    own = weights()
    optimizer = DelayedOptimizer(SGD(own, lr=0.1))
    steps(optimizer, own, range(2))
    assert are_equal([w.grad for w in own if w.grad is not None], gradients(own, 1)) is False
    held = [weight.grad for weight in own]
    optimizer.step()
    assert all(weight.grad is gradient for weight, gradient in zip(own, held, strict=True))


class Imitation:
    """Stands before an optimizer as an object of a subclass of its class, and has its attributes:
    reads them from it, as those of Fabric and of lightning do, or has copied them once."""

    def __init__(self, optimizer: Optimizer, *, copies: bool) -> None:
        self._before = optimizer
        if copies:
            vars(self).update(vars(optimizer))
        self.__class__ = type("Imitation", (Imitation, type(optimizer)), {})

    @property
    def optimizer(self) -> Optimizer:
        return self._before

    def step(self, closure: Any = None) -> Any:
        return self._before.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_before"], name)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("keep", KEEP)
def test_a_class_that_imitates_shows_the_newest_weights(keep: str, copies: bool) -> None:
    """And is refused a step while they are shown; what it counts is the optimizer's."""
    imitated, plain = weights(), weights()
    delayed = DelayedOptimizer(AdamW(imitated), keep=keep)  # type: ignore[arg-type]
    ours: Any = Imitation(delayed, copies=copies)
    reference = DelayedOptimizer(AdamW(plain), keep=keep)  # type: ignore[arg-type]
    for t in range(T_OF_NAIVE_LOOP):
        steps(ours, imitated, range(t, t + 1))
        steps(reference, plain, range(t, t + 1))
        with ours.newest(), reference.newest():
            assert are_equal(imitated, plain)
        ours.eval()
        with pytest.raises(RuntimeError, match=r"call train\(\) before step\(\)"):
            ours.step()
        ours.train()
        assert are_equal(imitated, plain)
    assert (ours.num_taken, ours.largest_delay) == (T_OF_NAIVE_LOOP, 1)
    assert ours.num_waiting == reference.num_waiting
    ours.finish()
    reference.finish()
    assert are_equal(imitated, plain)


@pytest.mark.parametrize("whole_loop", [False, True])
@pytest.mark.parametrize("keep", KEEP)
def test_torch_compile_loses_no_delay(keep: str, whole_loop: bool) -> None:
    """Of the step alone, and of a function that has the evaluation too."""
    trained = weights()
    optimizer = DelayedOptimizer(SGD(trained, lr=0.1), keep=keep)  # type: ignore[arg-type]

    def one_update() -> None:
        optimizer.step()
        with optimizer.newest():
            pass

    compiled = torch.compile(one_update if whole_loop else optimizer.step, backend="eager")
    for t in range(T_OF_NAIVE_LOOP):
        delayed.give(trained, trained, t)
        compiled()
    assert (optimizer.num_taken, optimizer.largest_delay) == (T_OF_NAIVE_LOOP, 1)
    right = delayed.naive(partial(SGD, lr=0.1), 1, 1.0)
    assert are_equal(newest(optimizer, trained), right)
