"""What examples/ trains is what its equations say."""

import math
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from examples.nanogpt.gpt import GPT, rotated
from examples.nanogpt.record import Matrices, Record, trust_at
from examples.nanogpt.train import (
    RESULTS,
    VOCABULARY,
    arguments,
    batch,
    gradients,
    loss_of,
    published,
)
from examples.nanogpt.train import train as train_nanogpt
from examples.overlap.all_reduce import RANKS, ROWS, WIDTH, train
from pipegap.analysis import load
from pipegap.trainer.data.bins import Bins
from pipegap.trainer.ranks.groups import Heartbeat
from tests.support.gangs import Send, sent

# examples/overlap/all_reduce.py: what it hides changes no loss, and is hidden.

UPDATES, LINK = 6, 0.3


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    dist.init_process_group("gloo", store=store, rank=heartbeat.rank, world_size=RANKS)
    for delay, link, at_once in ((0, LINK, False), (1, LINK, False), (1, 0.0, True)):
        send(tuple(train(delay, link, UPDATES, at_once=at_once)))
    dist.destroy_process_group()


def naive(delay: int) -> list[float]:
    """Both ranks' mean gradient at W(max(0, t − delay)), and Error Feedback by its equation:
    W(t + 1) = W(t) − u_t − (u_t − u_{t−1}) where the gradient is late."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    weights = [*model.parameters()]
    adamw = torch.optim.AdamW(weights, lr=0.002)
    versions, last, losses = [[w.detach().clone() for w in weights]], None, []

    def put(version: int) -> None:
        for weight, content in zip(weights, versions[version], strict=True):
            weight.data.copy_(content)

    for t in range(UPDATES):
        put(max(0, t - delay))
        total = torch.zeros(())
        for rank in range(RANKS):
            generator = torch.Generator().manual_seed(t * RANKS + rank)
            x = torch.randn(ROWS, WIDTH, generator=generator)
            total = total + mse_loss(model(x), x[:, :8].sin().sum(1, keepdim=True)) / RANKS
        adamw.zero_grad()
        total.backward()
        losses.append(total.item())
        put(t)
        adamw.step()
        update = [before - w.detach() for before, w in zip(versions[t], weights, strict=True)]
        if last is not None and delay:
            for weight, now, before in zip(weights, update, last, strict=True):
                weight.data.sub_(now - before)
        versions.append([w.detach().clone() for w in weights])
        last = update
    return losses


def test_a_late_step_hides_its_sum() -> None:
    """It is waited for at once by both blocking runs, and after the next backward by the other."""
    runs, others = sent(as_rank, RANKS, timeout=600)
    blocking, overlapped, late = runs
    assert overlapped[0] == late[0]
    assert [run[0] for run in others] == [run[0] for run in runs]
    assert blocking[0] == pytest.approx(naive(0), rel=1e-5)
    assert overlapped[0] == pytest.approx(naive(1), rel=1e-5)
    assert blocking[0][2:] != overlapped[0][2:]
    assert overlapped[2] < blocking[2]


# examples/nanogpt/train.py: small runs on a CPU, against the model and its equations.

LENGTH, NANOGPT_ROWS, NANOGPT_UPDATES = 16, 2, 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Shards of 400 tokens in modded-nanogpt's layout."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, 400
    for split in ("train", "val"):
        tokens = np.random.default_rng(0).integers(0, 50, 400).astype("<u2")
        path = tmp_path / f"fineweb_{split}_000000.bin"
        path.write_bytes(header.tobytes() + tokens.tobytes())
    return tmp_path


def words(data: Path, *more: str) -> Namespace:
    sizes = {
        "updates": NANOGPT_UPDATES,
        "rows": NANOGPT_ROWS,
        "length": LENGTH,
        "layers": 1,
        "width": 128,
    }
    flags = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    fixed = ["--sequences", "4", "--results", str(data / "results")]
    return arguments().parse_args([str(data), *flags, *fixed, *more])


@pytest.mark.parametrize("result", RESULTS)
def test_the_first_late_update_has_the_loss_of_the_first_weights(data: Path, result: int) -> None:
    """With a delay of 1 batches 0 and 1 both see the initial weights, whose head is 0."""
    own = ("--result", str(result))
    sync, late = train_nanogpt(words(data, *own)), train_nanogpt(words(data, *own, "--delay", "1"))
    uniform = pytest.approx(math.log(VOCABULARY))
    assert (sync[0], late[0], late[1]) == (uniform, uniform, uniform)
    assert sync[1] < sync[0]
    assert late[2] < late[1]
    assert {*load(data / "results")["final_val_loss"].notna()} == {True}


@pytest.mark.parametrize(
    ("result", "last"), [(36, ", published 3.27866"), (46, ", published 3.27833")]
)
def test_the_published_log_stands_beside_runs_of_its_sizes_alone(
    data: Path, result: int, last: str
) -> None:
    """That of 36 begins where every run does, at the entropy of the vocabulary."""
    beside = published(arguments().parse_args(["data", "--result", str(result)]))
    assert beside[RESULTS[result].updates].startswith(last)
    assert {*range(125, 2501, 125)} < {*beside}
    if result == 36:
        assert beside[0] == f", published {math.log(VOCABULARY):.5f} ± 0.00000"
    assert published(words(data, "--result", str(result))) == {}


def controlled(w: Tensor, u: Tensor, lr: float) -> Tensor:
    """A step of the record: brake, floor of each row, norm to first order, then the cautious decay
    of entries that the step makes smaller."""
    along = (u * w).sum() / w.square().sum()
    u = u - 0.5 * along * w if along < 0 else u
    u = torch.stack(
        [
            row * max(1.0, float(0.3825 * of.norm() / row.norm()))
            for row, of in zip(u, w, strict=True)
        ]
    )
    radius = w.norm() - lr * (u * w).sum() / w.norm()
    moved = w - lr * u
    return moved * radius / moved.norm() * torch.where(u.sign() == w.sign(), 1 - lr * 0.025, 1.0)


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_the_record_controls_norms(size: float) -> None:
    """By hand Matrices was compared over 50 updates with the code of result 46 in fp64, of six
    matrices and in all phases of trust: they differed by at most 4.5e-15 of the displacement."""
    torch.manual_seed(0)
    before = torch.randn(3, 6, 4, dtype=torch.float64)
    update = size * torch.randn(3, 6, 4, dtype=torch.float64)
    weights = [torch.nn.Parameter(w.clone()) for w in before]
    matrices = Matrices([{"params": weights, "is_gated": False}])
    with torch.no_grad():
        matrices.move({"lr": 0.1}, weights, update)
    for weight, w, u in zip(weights, before, update, strict=True):
        torch.testing.assert_close(weight.detach(), controlled(w, u, 0.1), rtol=1e-12, atol=0)


def test_the_record_s_rates_trust_and_average() -> None:
    torch.manual_seed(0)
    model = GPT(97, 2, 128)
    record = Record(model, 2690)
    *_, muon = record.optimizer.param_groups
    record.set_rates(2500)
    assert muon["lr"] == pytest.approx(3.3169534699576625e-06 * 400**1.2)
    momenta = {0: 0.85, 150: 0.9, 300: 0.95, 2700: 0.95, 2800: 0.9}
    for update, momentum in momenta.items():
        record.set_rates(update)
        assert muon["decay"] == pytest.approx(momentum)
    assert [trust_at(t) for t in (0, 1375, 1500, 1625)] == [
        *((0.45, 0.85), (0.45, 0.85), (0.225, 0.85), (0.0, 1.0))
    ]
    first = model.head.bias.detach().clone()
    assert record.shown(model, 2399) is model
    record.shown(model, 2400)
    with torch.no_grad():
        model.head.bias += 1.0
        model.embedding.weight += 1.0
    shown = record.shown(model, 2401)
    torch.testing.assert_close(shown.head.bias, first + 0.4 + 0.6 / 150)
    assert torch.equal(shown.embedding.weight, model.embedding.weight)
    assert torch.equal(model.head.bias, first + 1.0)


def test_microbatches_add_up_to_the_gradient_of_the_batch(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = GPT(VOCABULARY, 1, 128)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    tokens = Bins(path=str(data), vocab_size=VOCABULARY).open().train
    inputs, targets = batch(tokens, 1, NANOGPT_ROWS, LENGTH)
    (loss_of(model, inputs, targets) * targets.numel()).backward()
    whole = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("examples.nanogpt.train.MICROBATCH", 1)
    gradients(model, inputs, targets)
    for weight, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(weight.grad, expected)


def test_rotation_turns_pairs_by_position_and_leaves_the_slow_half() -> None:
    """Complex numbers: z becomes z · exp(−i · position · frequency)."""
    x = torch.randn(1, 1, 5, 8, dtype=torch.float64).float()
    frequencies = torch.tensor([1.0, 1 / 1024, 0.0, 0.0])
    turn = torch.polar(torch.ones(5, 4), -torch.outer(torch.arange(5.0), frequencies))
    z = torch.complex(x[..., :4].contiguous(), x[..., 4:].contiguous()) * turn
    expected: Tensor = torch.cat([z.real, z.imag], -1)
    torch.testing.assert_close(rotated(x), expected)
    assert torch.equal(rotated(x)[..., 2:4], x[..., 2:4])
