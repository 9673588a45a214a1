"""The true pipeline gives the emulation's numbers, to the last bit."""

import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pipegap.trainer.base.places import CONF
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Update
from pipegap.trainer.executors.pipelined import Totals
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.parts import build_parts, build_pipelined
from pipegap.trainer.ranks.groups import Gang, Heartbeat, joined
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import pipedream, pipedream_2bw, sync
from pipegap.trainer.stages.stage import Stage
from tests.oracles import corrections, semantics, torch_runtime
from tests.support import choices, every_correction, gangs, models, small_sweep, toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.gangs import Send, on_ranks, prepare
from tests.support.models import EMBEDDING, SMALL, emulated, modules, whole
from tests.support.steps import executor, resolved

OPTIMIZERS = ["adamw", "muon", "sgd"]
SCHEDULES = ["sync", "gpipe", "pipedream_2bw", "pipedream"]
CORRECTIONS = ["none", "error_feedback"]
CHOICES = (OPTIMIZERS, SCHEDULES, CORRECTIONS)
COMBINATIONS = [*product(*CHOICES)]


def daily_stages(combination: tuple[str, ...]) -> int | None:
    """Of half of the combinations; any two choices meet, and each meets 2 and 4 stages."""
    optimizer, schedule, correction = (
        values.index(choice) for values, choice in zip(CHOICES, combination, strict=True)
    )
    if (optimizer + schedule + correction) % 2:
        return None
    return 2 if (optimizer + schedule // 2) % 2 else 4


DAILY = {p: [each for each in COMBINATIONS if daily_stages(each) == p] for p in (2, 4)}
OTHERS = {p: [each for each in COMBINATIONS if daily_stages(each) != p] for p in (2, 4)}
SHAPE = (
    *("model.num_layers=4", "pipeline.num_microbatches=4", "batch_size=8", "num_updates=6"),
    "clip_norm=0.5",
)


def config(folder: Path, *words: str) -> dict[str, Any]:
    return small_sweep.config(folder, *SHAPE, *words)


@pytest.mark.parametrize(
    ("p", "combinations"),
    [
        pytest.param(2, DAILY[2], id="2"),
        pytest.param(4, DAILY[4], id="4"),
        pytest.param(1, COMBINATIONS, id="1", marks=pytest.mark.slow),
        pytest.param(2, OTHERS[2], id="2, the others", marks=pytest.mark.slow),
        pytest.param(4, OTHERS[4], id="4, the others", marks=pytest.mark.slow),
    ],
)
def test_every_combination(tmp_path: Path, p: int, combinations: list[tuple[str, ...]]) -> None:
    """Tied embeddings; a clip that is active at every update; a drain in the middle."""
    configs = [
        config(
            tmp_path,
            f"optimizer={optimizer}",
            f"pipeline={schedule}",
            f"correction={correction}",
            f"pipeline.num_stages={p}",
        )
        for optimizer, schedule, correction in combinations
    ]
    for expected in gangs.all_equal(configs):
        assert len(expected.updates) == 6
        assert all(update.grad_norm > 0.5 for update in expected.updates), "the clip is active"


@pytest.mark.long
def test_other_ways_to_run_it(tmp_path: Path) -> None:
    """What the combinations leave out, on two ranks; every schedule: ranks/test_groups.py."""
    two = "pipeline.num_stages=2"
    delayed = ("pipeline=pipedream_2bw", "correction=error_feedback", two)
    diverges = ("optimizer=sgd", "clip_norm=null", "optimizer.lr=1e12")
    configs = [
        config(tmp_path, "pipeline=zero_bubble_v", two, "model.tied_embeddings=false"),
        config(tmp_path, "pipeline=paci", two, "pipeline.num_microbatches=1", "dtype=bfloat16"),
        config(tmp_path, "pipeline=paci", two, "pipeline.synchronous_start=2"),
        config(tmp_path, "pipeline=paci", two, "pipeline.recompute=true"),
        config(tmp_path, *delayed, "pipeline.num_microbatches=1"),
        config(tmp_path, *delayed, "pipeline.synchronous_start=2"),
        config(tmp_path, *delayed, "pipeline.synchronous_cooldown=2"),
        config(tmp_path, *delayed, "clip_scope=stage"),
        config(tmp_path, *delayed, "clip_norm=null"),
        config(tmp_path, *delayed, "dtype=bfloat16"),
        config(tmp_path, *delayed, "model.activation_checkpointing=true"),
        config(tmp_path, *delayed, "model.loss_chunk=24"),
        config(tmp_path, "pipeline=zero_bubble_v", two, "model.loss_chunk=24"),
        config(tmp_path, *delayed, "model.tied_embeddings=false"),
        config(tmp_path, "pipeline=zero_bubble_v", two, *diverges),
    ]
    gangs.all_equal(configs)


PHASES_OF_PIPELINED = ("pipeline.synchronous_start=2", "pipeline.synchronous_cooldown=1")


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(
            [
                ("pipeline=pipedream_2bw", "pipeline.num_microbatches=2", *PHASES_OF_PIPELINED),
                ("pipeline=pipedream", "pipeline.num_microbatches=1"),
            ],
            id="2BW and where delays differ",
        ),
        pytest.param(
            [
                ("pipeline=pipedream_2bw", "pipeline.num_microbatches=4"),
                ("pipeline=constant_delay", "pipeline.num_microbatches=2", "pipeline.delay=2"),
            ],
            id="without phases and longer delays",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_corrections(tmp_path: Path, ways: list[tuple[str, ...]]) -> None:
    """Of gradients, of weights that are read, of learning rates."""
    choices = sorted(path.stem for path in (CONF / "correction").glob("*.yaml"))
    strong = {"taylor": "correction.coefficient=100", "learning_rate": "correction.anneal=1.0"}
    configs = [
        config(
            tmp_path,
            *way,
            f"correction={choice}",
            *([strong[choice]] if choice in strong else []),
            "pipeline.num_stages=2",
        )
        for choice in choices
        for way in ways
    ]
    gangs.all_equal(configs)


def test_four_ranks_with_slack_or_a_divergence(tmp_path: Path) -> None:
    """Slack for messages changes no number; a divergence stops every rank at the same update."""
    four, delayed = "pipeline.num_stages=4", ("pipeline=pipedream_2bw", "correction=error_feedback")
    plain, slack = (
        config(tmp_path, *delayed, four, "pipeline.num_microbatches=8", f"pipeline.slack={value}")
        for value in ("false", "true")
    )
    words = (four, "optimizer=sgd", "clip_norm=null", "optimizer.lr=1e12", "num_updates=12")
    diverging = [
        config(tmp_path, f"pipeline={name}", *words)
        for name in ("sync", "pipedream_2bw", "pipedream")
    ]
    slackened, *diverged = gangs.all_equal([slack, *diverging])
    gangs.assert_equal(plain, [slackened])
    assert all(numbers.diverged is not None and numbers.diverged < 12 for numbers in diverged)


# A stage that clips by its own norm waits for no other one, and gives the emulation's numbers.

PIPEDREAM = ("pipeline=pipedream", "pipeline.num_microbatches=1", "correction=error_feedback")
"""An update per microbatch, which the last stage reads at once."""
ZERO_BUBBLE = ("pipeline=zero_bubble_v", "pipeline.num_microbatches=4")


def config_of_clip_by_stage(folder: Path, *words: str) -> dict[str, Any]:
    shape = ("model.num_layers=8", "batch_size=8", "num_updates=8", "clip_norm=0.1")
    return small_sweep.config(folder, *shape, "clip_scope=stage", *words)


def with_totals_held_back(
    store: dist.Store, heartbeat: Heartbeat, send: Send, configs: Sequence[gangs.Config]
) -> None:
    """The first rank adds nothing to the totals before the last one has applied two updates."""
    begin, update = Totals.__init__, Stage.update

    def late(*args: Any) -> None:
        if heartbeat.rank == 0:
            store.wait(["1 is applied"], timedelta(seconds=30))
        begin(*args)

    def noted(stage: Stage, batch: int, gradients: Any) -> None:
        update(stage, batch, gradients)
        if heartbeat.rank == 1:
            store.set(f"{batch} is applied", "")

    with patch.object(Totals, "__init__", late), patch.object(Stage, "update", noted):
        gangs.as_rank(store, heartbeat, send, configs)


def test_the_last_stage_goes_on_alone(tmp_path: Path) -> None:
    gangs.all_equal(
        [
            config_of_clip_by_stage(
                tmp_path, *PIPEDREAM, "pipeline.num_stages=2", "model.tied_embeddings=false"
            )
        ],
        with_totals_held_back,
    )


@pytest.mark.long
@pytest.mark.parametrize("p", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_number_is_the_emulations(tmp_path: Path, p: int) -> None:
    """Tied embeddings, whose two copies do wait for each other. A divergence ends every rank at the
    same update; Shampoo raises if it is given what is not finite."""
    ways = [PIPEDREAM, (*PIPEDREAM, "optimizer=muon"), ZERO_BUBBLE, ("clip_norm=null",)]
    diverging = [
        (f"optimizer={optimizer}", f"optimizer.lr={lr}", *way)
        for optimizer, lr in (("sgd", "1e12"), ("shampoo", "1e30"))
        for way in (PIPEDREAM, ZERO_BUBBLE)
    ]
    stages = f"pipeline.num_stages={p}"
    configs = [config_of_clip_by_stage(tmp_path, *way, stages) for way in (*ways, *diverging)]
    for way, each, ranks in zip(
        (*ways, *diverging), configs, gangs.pipelined(configs), strict=True
    ):
        if way in ways:
            gangs.assert_equal(each, ranks)
            continue
        expected = gangs.emulated(each)
        assert expected.diverged is not None, each
        assert {rank.diverged for rank in ranks} == {expected.diverged}, each
        assert ranks[0].updates == expected.updates  # of the rank that records


# The state of a gang's model: on the recording rank it takes a disk, and hardly any memory.

PAGE = 4096


@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_recording_rank_never_has_the_whole_state_in_memory(tmp_path: Path, p: int) -> None:
    """The most memory that it takes is a part of one rank's share, and nothing of p."""
    told: list[dict[str, int]] = []
    on_ranks(_measured, (str(tmp_path), p), told.append, num_stages=p)
    [of] = told
    assert of["whole"] > 60e6
    assert of["most"] < 0.25 * of["whole"], of
    assert of["same"], "and it is the state of the weights that it was taken of"
    assert not [*tmp_path.iterdir()], "the files have no names"


def _measured(gang: Gang, send: Send, folder: str, p: int) -> None:
    words = f"pipeline.num_stages={p}", f"results={folder}", "num_updates=1000"
    config, parts = prepare(p, "pipedream_2bw", *words)
    executor = build_pipelined(config, parts, gang)
    executor.run(0, 2, lambda update: None)
    gang.barrier()
    with _peak_of_anonymous_memory() as most:
        state = executor.state()
    if not gang.records:
        return
    tensors = [value for of in state.values() for value in _tensors(of)]
    mine = super(type(executor), executor).state()
    send(
        {
            "whole": sum(tensor.nbytes for tensor in tensors),
            "most": most[0],
            "same": all(
                torch.equal(ours, theirs)
                for name in mine
                for ours, theirs in zip(_tensors(mine[name]), _tensors(state[name]), strict=True)
            ),
        }
    )


def _tensors(node: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(node) if isinstance(leaf, torch.Tensor)]


@contextmanager
def _peak_of_anonymous_memory() -> Iterator[list[int]]:
    """Yields a list; at exit its entry says how many bytes were taken that no file holds."""
    first, ended, most = _anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not ended.is_set():
            most[0] = max(most[0], _anonymous() - first)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
        most[0] = max(most[0], _anonymous() - first)
    finally:
        ended.set()
        watcher.join()


def _anonymous() -> int:
    _, resident, of_files, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(of_files)) * PAGE


# Tied embeddings over stages: one weight in two places, bit-equal copies, one model's numbers.

T = 6


def batch(t: int) -> Tensor:
    return torch.randint(0, 61, (4, 9), generator=torch.Generator().manual_seed(t))


def train(schedule: Schedule) -> tuple[Emulated, list[float]]:
    executor = emulated(SMALL, schedule, batch)
    updates = toy.run(executor, schedule.phases)
    assert all(update.grad_norm > 0.5 for update in updates)
    return executor, [update.loss for update in updates]


@pytest.mark.parametrize(
    ("make", "num_stages"),
    [(sync, 2), (partial(pipedream_2bw, **PHASES), 4)],
    ids=["sync", "pipedream_2bw"],
)
def test_stages_train_the_same_model(make: partial[Schedule], num_stages: int) -> None:
    alone, losses = train(make(T, num_stages=1, num_microbatches=4))
    many, split_losses = train(make(T, num_stages=num_stages, num_microbatches=4))
    torch.testing.assert_close(split_losses, losses, rtol=1e-10, atol=0)
    expected = alone.weights()
    for name, weight in many.weights().items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-7, atol=1e-9)


def copies(executor: Emulated) -> list[Tensor]:
    """The tied weight, as the first and as the last stage have it."""
    ends = executor.stages[0], executor.stages[-1]
    return [stage.versions.master[stage.versions.names.index(EMBEDDING)] for stage in ends]


@cache
def by_stage(*words: str) -> dict[str, Any]:
    """The config of two stages that clip by themselves."""
    shape = ("model=nano", "model.hidden_size=32", "model.num_layers=4", "batch_size=4")
    clip = ("seq_len=8", "clip_norm=0.1", "clip_scope=stage", "pipeline.num_stages=2")
    return resolved([*shape, *clip, *words])


def trained(config: dict[str, Any]) -> Emulated:
    with reproducible(0, 1):
        made, updates = executor(config), list[Update]()
        made.run(0, 3, updates.append)
    assert all(update.grad_norm > 0.1 for update in updates), "the clip acts"
    return made


PIPELINES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
CORRECTED = list(zip(choices.OPTIMIZERS, cycle(every_correction.NAMES), strict=False))
OTHERS_OF_TIED_EMBEDDINGS = [
    pair for pair in product(choices.OPTIMIZERS, every_correction.NAMES) if pair not in CORRECTED
]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_copies_stay_equal_in_every_schedule(pipeline: str) -> None:
    """Whatever the delay of their stages."""
    feedback = "none" if pipeline == "paci" else "error_feedback"
    words = f"pipeline={pipeline}", f"correction={feedback}", "pipeline.num_microbatches=4"
    assert torch.equal(*copies(trained(by_stage(*words))))


@pytest.mark.parametrize(
    ("optimizer", "correction"),
    [
        *CORRECTED,
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS_OF_TIED_EMBEDDINGS),
    ],
)
def test_copies_stay_equal_by_any_update(optimizer: str, correction: str) -> None:
    """Each optimizer with a correction, in stages of different delays; the slow ones with all."""
    config = {
        **by_stage("pipeline=pipedream", "pipeline.num_microbatches=1"),
        "optimizer": choices.optimizer_node(optimizer),
        "correction": every_correction.settings(correction),
    }
    assert torch.equal(*copies(trained(config)))


@pytest.mark.parametrize("family", [models.WORDS, models.WORDS_OF_HYBRID], ids=["moe", "hybrid"])
def test_copies_stay_equal_in_every_family(family: tuple[str, ...]) -> None:
    words = "pipeline=pipedream_2bw", "correction=adaptive_error_feedback"
    assert torch.equal(*copies(trained(by_stage(*family, *words))))


@pytest.mark.parametrize("num_stages", [2, 4])
def test_what_clips_by_stage_resumes_to_the_bit(num_stages: int) -> None:
    """A checkpoint has one of the copies, and an export too: it is the model that was evaluated."""
    schedule = pipedream_2bw(T, num_stages=num_stages, num_microbatches=4, **PHASES)
    straight, first, again = (
        emulated(SMALL, schedule, batch, clips_by_stage=True) for _ in range(3)
    )
    updates = toy.run(straight, (0, T))
    assert toy.run(first, (0, 3)) == updates[:3]
    again.restore(copy.deepcopy(first.state()))
    assert toy.run(again, (3, T)) == updates[3:]
    assert all(map(torch.equal, toy.weights(again), toy.weights(straight)))
    model = whole(SMALL).double()
    model.load_state_dict(straight.weights())
    rows = batch(99)
    alone = cross_entropy(model(rows[:, :-1]), rows[:, 1:]).item()
    assert straight.evaluate([rows]) == pytest.approx(alone, rel=1e-12)


def test_with_delays_by_stage_the_pair_takes_the_larger() -> None:
    schedule = pipedream(T, num_stages=4, num_microbatches=1, **PHASES)
    executor, _ = train(schedule)
    assert schedule.lags == (3, 2, 1, 0)
    held = executor._stages[-1].versions.state()
    assert sorted(held[EMBEDDING]["held"]) == [T - 3, T - 2, T - 1, T]
    assert held["model.norm.weight"]["held"] == [T]


@pytest.mark.parametrize(("make", "num_stages"), [(pipedream_2bw, 2), (pipedream, 4)])
def test_a_clip_by_stage_equals_the_equations(make: partial[Schedule], num_stages: int) -> None:
    """Bit for bit: every version's losses, and the weights, of both copies."""
    schedule = make(T, num_stages=num_stages, num_microbatches=4, **PHASES)
    executor = emulated(SMALL, schedule, batch, clips_by_stage=True)
    updates = toy.run(executor, schedule.phases)
    stages = modules(SMALL, num_stages)
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    expected, losses = semantics.train(
        stages,
        schedule.lags,
        lambda stage: ADAMW([(kinds(stage)[name], w) for name, w in stage.named_parameters()]),
        lambda t: ADAMW.keywords["lr"] * toy.lr_factor(t),
        [(rows[:, :-1], rows[:, 1:]) for rows in map(batch, range(T))],
        cross_entropy,
        schedule.version,
        corrections.ErrorFeedback(SimpleNamespace(coefficient=1.0, lag=1), T),
        clip_norm=0.5,
        clips_by_stage=True,
        microbatches=4,
        tied=[tuple(i for i, name in enumerate(names) if name == EMBEDDING)],
    )
    assert [update.loss for update in updates] == losses
    assert all(map(torch.equal, toy.weights(executor), expected[-1]))


def trained_alike(*words: str) -> bool:
    """Whether one stage and four make the same numbers of a model with its own head. The norm
    counts the weights in one order, whatever the number of stages."""
    shape = ("model.num_layers=4", "model.tied_embeddings=false", "batch_size=4", "seq_len=16")
    delayed = ("pipeline=pipedream_2bw", "pipeline.num_microbatches=4")
    seen = []
    with reproducible(0, 1):
        for p in (1, 4):
            config = resolved([*shape, *delayed, *words, f"pipeline.num_stages={p}"])
            stages, updates = executor(config), list[Update]()
            stages.run(0, 3, updates.append)
            seen.append((updates, stages.weights()))
    (updates, weights), (of_stages, its) = seen
    return of_stages == updates and all(torch.equal(its[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    "words",
    [
        *(models.WORDS, models.WORDS_OF_HYBRID),
        # Kron draws random numbers for one weight after the other.
        *((f"optimizer={name}", "model=nano") for name in choices.OPTIMIZERS if name != "kron"),
    ],
    ids=lambda words: words[0],
)
def test_with_a_head_of_its_own_stages_change_no_bit(words: tuple[str, ...]) -> None:
    assert trained_alike(*words)


# The true pipeline and its emulation against torch.distributed.pipelining, to the last bit.
#
# One gang trains every config with our pipeline, then with torch's, in the same processes.

Config = dict[str, Any]
Theirs = Callable[..., torch_runtime.Trained]
Case = tuple[Config, Theirs]
Both = tuple[gangs.Numbers, torch_runtime.Trained]
# Torch's runtime knows no tied weights, and no clip. Layers that are recomputed read their weights
# in the backward too. Our runs drain in the middle, torch's do not.
WORDS = (
    *("model.num_layers=4", "model.tied_embeddings=false"),
    *("model.activation_checkpointing=true", "batch_size=12", "num_updates=6", "clip_norm=null"),
)
FOUR = "pipeline.num_microbatches=4"
NOT_AGAIN = "model.activation_checkpointing=false"  # torch cannot split a recomputed backward
ALWAYS: list[tuple[Theirs, tuple[str, ...]]] = [
    (torch_runtime.one_forward_one_backward, ("pipeline=sync", FOUR)),
    (torch_runtime.operations, ("pipeline=zero_bubble_h1", FOUR, NOT_AGAIN)),
    (torch_runtime.operations, ("pipeline=pipedream_2bw", FOUR)),
]
CASES = {
    2: ALWAYS,
    4: [
        *ALWAYS,
        # with the fewest microbatches that it can have; with a delay of each stage's own
        (torch_runtime.operations, ("pipeline=pipedream_2bw", "pipeline.num_microbatches=3")),
        (torch_runtime.operations, ("pipeline=pipedream", "pipeline.num_microbatches=1")),
    ],
}


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Send, cases: Sequence[Case]) -> None:
    p = cases[0][0]["pipeline"]["num_stages"]
    with reproducible(0, 1), joined(store, heartbeat.rank, p, 1, gangs.CPU, heartbeat, 60) as gang:
        for config, theirs in cases:
            parts = build_parts(config, config["num_updates"])
            ours = gangs.train(build_pipelined(config, parts, gang), parts)
            send((ours, theirs(config, parts, gang.place)))


def assert_equal(config: Config, ranks: Sequence[Both]) -> list[float]:
    """Losses and final weights of torch's run, of our pipeline, and of its emulation."""
    ours = gangs.assert_equal(config, [ours for ours, _ in ranks])
    losses, _ = ranks[-1][1]
    weights = {name: weight for _, (_, tensors) in ranks for name, weight in tensors.items()}
    assert [update.loss for update in ours.updates] == losses
    assert ours.weights.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(ours.weights[name], weight), name
    return losses


@pytest.mark.parametrize("p", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_torch_trains_alike(tmp_path: Path, p: int) -> None:
    """The flushed 1F1B against torch's own schedule, the others against torch running our list."""
    stages = f"pipeline.num_stages={p}"
    cases = [(small_sweep.config(tmp_path, *WORDS, stages, *words), run) for run, words in CASES[p]]
    by_rank = gangs.sent(as_rank, p, cases)
    losses = [
        assert_equal(config, ranks) for (config, _), *ranks in zip(cases, *by_rank, strict=True)
    ]
    shows = [abs(losses_of_rank[1] - losses[0][1]) > 1e-3 for losses_of_rank in losses]
    assert shows == ["pipedream" in config["pipeline"]["_target_"] for config, _ in cases]
