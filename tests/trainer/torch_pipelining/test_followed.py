"""What a user does to the stage's module is there at the next batch, as without a schedule."""

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, parametrizations, prune, vector_to_parameters
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining.schedule import TAKES_TARGET
from tests.support.delayed import Joined
from tests.support.gangs import Send, sent
from tests.support.torch_naive import (
    BATCHES,
    MICROBATCHES,
    RATE,
    ROWS,
    WIDTH,
    Block,
    Change,
    assert_equal,
    batch_of_torch_naive,
    loss,
    naive,
    stages_of,
)

pytestmark = pytest.mark.usefixtures("one_rank")

CHANGED_BEFORE = 3
CPU = torch.device("cpu")


class Odd(nn.Module):
    """Modules that keep more than parameters, or their parameters elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.block.dropped.p = 0.0
        self.recurrent = nn.LSTM(WIDTH, WIDTH, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(WIDTH, dtype=torch.float64)
        self.normed = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH, dtype=torch.float64))
        self.spectral = parametrizations.spectral_norm(nn.Linear(WIDTH, 3, dtype=torch.float64))
        self.tied = nn.Linear(3, WIDTH, dtype=torch.float64)
        self.again = self.tied

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        x = self.norm(checkpoint(self.block, x, use_reentrant=False))
        x = x + self.recurrent(x[:, None])[0][:, 0]
        return self.tied(self.spectral(self.normed(x))) + self.again(x[:, :3])


def trained(module: nn.Module, changes: dict[int, Change], drains: bool, **options: Any) -> None:
    """Trains the module on all batches, by a schedule of one stage."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    options = {"loss_fn": loss, "update": optimizer.step, **options}
    schedule = Schedule2BW(PipelineStage(module, 0, 1, CPU), MICROBATCHES, **options)
    for t in range(BATCHES):
        if drains:
            with schedule.drained():
                pass
        if t in changes:
            changes[t](module)
        x, y = batch_of_torch_naive(t)
        schedule.step(x, target=y)
    with schedule.drained():
        pass


def _halve_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 0.5


def _halve_gradient(module: nn.Module, gradients: Any) -> Any:
    return (gradients[0] * 0.5,)


def _by_attribute(module: nn.Module, args: Any) -> None:
    module.gain = module.up.weight.gain


def _replaced(module: nn.Module) -> None:
    module.up = nn.Sequential(module.up)


def _moved(module: nn.Module) -> None:
    """To other memory, with other values."""
    vector_to_parameters(1.1 * parameters_to_vector(module.parameters()), module.parameters())


@torch.no_grad()
def _written(module: nn.Module) -> None:
    for weight in module.parameters():
        weight.mul_(1.1)


def _pruned(module: nn.Module) -> None:
    mask = torch.arange(WIDTH**2).view(WIDTH, WIDTH) % 3
    prune.custom_from_mask(module.up, "weight", mask)


CHANGES: dict[str, Change] = {
    "mode": lambda module: module.train(),
    "frozen": lambda module: module.up.requires_grad_(False),
    "buffer": lambda module: setattr(module, "shift", torch.ones(WIDTH, dtype=torch.float64)),
    "attribute": lambda module: setattr(module, "gain", 0.5),
    "mode of a part": lambda module: module.dropped.train(),
    "hook": lambda module: module.register_forward_hook(_halve_output),
    "hook of a part": lambda module: module.up.register_forward_hook(_halve_output),
    "hook of the backward": lambda module: module.down.register_full_backward_pre_hook(
        _halve_gradient
    ),
    "hook of a weight": lambda module: module.up.weight.register_hook(lambda g: g * 0.5),
    "attribute of a weight": lambda module: (
        setattr(module.up.weight, "gain", 0.25),
        module.register_forward_pre_hook(_by_attribute),
    ),
    "part replaced": _replaced,
    "pruned": _pruned,
}


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_batches(name: str, drains: bool) -> None:
    """Without a drain too: the batch in flight began with the module as it was."""
    changes = {CHANGED_BEFORE: CHANGES[name]}
    [module], [right], [unchanged] = (stages_of(Block) for _ in range(3))
    for each in (module, right, unchanged):  # as those of a hub are when they are loaded
        each.eval()
    trained(module, changes, drains)
    naive([right], changes)
    assert_equal([module], [right])
    if name != "part replaced":
        naive([unchanged], {})
        with pytest.raises(AssertionError):
            assert_equal([right], [unchanged])


def test_weights_that_get_other_memory() -> None:
    """In a drain; the batch after the next one computes on them."""
    [module], [right] = stages_of(Block), stages_of(Block)
    trained(module, {CHANGED_BEFORE: _moved}, drains=True)
    naive([right], {CHANGED_BEFORE: _moved})
    assert_equal([module], [right])


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("joined_before", [0, CHANGED_BEFORE])
def test_weights_that_are_parts_of_a_vector(joined_before: int, each: bool, drains: bool) -> None:
    """Where their optimizer steps the vector."""
    [module], [right] = stages_of(Block), stages_of(Block)
    optimizers: list[Optimizer] = [torch.optim.SGD(module.parameters(), lr=RATE)]

    def join(module: nn.Module) -> None:
        optimizers.append(Joined([*module.parameters()], RATE, each=each))

    def update() -> None:
        optimizers[-1].step()

    trained(module, {joined_before: join}, drains, update=update)
    naive([right], {})
    assert_equal([module], [right])


def test_modules_with_more_than_parameters() -> None:
    """Running statistics are those of the microbatches alone."""
    [module], [right] = stages_of(Odd), stages_of(Odd)
    trained(module, {}, drains=False)
    naive([right], {})
    assert_equal([module], [right])
    assert module.norm.num_batches_tracked == BATCHES * MICROBATCHES


@pytest.mark.parametrize("drains", [False, True])
def test_gradients_of_the_user_are_none_of_a_batch(drains: bool) -> None:
    """As of a diagnosis, which calls the module in between."""
    [module], [right] = stages_of(Block), stages_of(Block)
    x, _ = batch_of_torch_naive(0)
    trained(module, dict.fromkeys((0, 3), lambda of: of(x).sum().backward()), drains)
    naive([right], {})
    assert_equal([module], [right])


def test_a_loss_with_the_weights_of_the_module() -> None:
    [module], [right] = stages_of(Block), stages_of(Block)

    def with_decay(of: nn.Module, output: Tensor, target: Tensor) -> Tensor:
        return loss(output, target) + sum(weight.square().sum() for weight in of.parameters())

    trained(module, {}, drains=False, loss_fn=partial(with_decay, module))
    naive([right], {}, loss_of=partial(with_decay, right))
    assert_equal([module], [right])


def test_a_loss_may_ask_the_stage_for_its_module() -> None:
    [module] = stages_of(Block)
    stage = PipelineStage(module, 0, 1, CPU)

    def with_gain(output: Tensor, target: Tensor) -> Tensor:
        return loss(output, target) * stage.submod.gain

    schedule = Schedule2BW(stage, MICROBATCHES, with_gain, update=print)
    x, y = batch_of_torch_naive(0)
    losses: list[Tensor] = []
    schedule.step(x, target=y, losses=losses)
    assert len(losses) == MICROBATCHES


def test_every_call_of_a_hook_is_one_of_a_microbatch() -> None:
    """Not those of torch for shapes; and an evaluation, which repeats these, is counted as one."""
    [module] = stages_of(Block)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    stage = PipelineStage(module, 0, 1, CPU)
    schedule = Schedule2BW(stage, MICROBATCHES, loss, update=optimizer.step)
    calls: list[object] = []
    module.register_forward_hook(lambda *_: calls.append(module.up.weight))
    x, y = batch_of_torch_naive(0)
    for _ in range(3):
        schedule.step(x, target=y)
        with schedule.drained(), torch.no_grad():
            schedule.eval(x, target=y)
    assert len(calls) == 6 * MICROBATCHES
    own = [weight is module.up.weight for weight in calls]
    assert own == 3 * ([False] * MICROBATCHES + [True] * MICROBATCHES)


REFUSED: dict[str, tuple[Change, str]] = {
    "more weights": (
        lambda module: setattr(module, "more", nn.Linear(1, 1)),
        "stage=more.bias; more.weight: must have the weights that it had",
    ),
    "another weight": (
        lambda module: setattr(module.up, "weight", nn.Parameter(module.up.weight.detach())),
        "stage=up.weight: must have the weights that it had",
    ),
    "dtype": (lambda module: module.float(), "stage=up.weight: must keep its shape, dtype"),
    "a step in the backward": (
        lambda module: module.up.weight.register_post_accumulate_grad_hook(print),
        "OptimizersInBackward",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_is_refused(name: str) -> None:
    change, says = REFUSED[name]
    [module] = stages_of(Block)
    with pytest.raises(BadInput, match=says) as caught:
        trained(module, {CHANGED_BEFORE: change}, drains=False)
    assert "\n" not in str(caught.value)


def test_weights_are_those_of_the_first_batch() -> None:
    """What is added or frozen after the schedule is made, and before it, trains alike."""
    [module], [right] = stages_of(Block), stages_of(Block)

    def adapt(of: nn.Module) -> None:
        of.requires_grad_(False)
        of.down = nn.Sequential(of.down, nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64))
        nn.init.eye_(of.down[1].weight)

    adapt(right)
    naive([right], {})
    stage = PipelineStage(module, 0, 1, CPU)
    schedule = Schedule2BW(stage, MICROBATCHES, loss)
    adapt(module)
    schedule.update = torch.optim.SGD(module.down[1].parameters(), lr=RATE).step
    for t in range(BATCHES):
        x, y = batch_of_torch_naive(t)
        schedule.step(x, target=y)
    with schedule.drained():
        assert_equal([module], [right])


def test_a_weight_that_is_used_beside_its_module() -> None:
    class Hidden(Block):
        def __init__(self) -> None:
            super().__init__()
            self.held = [self.up.weight]

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ self.held[0]

    with pytest.raises(RuntimeError, match=r"up\.weight is used beside the parameters"):
        trained(Hidden(), {}, drains=False)


def test_a_weight_without_a_shape() -> None:
    module = nn.Sequential(nn.LazyLinear(WIDTH))
    with pytest.raises(BadInput, match=r"stage=0\.weight; 0\.bias: must have a shape"):
        trained(module, {}, drains=False, update=print)


class Twinned(Block):
    """With copies that its user made."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return self.norm(super().forward(x))


def _trained_with_twins(module: nn.Module, changes: dict[int, Change]) -> None:
    twins = [copy.deepcopy(module) for _ in range(2)]
    trained(module.eval(), changes, drains=False, twins=twins)


@pytest.mark.parametrize("name", ["mode", "mode of a part", "buffer", "attribute"])
def test_copies_that_the_user_made_follow(name: str) -> None:
    """They were copied in another mode, too."""
    [module], [right] = stages_of(Twinned), stages_of(Twinned)
    changes = {CHANGED_BEFORE: CHANGES[name], 5: CHANGES["mode"]}
    _trained_with_twins(module, changes)
    naive([right.eval()], changes)
    assert_equal([module], [right])


@pytest.mark.parametrize("is_joined", [False, True])
def test_weights_that_are_written_in_a_drain(is_joined: bool) -> None:
    """The batch after the next one computes on them, wherever they lie."""
    [module], [right] = stages_of(Block), stages_of(Block)
    weights = [*module.parameters()]
    optimizer = Joined(weights, RATE, each=False) if is_joined else torch.optim.SGD(weights, RATE)
    trained(module, {CHANGED_BEFORE: _written}, drains=True, update=optimizer.step)
    naive([right], {CHANGED_BEFORE: _written})
    assert_equal([module], [right])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("frozen", "twins=up.weight: must require a gradient where"),
        ("hook", "twins=Twinned: must have the hooks"),
        ("hook of a part", "twins=Linear: must have the hooks"),
        ("hook of a weight", "twins=up.weight: must have the hooks"),
        ("part replaced", "twins=2: must be two modules with the parts"),
    ],
)
def test_copies_that_cannot_follow(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        _trained_with_twins(*stages_of(Twinned), {CHANGED_BEFORE: CHANGES[name]})


def test_copies_without_the_communication_of_ddp() -> None:
    """As with gradients in fewer bits."""
    module, *twins = (DistributedDataParallel(*stages_of(Block)) for _ in range(3))
    module.register_comm_hook(None, allreduce_hook)
    with pytest.raises(BadInput, match="twins=DistributedDataParallel: must have the hooks"):
        trained(module, {}, drains=False, twins=twins)


# Stages that differ: without gradients or weights, of other dtypes, sparse, or one that fails.

CLIP_NORM, TIMEOUT = 0.05, 45
ROWS_OF_TWO_SIZES = 6


class Sparse(nn.Module):
    """Rows by the sign of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, WIDTH, sparse=True, dtype=torch.float64)
        self.spread = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return self.spread(self.rows((x[:, 0] > 0).long()) + x)


class Narrow(nn.Module):
    """In fp32 between a stage of fp64 and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block().float()

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return self.inner(x.float()).double()


class Frozen(Block):
    """Whose dropout does nothing, as that of `Live`."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped.p = 0.0
        self.requires_grad_(False)


class Live(Frozen):
    """Which trains."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(True)


CASES: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "frozen first": (Frozen, Live),
    "frozen last": (Live, Frozen),
    "no weights first": (nn.Identity, Live),
    "no weights last": (Live, nn.Identity),
    "other dtypes": (Live, Narrow),
    "sparse": (Sparse, Live),
    "first fails once": (Live, Live),
    "last fails once": (Live, Live),
}
if not TAKES_TARGET:  # torch 2.11 asks every stage but the first for gradients
    del CASES["no weights last"]
FAILING = {"first fails once": 0, "last fails once": 1}
"""The rank whose first forward of the third batch does."""


class FailsOnce:
    """A hook of a module that raises once."""

    def __init__(self) -> None:
        self._calls = iter(range(BATCHES * MICROBATCHES + 1))

    def __call__(self, *_: object) -> None:
        if next(self._calls) == 2 * MICROBATCHES:
            raise torch.OutOfMemoryError


def train(rank: int, module: nn.Module) -> None:
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    step: Callable[[], Any] = torch.optim.SGD(weights, lr=RATE).step if weights else lambda: None

    def update() -> None:
        schedule.clip_grad_norm_(CLIP_NORM)
        step()

    stage = PipelineStage(module, rank, 2, CPU)
    schedule = Schedule2BW(stage, MICROBATCHES, loss, update=update)
    for t in range(BATCHES):
        x, y = batch_of_torch_naive(t)
        for _ in range(2):
            with suppress(RuntimeError):  # torch makes one of what a forward raises
                schedule.step(x) if rank == 0 else schedule.step(target=y)
                break
    with schedule.drained():
        schedule.state_dict()
    groups = [schedule._late.sums._group, *schedule._passes.neighbours._groups.values()]
    limits = {group._get_backend(CPU).options._timeout.total_seconds() for group in groups}
    assert limits == {TIMEOUT}, limits


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    """Sends the trained stage of each case."""
    torch.set_num_threads(1)
    rank = heartbeat.rank
    with joined(store, rank, 2, 1, CPU, heartbeat, TIMEOUT):
        for name, makes in CASES.items():
            module = stages_of(*makes)[rank]
            if FAILING.get(name) == rank:
                module.register_forward_pre_hook(FailsOnce())
            train(rank, module)
            send(module.state_dict())


def test_odd_stages_train_by_the_equation() -> None:
    for (name, makes), *trained in zip(CASES.items(), *sent(as_rank, 2), strict=True):
        right, made = stages_of(*makes), stages_of(*makes)
        naive(right, {}, clip_norm=CLIP_NORM)
        for stage, state in zip(made, trained, strict=True):
            stage.load_state_dict(state)
        assert_equal(made, right, atol=1e-6 if name == "other dtypes" else 1e-12)


def as_rank_of_uneven(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    """Sends what ends the second batch, whose last microbatches are shorter than the others."""
    rank, said = heartbeat.rank, ""
    with joined(store, rank, 2, 1, CPU, heartbeat, TIMEOUT):
        module = stages_of(Frozen, Live)[rank]
        stage = PipelineStage(module, rank, 2, CPU)
        schedule = Schedule2BW(stage, MICROBATCHES, loss, update=module.zero_grad)
        try:
            for t, rows in enumerate((ROWS, ROWS_OF_TWO_SIZES)):
                x, y = (of[:rows] for of in batch_of_torch_naive(t))
                schedule.step(x) if rank == 0 else schedule.step(target=y)
        except RuntimeError as error:
            said = str(error)
    send(said)


def test_microbatches_of_two_sizes() -> None:
    """The first one fits into the buffers; no gradient comes back that would not fit either."""
    [[said], _] = sent(as_rank_of_uneven, 2)
    assert said.startswith("the stage returns [(1, 4, torch.float64)], and returned [(2, 4,")
    assert "\n" not in said
