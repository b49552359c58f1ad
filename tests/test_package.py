"""The package: what it exposes, documents and imports."""

import ast
import importlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import hogwild

ROOT = Path(hogwild.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def module_name(path):
    parts = ["hogwild", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@cache
def tree_of(name):
    return ast.parse(MODULES[name].read_text())


@pytest.fixture(scope="module")
def fresh():
    """A process of its own: what is loaded by ``import hogwild`` and by all of its names, what the
    package has then, and whether functions come before the modules they are in."""
    code = (
        "import hogwild, inspect, json, sys\nloaded = sorted(sys.modules)\n"
        "import hogwild.analysis.sweep\nfrom hogwild.analysis.robustness import Robustness\n"
        "from hogwild import robustness\n"
        "assert hogwild.robustness is robustness and inspect.isfunction(robustness)\n"
        "assert inspect.isfunction(hogwild.sweep)\n"
        "assert hogwild.training.train is hogwild.train\n"
        "exec('from hogwild import *', names := {})\n"
        "assert names['EnergyGNN'] and names['simulate'] and names['robustness'].__name__\n"
        "seen = {'package': loaded, 'names': sorted(sys.modules), 'vars': sorted(vars(hogwild))}\n"
        "print(json.dumps(seen))"
    )
    return json.loads(subprocess.check_output([sys.executable, "-c", code]))


def test_exposes_exactly_all(fresh):
    """Every name in ``__all__`` exists, and no other public name but the subpackages."""
    assert len(set(hogwild.__all__)) == len(hogwild.__all__) <= 30  # few enough to know them all
    for name in hogwild.__all__:
        assert getattr(hogwild, name) is not None
    submodules = {name.split(".")[1] for name in MODULES if "." in name}
    helpers = {"Any", "TYPE_CHECKING", "annotations"}
    assert {n for n in fresh["vars"] if not n.startswith("_")} - submodules == helpers
    assert dir(hogwild) == sorted(hogwild.__all__)
    with pytest.raises(AttributeError, match="module 'hogwild' has no attribute 'tarin'"):
        _ = hogwild.tarin


@pytest.mark.parametrize("name", [n for n in MODULES if "__all__" in MODULES[n].read_text()])
def test_all_is_true(name):
    module = importlib.import_module(name)
    for public in module.__all__:
        assert hasattr(module, public)


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name):
    """Modules, and the classes and functions at their top level, as written in the source."""
    tree = tree_of(name)
    missing = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            missing += [] if ast.get_docstring(node) else [node.name]
    assert not missing


def test_import_is_light(fresh):
    """``import hogwild`` loads nothing; its names load neither optional nor plotting packages."""
    assert not {"torch", "numpy", "scipy", "tqdm"} & set(fresh["package"])
    top = {name.split(".")[0] for name in fresh["names"]}
    assert "torch" in top
    assert not top & {
        "zenoh",
        "ray",
        "matplotlib",
        "jax",
        "pytest",
        "hypothesis",
        "starlette",
        "uvicorn",
    }
    assert "hogwild.testing" not in fresh["names"]


@cache
def imported(name):
    """Modules of this package that a module imports, anywhere in its source."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    out = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            out.add(base)
            out |= {f"{base}.{alias.name}" for alias in node.names}
    return {m for m in out if m in MODULES and m != "hogwild"}


@pytest.mark.parametrize("name", MODULES)
def test_the_library_does_not_import_the_experiments(name):
    """They are in the repository, and not in the wheel."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            assert not [alias for alias in node.names if alias.name.startswith("experiments")]
        elif isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("experiments")


# Earlier stages first: a module imports from its own stage and from earlier ones.
STAGES = [
    "errors", "progress", "files", "keys", "config", "ops", "metrics", "graph", "kernels", "nn",
    "linalg", "problems", "solvers", "engines", "models", "tasks", "asynchrony", "rules",
    "executors", "analysis", "plots", "training", "cluster", "demo", "web", "testing", "api", "cli",
]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in MODULES if n != "hogwild"])
def test_layers(name):
    """No stage imports a later one; networks do not know solvers, nor solvers networks."""
    stage = name.split(".")[1]
    if stage not in STAGES:
        pytest.skip(f"{stage} is a later stage")
    allowed = set(STAGES[: STAGES.index(stage) + 1])
    if stage == "solvers":
        allowed -= {"nn"}
    if stage in ("executors", "analysis"):
        allowed |= {"plots"}  # results draw themselves, and import the means when asked to
    found = {m.split(".")[1] for m in imported(name)}
    assert found <= allowed


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith("hogwild.models.")])
def test_models_know_no_engine(name):
    """They ask the list of engines, and no engine by its name."""
    assert not [m for m in imported(name) if m.startswith("hogwild.engines.")]


@pytest.mark.parametrize("stage", [*STAGES[: STAGES.index("models")]])
def test_early_stages_do_not_reach_models(stage):
    """Nor indirectly: the transitive imports stay clear of models and testing."""
    todo = [m for m in MODULES if m.split(".")[1:2] == [stage]]
    assert todo
    seen = set()
    while todo:
        here = todo.pop()
        if here not in seen:
            seen.add(here)
            todo += imported(here)
    assert not [m for m in seen if m.split(".")[1] in ("models", "testing")]


def test_neither_torch_nor_pyg_is_imported():
    code = (
        "import sys; sys.modules.update(torch=None, torch_geometric=None, hogwild=None)\n"
        "import hogwild_node, hogwild_node.tree, hogwild_node.rules.messages\n"
        "print(sorted(m.split('.')[0] for m in sys.modules if m.startswith(('torch', 'scipy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['torch', 'torch_geometric']"  # as None: they cannot be imported


@pytest.mark.parametrize("old", hogwild._MOVED)
def test_modules_that_moved_are_found_with_a_warning(old):
    new = importlib.import_module(hogwild._MOVED[old])
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new.__name__}"):
        found = importlib.import_module(old)
    assert all(getattr(found, name) is value for name, value in vars(new).items() if name[0] != "_")
