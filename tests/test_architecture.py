"""The shape of the code base: dependencies point one way, nothing dispatches on a name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [path for part in ("trainer", "sweeps", "analysis") for path in (ROOT / part).rglob("*.py")]
TRACKERS = {"wandb", "wandb_workspaces", "tensorboard"}
FORBIDDEN = {
    "trainer": {"ray", "pandas", "sweeps", "analysis", *TRACKERS},
    "analysis": {"ray", "hydra", "torch", "sweeps", *TRACKERS},
    "sweeps": {"hydra", "pandas"},
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", CODE, ids=name)
def test_dependencies_point_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0]
    assert not {module.split(".")[0] for module in imports(path)} & FORBIDDEN[part]


def test_hydra_is_known_in_one_place() -> None:
    users = {name(path) for path in CODE if any(m.startswith("hydra") for m in imports(path))}
    assert users == {"trainer/compose.py"}


def test_wandb_is_known_in_its_tracker_and_its_dashboard() -> None:
    users = {name(p) for p in CODE if any(m.split(".")[0] in TRACKERS for m in imports(p))}
    assert users == {"sweeps/tracking/wandb_tracker.py", "sweeps/tracking/workspace.py"}


def test_no_tracker_is_imported_unless_it_is_chosen() -> None:
    """They are slow; a driver needs none of them."""
    code = (
        "import sys, sweeps.run, sweeps.request; "
        "[sweeps.request.request(['sweep=main', f'tracking={name}']) "
        "for name in ('none', 'wandb', 'tensorboard')]; "
        f"assert not {TRACKERS} & {{module.split('.')[0] for module in sys.modules}}"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", CODE, ids=name)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 250
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, node.name


@pytest.mark.parametrize("path", [p for p in CODE if "analysis" not in p.parts], ids=name)
def test_nothing_dispatches_on_the_name_of_a_choice(path: Path) -> None:
    """`if optimizer == "muon"` belongs into a YAML's _target_; a report may name what it shows."""
    groups = [folder.name for folder in (ROOT / "conf").iterdir() if folder.name != "scale"]
    choices = {p.stem for group in groups for p in (ROOT / "conf" / group).glob("*.yaml")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            constants = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            compared = set(map(str, constants)) & choices
            assert not compared - {"sync"}, ast.unparse(node)  # sync is the name of an arm too
