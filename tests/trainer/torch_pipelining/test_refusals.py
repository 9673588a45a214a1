"""What cannot be used is refused in one line, before anything trains."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.jit import ScriptModule
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from pipegap.analysis.advice.timing import traced_costs
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.corrections.compensation import WeightPrediction
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.torch_pipelining import Schedule2BW, refusals
from tests.support import every_correction
from tests.support.live_memory import LiveMemory
from tests.support.markdown import ROOT

STAGE = SimpleNamespace(group_size=2, num_stages=2)
LOSS = nn.MSELoss()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((STAGE, 1, LOSS, 1), "n_microbatches=1: must be at least 2"),
        ((STAGE, 2, LOSS, 2), "n_microbatches=2: must be at least 3"),
        ((STAGE, 4, None, 1), "loss_fn=None: is required"),
        (([STAGE, STAGE], 4, LOSS, 1), "must be the only stage of its rank"),
        ((SimpleNamespace(group_size=2, num_stages=4), 4, LOSS, 1), "the only stage of its rank"),
    ],
)
def test_a_schedule_that_is_none(given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        refusals.require_usable(*given)
    assert "\n" not in str(caught.value)


def test_a_wrapped_module_needs_twins() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    refusals.require_plain(module)
    module[0].compile()
    for wrapped in (module, torch.compile(nn.Linear(2, 2))):
        with pytest.raises(BadInput, match="twins=None: is required"):
            refusals.require_plain(wrapped)
    with pytest.raises(BadInput, match="must not be of TorchScript"):
        refusals.require_plain(ScriptModule())
    for twins in ([nn.Linear(2, 2)], [nn.Linear(2, 2), nn.Linear(2, 3)]):
        with pytest.raises(BadInput, match="must be two modules"):
            refusals.require_twins(nn.Linear(2, 2), twins)


def test_an_update_that_is_made_elsewhere() -> None:
    module = nn.Linear(2, 2)
    weights = list(module.parameters())
    refusals.require_trainable(print, weights)
    with pytest.raises(BadInput, match="update=None: is required"):
        refusals.require_trainable(None, weights)
    weights[0].register_post_accumulate_grad_hook(print)
    with pytest.raises(BadInput, match="OptimizersInBackward"):
        refusals.require_trainable(print, weights)


def test_a_captured_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="no CUDA graphs"):
        refusals.require_eager(torch.device("cuda"))


def stage_of(module: nn.Module) -> PipelineStage:
    return PipelineStage(module, 0, 1, torch.device("cpu"))


@pytest.mark.usefixtures("one_rank")
def test_what_a_schedule_refuses(tmp_path: Path) -> None:
    stage, x = stage_of(nn.Linear(2, 2)), torch.ones(1, 2)
    with pytest.raises(BadInput, match=r"tied=\['wieght'\]: must name weights of equal shapes"):
        Schedule2BW(stage, 1, LOSS, tied=["wieght"])
    ahead = every_correction.located(every_correction.settings("ema_nesterov"))
    with pytest.raises(BadInput, match="correction=EmaNesterov: must not look ahead"):
        Schedule2BW(stage, 1, LOSS, correction=ahead, num_updates=9)
    schedule = Schedule2BW(stage, 1, LOSS, update=print)
    with pytest.raises(BadInput, match="trace=False: must be True"):
        schedule.write_trace(tmp_path)
    schedule.step(x, target=x)
    with pytest.raises(RuntimeError, match="belongs into update"):
        schedule.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match="inside `with"):
        schedule.eval(x, target=x)


def _finalizing(self: Any, x: Any, *, target: Any, finalize_gradients: bool = True) -> None:
    """A `step` of a torch to come: it hands an option on, at its default too."""
    self._stage.has_backward = True
    mbs = [(x,)], [{}], [target]
    self._step_microbatches(*mbs, finalize_gradients=finalize_gradients)


@pytest.mark.usefixtures("one_rank")
def test_options_of_a_torch_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their defaults ask for nothing and are taken; other values are refused by their name."""
    made, x = Schedule1F1B.__init__, torch.ones(1, 2)

    def numbering(self: Any, *given: Any, pass_indices: bool = False, **rest: Any) -> None:
        made(self, *given, **rest)

    monkeypatch.setattr(Schedule1F1B, "__init__", numbering)
    monkeypatch.setattr(Schedule1F1B, "step", _finalizing)
    module = nn.Linear(2, 2)
    stage, update = stage_of(module), torch.optim.SGD(module.parameters()).step
    for name in ("pass_indices", "no_such_option"):
        with pytest.raises((BadInput, TypeError), match=name) as caught:
            Schedule2BW(stage, 1, LOSS, update=update, **{name: True})
        assert "\n" not in str(caught.value)
    schedule = Schedule2BW(stage, 1, LOSS, update=update, pass_indices=False, scale_grads=True)
    with pytest.raises(BadInput, match="finalize_gradients=False: is an option of torch's"):
        schedule.step(x, target=x, finalize_gradients=False)
    schedule.step(x, target=x)
    schedule.step(x, target=x, finalize_gradients=True)
    assert schedule.num_taken == 2


@pytest.mark.usefixtures("one_rank")
def test_a_disabled_grad_scaler_is_none() -> None:
    """Loops for several dtypes have such a one; test_conformance.py has one that scales."""
    module, scaler, x = (
        nn.Linear(2, 2),
        torch.amp.GradScaler("cpu", enabled=False),
        torch.ones(1, 2),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = Schedule2BW(
        stage_of(module),
        1,
        lambda *given: scaler.scale(LOSS(*given)),
        update=lambda: scaler.step(optimizer),
    )
    schedule.step(x, target=x)
    with schedule.drained():
        assert schedule.num_made == 1
    assert torch.amp.GradScaler("cpu").scale(torch.ones(())) == 2**16, "nothing of torch's is left"


# What Schedule2BW rests on of torch that torch does not document is still there.

CPU = torch.device("cpu")
PRIVATE_NAMES = {
    "schedule": (
        *("_stage", "_n_microbatches", "_has_backward", "_check_inputs", "_initialize_stage"),
        *("_step_microbatches", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"),
        *("_stage_forward_initialized", "_stage_backward_initialized", "_internal_losses"),
    ),
    "stage": (
        *("submod", "group", "group_size", "forward_one_chunk", "backward_one_chunk"),
        *("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"),
        *(
            "perform_reduce_grad",
            "args_recv_info",
            "grad_recv_info",
            "fwd_cache or _forward_chunk_states",
        ),
    ),
    "module": (
        *("_compiled_call_impl", "_parameters", "_buffers", "_modules", "_forward_hooks"),
        *("_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    ),
    "weight": ("_post_accumulate_grad_hooks", "_version", "_backward_hooks", "_make_subclass"),
    "group": ("_get_backend",),
    "backend": ("options",),
    "options": ("_timeout",),
    "composable_state": ("_module_state_mapping",),  # used in trainer/base/flat.py
}
"""Of a Schedule1F1B, a PipelineStage, a Module, a Parameter, a group and torch.distributed's
_composable_state, in torch 2.11 to 2.15. A test says which one moved."""


@pytest.mark.usefixtures("one_rank")
def test_no_private_name_of_torch_moved() -> None:
    module = nn.Linear(2, 2)
    stage, group = PipelineStage(module, 0, 1, CPU), dist.group.WORLD
    objects = {
        "schedule": Schedule1F1B(stage, 1, nn.MSELoss()),
        "stage": stage,
        "module": module,
        "weight": module.weight,
        "group": group,
        "backend": group._get_backend(CPU),
        "options": group._get_backend(CPU).options,
        "composable_state": _composable_state,
    }
    moved = [
        f"{of}.{name} of torch {torch.__version__}"
        for of, names in PRIVATE_NAMES.items()
        for name in names
        if not any(hasattr(objects[of], either) for either in name.split(" or "))
    ]
    assert not moved


# How many sets of weights a rank holds at most, counted by the bytes of live tensors.

WIDTH, LAYERS, ROWS, BATCHES = 64, 16, 2, 4
SET = 4 * LAYERS * WIDTH**2
"""Bytes. Activations are a hundredth of it, and a layer, which a step computes on, a sixteenth."""


def sets(schedule: type[Schedule1F1B], **options: Any) -> tuple[float, float]:
    """After some batches of plain SGD: what a stage and its schedule hold, and the peak so far."""
    x = torch.ones(ROWS, WIDTH)
    with LiveMemory() as live:
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        if schedule is Schedule2BW:
            options["update"] = update
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        made = schedule(stage, ROWS, nn.functional.mse_loss, **options)
        for _ in range(BATCHES):
            made.step(x, target=x)
            if schedule is Schedule1F1B:
                update()
        if isinstance(made, Schedule2BW):
            with made.drained():
                pass
        return live.live / SET, live.peak / SET


PREDICTION = {"correction": partial(WeightPrediction, horizon=1.0), "num_updates": BATCHES}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("schedule", "options", "held", "peak"),
    [
        (Schedule1F1B, {}, 1, 2),
        (Schedule2BW, {"error_feedback": 0.0}, 2, 4),
        (Schedule2BW, {}, 3, 5),
        (Schedule2BW, PREDICTION, 3, 7),
    ],
    ids=["1F1B", "2BW", "with Error Feedback", "with weight prediction"],
)
def test_sets_of_weights(
    schedule: type[Schedule1F1B], options: dict[str, Any], held: int, peak: int
) -> None:
    assert sets(schedule, **options) == pytest.approx((held, peak), rel=0, abs=0.1)


# examples/llama/train.py, as its first lines say, against one process with delayed optimizers.

UPDATES = 7


def printed(*words: str) -> tuple[list[float], str]:
    """The losses that two ranks print, and the last line."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "examples.llama.train", "--updates", str(UPDATES), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"^batch \d+: (\S+)$", done.stdout, re.MULTILINE)
    return [*map(float, losses)], done.stdout.splitlines()[-1]


def emulated(delay: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    from examples.llama.train import MAX_NORM, Stage, batches, loss_of

    monkeypatch.chdir(ROOT)
    stages = [Stage(number, 2) for number in range(2)]
    optimizers = [DelayedOptimizer(AdamW(s.parameters(), lr=3e-3), delay, 1.0) for s in stages]
    losses = []
    for x, y in batches(UPDATES):
        loss = loss_of(stages[1](stages[0](x)), y)
        losses.append(loss.item())
        loss.backward()
        clip_grad_norm_([w for stage in stages for w in stage.parameters()], MAX_NORM)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "words", "key"),
    [(0, (), "step_time"), (1, ("--asynchronous",), "time_2bw"), (0, ("--fsdp",), "rival.fsdp")],
)
def test_two_ranks_train_as_one_process(
    delay: int, words: tuple[str, ...], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    expected = emulated(delay, monkeypatch)
    losses, to_paste = printed(*words)
    assert losses == pytest.approx(expected, rel=0, abs=1e-5)
    assert expected != pytest.approx(emulated(1 - delay, monkeypatch), rel=0, abs=1e-3)
    assert re.fullmatch(rf"pipegap advise stages=2 microbatches=4 {key}=[\d.]+", to_paste)


@pytest.mark.slow
def test_a_trace_of_its_ranks_has_their_times(tmp_path: Path) -> None:
    """On a CPU, by microseconds in which an operation runs that is no message; torch's own."""
    _, to_paste = printed("--profile", str(tmp_path))
    costs = traced_costs(tmp_path, 2, 4)
    walls, works = [], []
    for rank in range(2):
        told = json.loads((tmp_path / f"rank{rank}.json").read_text())["traceEvents"]
        events = [event for event in told if event["ph"] == "X"]
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        begin, end = steps[0]["ts"], max(event["ts"] + event["dur"] for event in steps)
        runs = np.zeros(int(end - begin) + 1, dtype=bool)
        for event in events:
            if event["cat"] == "cpu_op" and not re.search("c10d|gloo|param_comms", event["name"]):
                first = event["ts"] - begin
                runs[max(0, int(first)) : max(0, int(first + event["dur"]))] = True
        walls.append((end - begin) / len(steps))
        works.append(runs.sum() / len(steps))
    of_updates = np.array(works) - 4 * np.array(costs.work)
    assert ((of_updates > 0) & (of_updates < 1.2 * costs.update)).all()
    assert costs.overlap == pytest.approx(4 * sum(costs.work) / np.mean(walls), rel=0.05)
    assert np.mean(walls) == pytest.approx(1e6 * float(to_paste.split("=")[-1]), rel=0.5)
