"""2BW in Megatron Core, which lives in an environment of its own, equals the plain loop of
docs/semantics.md: on CPUs over gloo, by tests/support/megatron_run.py."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.markdown import ROOT

OWN = ROOT / ".venv" / "megatron" / "bin" / "python"
pytestmark = pytest.mark.slow
CHECKOUT = os.environ.get("MEGATRON_LM", "")
Settings = list[tuple[Any, ...]]
"""Arguments of `tests.support.megatron_gpt.Setting`: words, stages, tensor parallel, replicas."""
ON_TWO: Settings = [
    ("control", 2),
    ("bf16+dist+ef", 2),
    ("clip+drain+ef+control", 2),
    ("tied+drain+ef+control", 2),
    ("tied+narrow+bf16+ef+control", 2),
    ("start+drain+ef", 2),
    ("plain+bf16+ef", 2),
    ("experts+bf16+dist+ef+control", 2),
    ("free+recompute+fused+drain+ef", 2),
    ("taylor", 2),
    ("gradients+drain", 2),
    ("prediction+start+drain", 2),
    ("adaptive+bf16+drain", 2),
]
MOST = "overlap+gather+buckets+recompute+free+fused+drain"
ALL = f"{MOST}+ef"
ON_FOUR: Settings = [
    ("bf16+drain+ef+control", 4),
    ("three+ef", 4),
    ("tied+clip+drain+ef", 4),
    (f"bf16+dist+{ALL}+control", 2, 1, 2),
    (f"dist+{ALL}", 2, 1, 2),
    (f"experts+bf16+dist+{ALL}", 2, 1, 2),
    (f"prediction+bf16+dist+{MOST}", 2, 1, 2),
    ("tied+bf16+dist+drain+ef+control", 2, 1, 2),
    ("dist+clip+drain+ef+control", 2, 2, 1),
    ("bf16+dist+overlap+gather+start+ef", 1, 1, 4),
]
SAVED: Settings = [("ef", 2), ("bf16+ef", 2), ("bf16+dist+ef", 2)]
SAVED_OTHERWISE: Settings = [("prediction+bf16+dist", 2), ("adaptive+bf16", 2)]
SAVED_BY_REPLICAS: Settings = [(f"bf16+dist+{ALL}", 2, 1, 2)]
NEAR = "clip", "tied", "tp 2"
"""Where Megatron's 1F1B is not the loop's to the bit either: it sums in another order."""


PLANS: dict[int, dict[str, Settings]] = {
    2: {
        "loops": [*ON_TWO, *ON_FOUR, *SAVED, *SAVED_OTHERWISE],
        "numbers": ON_TWO,
        "mutated": [("bf16+dist+drain+ef", 2)],
        "resumed": SAVED + SAVED_OTHERWISE,
        "delayed": SAVED,
        "refused": [],
    },
    4: {
        "numbers": ON_FOUR,
        "messages": [],
        "slept": [],
        "mutated": SAVED_BY_REPLICAS,
        "resumed": SAVED_BY_REPLICAS,
    },
}
"""Number of ranks → what they run, in order: the later ones leave traces in the process."""


def interpreter() -> str:
    """That has Megatron Core."""
    python = sys.executable if find_spec("megatron") else str(OWN)
    if not Path(python).exists():
        pytest.skip("no megatron-core: make megatron")
    return python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what each number of ranks found."""
    folder = tmp_path_factory.mktemp("megatron")
    run("tests.support.megatron_run", str(folder), json.dumps(PLANS))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[int, Any]:
    """Number of ranks → program → what it found."""
    return {num: json.loads((folder / f"{num}.json").read_text()) for num in PLANS}


@pytest.mark.parametrize(("num_ranks", "settings"), [(2, ON_TWO), (4, ON_FOUR)])
def test_it_trains_by_the_equation(
    found: dict[int, Any], num_ranks: int, settings: Settings
) -> None:
    """Weights and losses to the bit, and where Megatron's own 1F1B is not, as near as that."""
    numbers = found[num_ranks]["numbers"]
    assert len(numbers) == len(settings) + sum("control" in words for words, *_ in settings)
    for name, gaps in numbers.items():
        control = numbers.get(name.replace("2BW", "1F1B"))
        if not any(word in name for word in NEAR):
            assert (gaps["weights"], gaps["losses"]) == (0, 0), name
        elif "bf16" in name:  # a rounding flips
            assert gaps["losses"] < 3 * control["losses"] < 3e-3, name
        else:
            assert gaps["losses"] < 2e-6, name
        assert gaps["norms"] < (1e-2 if "narrow" in name else 1e-3 if "tied" in name else 1e-6)
        assert gaps.get("copies", 0) == 0, "copies of a tied weight stay equal"


def test_a_checkpoint_of_megatrons_goes_on_to_the_bit(found: dict[int, Any]) -> None:
    """After an even and an odd number of updates: both sets of weights."""
    resumed = {**found[2]["resumed"], **found[4]["resumed"]}
    assert len(resumed) == 2 * len(SAVED + SAVED_BY_REPLICAS) + len(SAVED_OTHERWISE)
    assert {(gaps["weights"], gaps["losses"]) for gaps in resumed.values()} == {(0, 0)}


def test_its_mistakes_are_noticed(found: dict[int, Any]) -> None:
    gaps = [pair for num in PLANS for pair in found[num]["mutated"].items()]
    for name, gap in gaps:
        assert gap == 0 if name == "none" else gap > 1e-2, name
    assert len(gaps) == 8 + 3


def test_what_cannot_be_is_refused_in_one_line_on_every_rank(
    found: dict[int, Any],
) -> None:
    refused = found[2]["refused"]
    for name, (first, second) in refused.items():
        assert first == second, name
        assert first != "nothing", name
        assert "\n" not in first
    kinds = {name: said[0].split()[0] for name, said in refused.items()}
    late = {"evaluation", "saving", "no step", "afterwards"}
    assert {name for name, kind in kinds.items() if kind == "RuntimeError"} == late
    assert kinds["not finite"] == "Diverged"
    assert {kinds[name] for name in kinds.keys() - late - {"not finite"}} == {"BadInput"}
    assert "Group.cached_param_buffer_shard_list moved" in refused["names"][0], "on one rank alone"


def test_no_rank_waits(found: dict[int, Any]) -> None:
    """Passes that sleep: 2BW has no bubble, and the clip and the messages bring none."""
    slept = found[4]["slept"]
    assert slept["2BW"] < 1.15
    assert slept["1F1B"] > 1.6
    assert slept["2BW with reductions"] > slept["2BW"] + 0.05, "what `install` leaves out"


def test_messages_arrive_without_the_next_call(found: dict[int, Any], folder: Path) -> None:
    """Else a wait for all ranks between two calls would last for ever. It leaves a trace, too."""
    assert found[4]["messages"] == {"num_left": 0}
    assert "measured" in (folder / "timeline.svg").read_text()


def test_delayed_steps_train_by_the_equation(found: dict[int, Any]) -> None:
    """By Megatron's 1F1B, resumed from its checkpoint, too."""
    delayed = found[2]["delayed"]
    assert len(delayed) == 6
    assert {(gaps["weights"], gaps["losses"]) for gaps in delayed.values()} == {(0, 0)}


def run(*words: str) -> None:
    """Runs a module of Python with these arguments."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [interpreter(), "-m", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def differences(program: str, package: str, folder: Path) -> Any:
    """What a program found with a package of the environment."""
    look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{package}'))"
    if subprocess.run([interpreter(), "-c", look], check=False).returncode:
        pytest.skip(f"no {package}: make megatron")
    run(f"tests.support.{program}", str(folder))
    return json.loads((folder / f"{program}.json").read_text())


def test_the_train_step_of_megatron_bridge_trains_by_2bw(tmp_path: Path) -> None:
    """To the bit of the plain loop; its checkpoints begin drained."""
    gaps = differences("megatron_bridge", "megatron.bridge", tmp_path)
    assert (gaps["weights"], gaps["losses"], gaps["num_losses"]) == (0, 0, 6)
    assert gaps["is_saved"]
    assert gaps["norms"] < 1e-6


def test_the_pipeline_of_automodel_trains_by_2bw(tmp_path: Path) -> None:
    """`Schedule2BW` on the stages that it makes of a Llama of transformers, in fp32."""
    gaps = differences("automodel", "nemo_automodel", tmp_path)
    assert gaps["losses"] < 2e-6
    assert gaps["weights"] < 2e-5, "Adam divides roundings by small gradients"
    assert gaps["num_weights"] == 11


def losses(folder: Path, way: str, *options: str) -> Any:
    """Of training and of validation, of pretrain_gpt.py."""
    launcher = "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"
    run(*launcher, "tests.support.megatron_lm", str(folder), way, *options)
    return json.loads((folder / f"{way}.json").read_text())


@pytest.mark.skipif(not CHECKOUT, reason="no checkout of Megatron-LM in MEGATRON_LM: core_v0.16.1")
def test_the_loop_of_megatron_lm_trains_by_2bw(tmp_path: Path) -> None:
    """To the losses of `DelayedSteps` in its 1F1B, also when it saved, stopped and went on."""
    whole, delayed = losses(tmp_path, "2BW"), losses(tmp_path, "delayed")
    assert whole["training"] == delayed["training"]
    assert whole["validation"] == pytest.approx(delayed["validation"], rel=0, abs=2e-6)
    saved = "--save", str(tmp_path / "saved"), "--save-interval", "3"
    first = losses(tmp_path, "2BW", *saved, "--exit-interval", "3")
    rest = losses(tmp_path, "2BW", "--load", str(tmp_path / "saved"))
    assert first["training"] + rest["training"] == whole["training"]
    assert len({*whole["training"]}) == 6
