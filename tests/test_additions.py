"""What an addition costs: all are made in a copy of the tree, whose tests then run with them.

The additions are the examples of docs/extending.md, moved into the package. CONTRIBUTING.md tells
how many files each of them touches.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.markdown import ROOT, blocks
from tests.support.processes import python

COPIED = ("docs", "pipegap", "tests")
"""What is copied; the rest of the tree is linked."""
EXAMPLES = {block.path: block.text for block in blocks(ROOT / "docs" / "extending.md")}
TESTS = (
    *("tests/analysis/claims/test_claims.py", "tests/analysis/figures/test_conformance.py"),
    *("tests/analysis/test_theory.py", "tests/docs/test_pages.py"),
    *("tests/sweeps/request", "tests/trainer/config/test_config.py", "tests/trainer/corrections"),
    *("tests/trainer/optimizers", "tests/trainer/schedules"),
)
NAMES = (
    "sign_descent or smaller_steps or half_delayed or muon_is_robust or my_gaps or [mine or -mine "
    "or overrides_of_a_scale or explained or every_choice or every_claim"
)
"""The tests of these additions, and those that look at all choices at once."""
NUM_FILES = dict(
    re.findall(r"^\| an? (\w+) \| (\d+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
)
"""Kind of addition → number of files, as the table of CONTRIBUTING.md has it."""


class Edit(NamedTuple):
    """`new` is put before the first `old` of a file, or at its end; a new file is all `new`."""

    new: str
    old: str = ""

    def of(self, text: str) -> str:
        """The text of the edited file."""
        assert self.old in text
        at = text.index(self.old) if self.old else len(text)
        return text[:at] + self.new + text[at:]


def example(path: str, **renamed: str) -> str:
    """A file of docs/extending.md, with its own address in the package."""
    text = EXAMPLES[path]
    for old, new in renamed.items():
        text = text.replace(f"_target_: {old}", f"_target_: {new}.{old}")
    return text


ORACLE = """

def sign_descent(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    for g, factor in batches:
        w = w * (1 - o.lr * factor * o.weight_decay) - o.lr * factor * g.sign()
    return w
"""
SMALLER_STEPS = '''class SmallerSteps(Plain):
    """W(t+1) = W(t) − share · u_t where the gradient is late."""

    def next(self, h: History, t: int) -> Tensor:
        return h.W[t] - (self.o.share if h.delay[t] else 1.0) * h.u[t]


'''
HALF_DELAYED = '''

def half_delayed(num_updates: int, *, num_stages: Few, num_microbatches: Few) -> Schedule:
    """The first half of the stages is one update late; the second half is not."""
    flushed = sync(num_updates, num_stages=num_stages, num_microbatches=num_microbatches)
    late = num_stages // 2
    return replace(flushed, lags=(1,) * late + (0,) * (num_stages - late))
'''
STORES = """    "muon_is_robust": {
        YES: of({"adamw": 0.3, "muon": 0.1}),
        NO: of({"adamw": 0.1, "muon": 0.3}),
        OPEN: of({"adamw": 0.3}),
    },
"""
CORRECTION_YAML = example(
    "mine/correction/smaller_steps.yaml", smaller_steps="pipegap.trainer.corrections"
)
PIPELINE_YAML = example(
    "mine/pipeline/half_delayed.yaml", half_delayed="pipegap.trainer.schedules.recipes"
).replace("recipes.half_delayed.half", "recipes.half")
SCALE = """# As few_updates, with eight layers.
base: [model=tiny_deep, data=wiki, num_updates=400, batch_size=16, seq_len=128, eval_every=100]
"""
SWEEP = """
grid: {optimizer: [lion]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}
seeds: [0, 1, 2]
verdict: A delay costs Lion something if the 95 % interval of the gap lies above 0.
"""
ADDITIONS: Mapping[str, Mapping[str, Sequence[Edit]]] = {
    "optimizer": {
        "pipegap/trainer/optimizers/sign_descent.py": [Edit(EXAMPLES["mine/sign_descent.py"])],
        "pipegap/conf/optimizer/sign_descent.yaml": [
            Edit(
                example(
                    "mine/optimizer/sign_descent.yaml", sign_descent="pipegap.trainer.optimizers"
                )
            )
        ],
        "tests/oracles/optimizers.py": [
            Edit(ORACLE.lstrip() + "\n\n", "Reference = Callable"),
            Edit("sign_descent, ", "adamw, adan"),
        ],
    },
    "correction": {
        "pipegap/trainer/corrections/smaller_steps.py": [Edit(EXAMPLES["mine/smaller_steps.py"])],
        "pipegap/conf/correction/smaller_steps.yaml": [Edit(CORRECTION_YAML)],
        "tests/oracles/corrections.py": [
            Edit(SMALLER_STEPS, "def _average"),
            Edit('    "smaller_steps": SmallerSteps,\n', '    "taylor": Taylor'),
        ],
        "docs/semantics.md": [Edit("\n`smaller_steps`: W(t+1) = W(t) − share · u_t.\n")],
    },
    "schedule": {
        "pipegap/trainer/schedules/recipes.py": [Edit(HALF_DELAYED)],
        "pipegap/conf/pipeline/half_delayed.yaml": [Edit(PIPELINE_YAML)],
        "tests/trainer/schedules/test_schedules.py": [
            Edit(
                '    "half_delayed": lambda stage, m: int(stage < STAGES_OF_CONFORMANCE // 2),\n',
                '    "interleaved_1f1b": lambda',
            )
        ],
        "docs/trial.md": [Edit("| `half_delayed` | theory | 1 |\n", "| `constant_delay` |")],
    },
    "claim": {
        "pipegap/analysis/claims/mine.py": [
            Edit(EXAMPLES["my_claim.py"]),
            Edit("CLAIMS = (CLAIM,)\n"),
        ],
        "tests/analysis/claims/test_claims.py": [Edit(STORES, '    "adamw_over_muon": {')],
    },
    "figure": {
        "pipegap/analysis/figures/mine.py": [
            Edit(EXAMPLES["my_figure.py"]),
            Edit("FIGURES = (FIGURE,)\n"),
        ],
        "pipegap/analysis/figures/__init__.py": [Edit('"mine", ', '"taxes"')],
    },
    "scale": {"pipegap/conf/scale/mine.yaml": [Edit(SCALE)]},
    "sweep": {"pipegap/conf/sweep/mine.yaml": [Edit(SWEEP)]},
}


def test_an_addition_touches_as_few_files_as_promised() -> None:
    assert {kind: str(len(edits)) for kind, edits in ADDITIONS.items()} == NUM_FILES


@pytest.mark.parametrize("kind", ["optimizer", "correction", "schedule"])
def test_a_choice_touches_one_more_file_at_most_than_its_own(kind: str) -> None:
    """Beside its code, its YAML and its oracle."""
    assert len(ADDITIONS[kind]) - 3 <= 1


@pytest.mark.long
def test_the_tests_pass_with_every_addition(tmp_path: Path) -> None:
    """In a copy of what the additions change, with its bytecode, and links to the rest."""
    for path in ROOT.iterdir():
        if path.name in COPIED:
            shutil.copytree(path, tmp_path / path.name, symlinks=True)
        elif path.name != "tmp":
            (tmp_path / path.name).symlink_to(path)
    for edits in ADDITIONS.values():
        for name, of_file in edits.items():
            file = tmp_path / name
            text = file.read_text() if file.exists() else ""
            for edit in of_file:
                text = edit.of(text)
            file.write_text(text)
    command = ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", NAMES]
    process = python(*command, *TESTS, cwd=tmp_path)
    assert process.returncode == 0, process.stdout
