"""The shape of the code base: dependencies point one way, nothing dispatches on a name."""

import ast
from collections.abc import Collection
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.processes import python

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pipegap"
CODE = [*PACKAGE.rglob("*.py")]
TRACKERS = {"wandb", "wandb_workspaces", "tensorboard", "trackio"}
FORBIDDEN = {
    "pipegap": {"ray", "hydra", "torch", "pandas", *TRACKERS},
    "trainer": {"ray", "pandas", "sweeps", "analysis", *TRACKERS},
    "analysis": {"ray", "hydra", "torch", "sweeps", *TRACKERS},
    "sweeps": {"hydra", "pandas"},
}


ROOMS: dict[str, dict[str, set[str]]] = {
    "trainer": {
        "schedules": {"base"},
        "corrections": {"base"},
        "optimizers": {"base"},
        "data": {"base"},
        "models": {"base", "optimizers"},
        "ranks": {"base"},
        "folder": {"base"},
        "store": {"base", "folder"},
        "config": {"base", "corrections", "data", "models", "optimizers", "schedules"},
        "tracing": {"schedules"},
        "stages": {"base", "corrections", "optimizers", "schedules"},
        "compiled": {"base", "corrections", "models", "optimizers", "schedules", "stages"},
        "executors": {"base", "models", "ranks", "schedules", "stages", "tracing"},
        "parts": {
            *("base", "compiled", "corrections", "data", "executors", "models", "optimizers"),
            *("ranks", "schedules", "stages", "tracing"),
        },
        "training": {
            *("base", "config", "data", "executors", "folder", "models", "parts"),
            *("ranks", "schedules", "stages"),
        },
        "trial": {"base", "config", "executors", "folder", "parts", "ranks", "training"},
        "averaged": {"base", "executors", "folder", "models", "parts", "stages"},
        "rehearsal": {"base", "data", "folder", "models", "ranks", "trial"},
        "delayed": {
            *("base", "config", "corrections", "executors", "folder", "optimizers", "schedules"),
            "stages",
        },
        "torch_pipelining": {
            *("base", "corrections", "delayed", "executors", "optimizers", "schedules", "stages"),
            "tracing",
        },
        "megatron": {
            *("base", "corrections", "delayed", "executors", "schedules", "stages"),
            "torch_pipelining",
        },
        "__main__": {"base", "config", "folder", "trial"},
    },
    "sweeps": {
        "request": {"tracking"},
        "plan": {"request"},
        "view": {"request"},
        "cluster": {"plan", "request", "tracking", "view"},
        "commands": {"cluster", "plan", "request", "tracking", "view"},
        "__init__": {"__main__", "plan", "request"},
        "__main__": {"commands"},
    },
    "analysis": {
        "statistics": {"table"},
        "claims": {"statistics", "table"},
        "advice": {"statistics", "table"},
        "theory": {"statistics", "table"},
        "track": {"statistics", "table"},
        "figures": {"statistics", "table"},
        "report": {"advice", "claims", "figures", "statistics", "table"},
        "__init__": {"advice", "statistics", "table"},
        "commands": {"advice", "figures", "report", "table", "theory"},
        "__main__": {"commands"},
    },
}
"""Room → the rooms of its package that it may import."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The syntax of a file, at whatever depth."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports; ours without `pipegap.`."""
    modules = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = "" if "." in node.module else f".{node.names[0].name}"
            modules.add(node.module + inner)
    return frozenset(module.removeprefix("pipegap.") for module in modules)


def test_dependencies_point_one_way() -> None:
    for path in CODE:
        folder = path.relative_to(PACKAGE).parts[0]
        imported = {module.split(".")[0] for module in imports(path)}
        assert not imported & FORBIDDEN.get(folder, FORBIDDEN["pipegap"]), name(path)


def test_trials_and_plans_wait_for_no_import_that_they_do_not_use(tmp_path: Path) -> None:
    """Each takes a second or more; no driver needs the tracker that its trials get, and no trial of
    any store, its lease included, anything of analysis."""
    words = ["sweep=main", "scale=micro", "dry_run=true", f"results={tmp_path}"]
    words += ["grid.optimizer=[adamw]", "seeds=[0]"]
    code = (
        "import sys, pipegap.sweeps.cluster.driver, pipegap.trainer.store.opened; "
        "assert not [name for name in sys.modules if name.startswith('pipegap.analysis')]; "
        "import pipegap.sweeps.__main__ as entry; "
        "import pipegap.sweeps.request.command_line as asked; "
        "[asked.parse_request(['sweep=main', f'tracking={name}']) "
        f"for name in {[path.stem for path in (PACKAGE / 'conf/tracking').glob('*.yaml')]}]; "
        f"assert not {TRACKERS | {'scipy'}} & {{name.split('.')[0] for name in sys.modules}}; "
        f"assert entry.main({words}) == 0; "
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_commands_that_look_or_refuse_do_not_wait_for_torch(tmp_path: Path) -> None:
    """It takes seconds; a word is refused, and a store's sweeps are counted, without a tensor."""
    code = (
        "import sys; from pipegap.sweeps.__main__ import main; "
        f"assert main(['status', 'results={tmp_path}']) == 0; "
        "assert main(['list', 'results=none']) == main(['status', 'sweep=none']) == 2; "
        "assert main(['jobs', 'a=1']) == main(['stop']) == main(['submit', 'sweep=none']) == 2; "
        "assert 'torch' not in sys.modules"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_a_room_imports_only_rooms_below_it() -> None:
    for package, rooms in ROOMS.items():
        for path in python_in(PACKAGE / package):
            room = path.relative_to(PACKAGE).with_suffix("").parts[1]
            modules = {module for module in imports(path) if module.startswith(f"{package}.")}
            assert {*map(room_of, modules)} - {room} <= rooms.get(room, set()), name(path)


def test_a_test_imports_helpers_from_support_and_oracles_only() -> None:
    """Then a test can be moved, renamed or deleted without another one noticing."""
    for path in (ROOT / "tests").rglob("*.py"):
        helpers = {room_of(module) for module in imports(path) if module.startswith("tests.")}
        assert helpers <= {"support", "oracles"}, name(path)


@cache
def names_in(module: str) -> frozenset[str] | None:
    """What can be imported from a module of the project; None of a module that makes names when it
    is asked, and of what is no module of the project."""
    path = ROOT.joinpath(*module.split("."))
    if not (ROOT / module.partition(".")[0]).is_dir():
        return None
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(file.read_text() if file.is_file() else "").body
    defined = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = {node.name for node in defined} | {sibling.stem for sibling in path.glob("*")}
    for node in (n for top in body if top not in defined for n in ast.walk(top)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "__getattr__" in names else frozenset(names)


def test_what_a_test_imports_is_there() -> None:
    """mypy reads no test, and a slow one may not run for long after a name has moved."""
    lost = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                asked = {alias.name for alias in node.names}
                known = names_in(node.module)
                gone = asked - known if known is not None else ()
                lost += [f"{name(path)}: {node.module}.{each}" for each in gone]
    assert lost == []


@pytest.mark.parametrize("package", ["pipegap", "bench", "findings"])
def test_the_notebook_is_known_to_nobody(package: str) -> None:
    """findings/ imports the product, never the other way, and bench/ and findings/ nothing of each
    other."""
    strangers = {"bench"} if package == "findings" else {"findings"}
    for path in python_in(ROOT / package):
        assert not {module.split(".")[0] for module in imports(path)} & strangers, name(path)


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_have_no_circle(package: str) -> None:
    TopologicalSorter(ROOMS[package]).prepare()  # raises CycleError
    assert all(exists(PACKAGE / package, room) for room in ROOMS[package])


def test_modules_have_no_circle() -> None:
    """Not even by an import within a function, which hides one."""
    folders = [PACKAGE, ROOT / "bench", ROOT / "findings"]
    modules = {dotted(path): path for folder in folders for path in python_in(folder)}
    graph = {module: modules_used(path, modules) - {module} for module, path in modules.items()}
    assert len(graph) > 200
    TopologicalSorter(graph).prepare()  # raises CycleError


def python_in(folder: Path) -> list[Path]:
    return [*folder.rglob("*.py")]


def dotted(path: Path) -> str:
    """`pipegap.analysis.report` for pipegap/analysis/report/__init__.py."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules_used(path: Path, modules: Collection[str]) -> set[str]:
    """Those of `modules` that a file imports, at any depth; of a package its __init__ alone."""
    used = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                used.add(inner if inner in modules else str(node.module))
    return used & {*modules}


def room_of(module: str) -> str:
    return module.split(".")[1]


def exists(package: Path, room: str) -> bool:
    return (package / room).is_dir() or (package / f"{room}.py").is_file()


VAGUE = frozenset(
    {
        *("after", "again", "ahead", "alike", "asked", "before", "begun", "beside", "both"),
        *("chosen", "counted", "each", "ended", "few", "found", "given", "held", "here", "kept"),
        *("known", "left", "listed", "looked", "lost", "made", "mine", "named", "near", "now"),
        *("one", "other", "others", "own", "read", "rest", "said", "seen", "shown", "taken"),
        *("theirs", "then", "there", "told", "wanted", "written"),
    }
)
"""Participles and pronouns, which do not say what a variable holds."""


def test_variables_say_what_they_hold() -> None:
    """At most 5 of 1,000 assigned names are a participle or a pronoun alone."""
    folders = [PACKAGE, ROOT / "bench", ROOT / "findings"]
    nodes_of_all = [
        node for folder in folders for path in python_in(folder) for node in nodes(path)
    ]
    names = [
        *(n.id for n in nodes_of_all if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)),
        *(n.arg for n in nodes_of_all if isinstance(n, ast.arg)),
    ]
    vague_names = [name for name in names if name in VAGUE]
    assert len(vague_names) <= 0.005 * len(names), sorted(vague_names)


def test_nothing_dispatches_on_the_name_of_a_choice() -> None:
    """`if optimizer == "muon"` belongs into a YAML's _target_; a report may name what it shows."""
    groups = [folder.name for folder in (PACKAGE / "conf").iterdir() if folder.name != "scale"]
    choices = {p.stem for group in groups for p in (PACKAGE / "conf" / group).glob("*.yaml")}
    choices -= {"sync", "text"}  # the name of an arm too, and a key of a register
    for path in (path for path in CODE if "analysis" not in path.parts):
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                constants = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                compared = set(map(str, constants)) & choices
                assert not compared, f"{name(path)}: {ast.unparse(node)}"
