"""The example of docs/delayed.md works as printed, and the analysis finds the gap that it made."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim.lr_scheduler import LambdaLR

from examples.nanogpt.gpt import GPT
from examples.nanogpt.nanogpt import NanoGPT
from pipegap.analysis import gaps, load
from pipegap.trainer.base.build import build, use_code
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.identity import version_of
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.delayed import DelayedOptimizer, record
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.torch_pipelining import Schedule2BW
from tests.support import gangs, small_sweep, toy
from tests.support.markdown import ROOT, blocks
from tests.support.models import whole

DOCUMENT = ROOT / "docs" / "delayed.md"


def read_lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_the_gap_of_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = [block for block in blocks(DOCUMENT) if block.language == "python"]
    exec(block.text, {})
    found: dict[tuple[int, float], list[float]] = {}
    for path in sorted(tmp_path.glob("results/trials/*/config.json")):
        config = json.loads(path.read_text())
        rows = [json.loads(line) for line in read_lines(path.parent)]
        assert [row["update"] for row in rows] == [*range(20)]
        result = json.loads((path.parent / "result.json").read_text())
        assert result["final_val_loss"] == rows[-1]["val_loss"]
        arm = (result["delays"][0], config["correction"].get("coefficient", 0.0))
        found.setdefault(arm, [0.0] * 3)[config["seed"]] = rows[-1]["val_loss"]
    assert found.keys() == {(0, 0.0), (1, 0.0), (1, 1.0)}
    table = gaps(load(tmp_path / "results")).set_index("arm")
    for arm, key in {"delay": (1, 0.0), "delay_ef": (1, 1.0)}.items():
        pairs = np.subtract(found[key], found[0, 0.0])
        low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
        row = table.loc[arm]
        assert (row["n"], row["optimizer"]) == (3, "adamw")
        assert row[["gap", "low", "high"]].tolist() == pytest.approx([pairs.mean(), low, high])
    assert table.loc["delay", "gap"] != 0


WORDS = {
    **{"model": "m", "data": "d", "optimizer": "sgd"},
    **{"seed": 0, "batch_size": 1, "seq_len": 1, "num_updates": 2},
}


def delayed(**options: Any) -> DelayedOptimizer:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return DelayedOptimizer(torch.optim.SGD([weight], lr=0.1), **options)


def read(folder: Path, name: str = "result.json") -> dict[str, object]:
    [path] = folder.glob(f"trials/*/{name}")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_divergence_is_a_result(tmp_path: Path) -> None:
    optimizer = delayed()
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        run.update(float("nan"))
        raise AssertionError("not reached")
    result = read(tmp_path)
    assert (result["status"], result["diverged_at"]) == ("diverged", 0)
    assert result["final_val_loss"] is None


def test_what_stops_early_goes_on_and_what_is_finished_is_refused(tmp_path: Path) -> None:
    optimizer = delayed()
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        run.update(1.0)
    assert not list(tmp_path.glob("trials/*/result.json"))
    again = delayed()
    again.load_state_dict(optimizer.state_dict())
    with record(tmp_path, again, WORDS) as run:
        again.step()
        run.update(0.5, 0.25)
    assert read(tmp_path)["final_val_loss"] == 0.25
    [rows] = tmp_path.glob("trials/*/metrics.jsonl")
    assert [json.loads(line)["train_loss"] for line in read_lines(rows.parent)] == [1.0, 0.5]
    with (
        pytest.raises(BadInput, match=r"words\.seed=0: is finished"),
        record(tmp_path, delayed(), WORDS),
    ):
        pass


def test_an_error_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(KeyError), record(tmp_path, delayed(), WORDS):
        raise KeyError("lost")
    result = read(tmp_path)
    assert result["status"] == "failed"
    assert "KeyError: 'lost'" in str(result["error"])


def test_each_step_is_recorded_once(tmp_path: Path) -> None:
    optimizer = delayed()
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        optimizer.step()
        with pytest.raises(RuntimeError, match="recorded 0 steps of 2"):
            run.update(1.0)


def test_the_last_update_needs_a_validation_loss(tmp_path: Path) -> None:
    optimizer = delayed()
    context = record(tmp_path, optimizer, {**WORDS, "num_updates": 1})
    run = context.__enter__()
    optimizer.step()
    run.update(1.0)
    with pytest.raises(ValueError, match="needs a val_loss"):
        context.__exit__(None, None, None)


@pytest.mark.parametrize("ends", ["finish", "num_updates", "neither"])
def test_the_result_is_of_the_newest_weights(tmp_path: Path, ends: str) -> None:
    """As with keep="weights": an older version's loss is no result."""
    options = {"num_updates": 2} if ends == "num_updates" else {}
    optimizer = delayed(keep="gradients", **options)
    with record(tmp_path, optimizer, WORDS) as run:
        optimizer.step()
        run.update(1.0, 0.5)
        optimizer.step()
        if ends == "finish":
            optimizer.finish()
        if ends == "neither":
            with pytest.raises(ValueError, match="not of the newest weights: 1 updates wait"):
                run.update(1.0, 0.25)
        else:
            run.update(1.0, 0.25)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"seed": None}, "words.seed=None: must be an int"),
        ({"model": 3}, "words.model=3: must be a name"),
        ({"pipeline.delay": 3}, "words.pipeline.delay=3: must be a word of its own, or begin"),
        ({"num_updates": 3}, "words.num_updates=3: must be num_updates=2 of the DelayedOptimizer"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_words(tmp_path: Path, words: dict[str, object], says: str) -> None:
    with (
        pytest.raises(BadInput) as caught,
        record(
            tmp_path,
            delayed(num_updates=2),
            {**WORDS, **words},  # type: ignore[dict-item]
        ),
    ):
        pass
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# modded-nanogpt's model: against the example's, which is written on its own, and its protocol.

SMALL = NanoGPT(
    vocab_size=50,
    hidden_size=256,
    num_layers=3,
    num_heads=2,
    num_kv_heads=2,
    intermediate_size=1024,
    rope_theta=1024 ** (32 / 31),
    rms_norm_eps=torch.finfo(torch.float64).eps,
    initializer_range=(0.33 / 256) ** 0.5,
    embedding_range=1.0,
    attention_scale=0.12,
    logit_cap=15.0,
    activation_checkpointing=False,
)
TOKENS = torch.randint(50, (2, 17), generator=torch.Generator().manual_seed(0))
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]
PAIRS = [*range(64, 96), *range(32), *range(32, 64), *range(96, 128)]
"""Places in a head of theirs, in the order of ours: pairs that are turned come first."""
CODE = f"code={ROOT / 'examples' / 'nanogpt'}"
WORDS_OF_NANOGPT = (
    *(CODE, "model=nanogpt", "model.vocab_size=257", "model.hidden_size=32", "model.num_layers=3"),
    *("model.num_heads=2", "model.num_kv_heads=1", "model.intermediate_size=64", "num_updates=6"),
)


def own() -> Any:
    """The recipe of the YAML."""
    use_code(str(ROOT / "examples" / "nanogpt"))
    return build(Composer().node([CODE, "model=nanogpt"])["model"])


def moved() -> nn.Module:
    """The small model in float64 with other values: biases, head and last matrices start at 0."""
    module = whole(SMALL).double()
    for i, weight in enumerate(module.parameters()):
        drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
        weight.data += 0.1 * drawn
    return module


def as_theirs(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of our weights, by the names and in the order of rows of the example's."""
    names = {"model.embed_tokens.weight": "embedding.weight", "lm_head.": "head."}
    names |= {"model.embed_tokens.gain": "first_norm.weight", "model.norm.": "last_norm."}
    names |= {"model.layers.": "blocks.", "input_layernorm": "norm1", "self_attn": "attention"}
    names |= {"post_attention_layernorm": "norm2", "mlp.up_proj": "into", "mlp.down_proj": "out"}
    names |= {f"{part}_proj": part for part in "qkv"} | {"o_proj": "out"}
    theirs = {}
    for ours_name, ours_tensor in ours.items():
        name, tensor = ours_name, ours_tensor
        if ".q_proj" in name or ".k_proj" in name:
            heads, places = tensor.unflatten(0, (2, 128)), torch.tensor(PAIRS)
            tensor = torch.empty_like(heads).index_copy_(1, places, heads).flatten(0, 1)
        for mine, other in names.items():
            name = name.replace(mine, other)
        theirs[name] = tensor
    return theirs


def test_it_is_the_model_of_the_example() -> None:
    """Logits and gradients, but for rotations, which the example computes in fp32."""
    ours, theirs = moved(), GPT(50, 3, 256).double()
    theirs.load_state_dict(as_theirs(ours.state_dict()))
    logits = ours(INPUTS)
    torch.testing.assert_close(logits, theirs(INPUTS).double(), rtol=1e-6, atol=1e-6)
    for module in (ours, theirs):
        cross_entropy(module(INPUTS), TARGETS).backward()
    gradients = as_theirs({name: w.grad for name, w in ours.named_parameters()})
    for name, weight in theirs.named_parameters():
        error = (gradients[name] - weight.grad).norm() / weight.grad.norm()
        assert error < 1e-5, name


def test_its_size_is_that_of_track_3() -> None:
    recipe = own()
    with torch.device("meta"):
        module, theirs = recipe.stage(0, recipe.split(1, 8)), GPT(50_304, 12, 768)
    sizes = [sum(w.numel() for w in model.parameters()) for model in (module, theirs)]
    assert [*sizes, recipe.num_parameters, recipe.num_active_parameters] == [162_354_816] * 4
    kinds = recipe.kinds(module)
    assert {name for name, kind in kinds.items() if kind == "embedding"} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    ranks = {"matrix": 2, "embedding": 2, "vector": 1}
    assert all(ranks[kinds[name]] == w.ndim for name, w in module.named_parameters())


def test_it_starts_where_the_published_log_does() -> None:
    """step:0/3375 val_loss:10.82584, whatever the data: the head starts at 0."""
    module = whole(replace(SMALL, vocab_size=50_304))
    assert cross_entropy(module(INPUTS), TARGETS).item() == pytest.approx(10.82584, abs=5e-6)
    assert module.get_parameter("model.embed_tokens.weight").std().item() == pytest.approx(1, 0.01)
    up = module.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert up.std().item() == pytest.approx((0.33 / 256) ** 0.5, 0.01)
    zeros = [name for name, w in module.named_parameters() if not w.any()]
    biases = [name for name, _ in module.named_parameters() if name.endswith("bias")]
    outs = [
        f"model.layers.{i}.{part}.weight"
        for i in range(3)
        for part in ("self_attn.o_proj", "mlp.down_proj")
    ]
    assert {*zeros} == {*biases, *outs, "lm_head.weight"}


def test_it_trains_alike_in_one_stage_and_in_two(tmp_path: Path) -> None:
    """Under a delay, by SGD, which enlarges no rounding."""
    words = (
        *WORDS_OF_NANOGPT,
        "optimizer=sgd",
        "pipeline=pipedream_2bw",
        "pipeline.num_microbatches=2",
    )
    one, two = (
        gangs.emulated(small_sweep.config(tmp_path, *words, f"pipeline.num_stages={stages}"))
        for stages in (1, 2)
    )
    for name, weight in one.weights.items():
        torch.testing.assert_close(two.weights[name], weight)
    assert all(weight.any() for weight in one.weights.values())


def test_its_head_counts_as_its_own(tmp_path: Path) -> None:
    """HEAD_FIXES is 1, and the model has no key that says that its head is its own."""
    assert version_of(small_sweep.config(tmp_path, *WORDS_OF_NANOGPT)) == 3


# docs/torchtitan.md in torchtitan's own Trainer, which lives in an environment of its own.

OWN = ROOT / ".venv" / "torchtitan" / "bin" / "python"


PARSE = "from torchtitan.config import ConfigManager as C; print(C().parse_args())"


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has torchtitan."""
    found = sys.executable if find_spec("torchtitan") else str(OWN)
    if not Path(found).exists():
        pytest.skip("no torchtitan: make torchtitan")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", ["advise", "torchtitan"])
def test_its_options_are_those_that_the_pages_name(python: str, page: str) -> None:
    """Each is read by torchtitan; the model is that of docs/torchtitan.md."""
    given = ["--module", "llama3", "--config", "llama3_debugmodel"]
    for option in re.findall(r"--[a-z]+\.\S+(?: [\w.]+)?", (ROOT / f"docs/{page}.md").read_text()):
        given += option.strip("`|").split()
    assert len(given) > 6
    read = subprocess.run(
        [python, "-c", PARSE, *given], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    assert "pipeline_parallel_schedule='2BW'" in read.stdout or page == "advise"


@pytest.fixture(scope="module")
def losses(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The losses of each way of training."""
    folder = tmp_path_factory.mktemp("torchtitan")
    words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "tests.support.torchtitan_run", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


@pytest.mark.slow
def test_2bw_has_the_losses_of_the_delayed_optimizers(losses: dict[str, Any]) -> None:
    for kind in ("training", "validation"):
        expected = losses["emulated"][kind]
        assert losses["pipelined"][kind] == pytest.approx(expected, rel=0, abs=5e-6)
        assert len({*expected}) == len(expected)


@pytest.mark.slow
def test_a_checkpoint_goes_on(losses: dict[str, Any]) -> None:
    for way in ("emulated", "pipelined"):
        assert losses[f"{way}, resumed"]["training"] == losses[way]["training"][3:]


@pytest.mark.slow
def test_what_cannot_be_is_refused_in_a_line(losses: dict[str, Any]) -> None:
    experts, accumulated, other = losses["refused"]
    assert "load_balance_coeff=0.001: must be None with 2BW" in experts
    assert "training.global_batch_size=8: must be -1, one step per batch" in accumulated
    assert "parallelism.pipeline_parallel_schedule=1F1B: must be 2BW here" in other
    assert not any("\n" in said for said in losses["refused"])


# The loop of docs/semantics.md, as it is printed there, against every other way to make 2BW.

T, M = 7, 4
NO_PHASES = {"synchronous_start": 0, "synchronous_cooldown": 0}
adamw = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)
BATCHES = [*map(toy.batch, range(T))]


def loss(model: nn.Module, rows: Tensor) -> Tensor:
    return toy.loss(model(rows[:, :-1]), rows[:, 1:])


def printed(num_microbatches: int, error_feedback: float) -> list[Tensor]:
    """The weights that the printed loop trains."""
    [block] = [block for block in blocks(ROOT / "docs/semantics.md") if "train_2bw" in block.text]
    named: dict[str, Any] = {}
    exec(block.text, named)
    [model], options = toy.modules(), (num_microbatches, error_feedback)
    named["train_2bw"](
        model, following_the_factor(adamw(model.parameters())), BATCHES, loss, *options
    )
    return [weight.detach() for weight in model.parameters()]


def following_the_factor(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Update t has the learning rate of trials of the toy."""
    scheduler = LambdaLR(optimizer, toy.lr_factor)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def wrapped(error_feedback: float) -> list[Tensor]:
    [model] = toy.modules()
    delayed = DelayedOptimizer(adamw(model.parameters()), error_feedback=error_feedback)
    scheduler = LambdaLR(delayed, toy.lr_factor)
    for rows in BATCHES:
        delayed.zero_grad()
        for microbatch in rows.chunk(M):
            (loss(model, microbatch) / M).backward()
        delayed.step()
        scheduler.step()
    delayed.finish()
    return [weight.detach() for weight in model.parameters()]


def as_a_trial(num_stages: int, error_feedback: float) -> list[Tensor]:
    schedule = pipedream_2bw(T, num_stages=num_stages, num_microbatches=M, **NO_PHASES)
    trial = toy.emulated(
        schedule,
        lambda parameters: adamw([weight for _, weight in parameters]),
        partial(ErrorFeedback, coefficient=error_feedback, lag=1),
    )
    toy.run(trial, (0, T))
    return toy.weights(trial)


def of_torch(error_feedback: float) -> list[Tensor]:
    [model] = toy.modules()
    optimizer = following_the_factor(adamw(model.parameters()))
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    options = {"update": optimizer.step, "error_feedback": error_feedback}
    schedule = Schedule2BW(stage, M, toy.loss, **options)
    for rows in BATCHES:
        schedule.step(rows[:, :-1], target=rows[:, 1:])
    with schedule.drained():
        return [weight.detach() for weight in model.parameters()]


WAYS: dict[str, Callable[[float], list[Tensor]]] = {
    "DelayedOptimizer": wrapped,
    "one stage": partial(as_a_trial, 1),
    "four stages": partial(as_a_trial, 4),
    "Schedule2BW": of_torch,
}


@pytest.mark.parametrize("error_feedback", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_2bw_to_the_last_bit(way: str, error_feedback: float, one_rank: None) -> None:
    theirs, ours = WAYS[way](error_feedback), printed(M, error_feedback)
    assert ours[0].dtype == torch.float64
    assert all(map(torch.equal, theirs, ours))
