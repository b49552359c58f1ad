"""Benchmarks run, and the documents' numbers are those of the committed records."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import all as every  # noqa: E402
import rivals  # noqa: E402
import tasks  # noqa: E402

from hogwild.solvers import Newton  # noqa: E402

SHARED = {"all.py", "harness.py", "report.py", "rivals.py", "rivals_jax.py", "tasks.py"}
"""Modules without a measurement of their own."""
OTHERS = {"before_after.py": "two versions", "deadlines.py": "hours", "deadlines_page.py": "a page"}
"""Not on the page of benchmarks, and why."""
SHORT = {
    "deadlines.py": "--tasks robots --models gcn ignn --epochs 2 --schedules 1 --graphs 2 "
    "--ticks 50",
}


def test_every_benchmark_is_run_or_named():
    found = {path.name for path in BENCHMARKS.glob("*.py")}
    assert found == SHARED | {run.script for run in every.RUNS.values()} | set(OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", every.RUNS)
def test_benchmarks_run(name):
    run = every.RUNS[name]
    assert every.call(run, run.tiny, None) == 0


@pytest.mark.slow
def test_deadlines_run():
    run = every.Run("deadlines.py", SHORT["deadlines.py"])
    assert every.call(run, run.tiny, None) == 0


@pytest.mark.parametrize("script", ["report.py", "deadlines_page.py"])
def test_documents_match_the_records(script):
    call = [sys.executable, BENCHMARKS / script, "--check"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_records_and_scripts_of_the_page_exist():
    """Those of today; scripts that are gone stand with their commit."""
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    records = re.findall(r"`(?:results/)?((?:cpu|h200|chunks|cores16|balls)/[\w.-]+)`", text)
    assert len(records) > 20
    for name in records:
        assert (BENCHMARKS / "results" / name).is_file(), name
    for script in re.findall(r"\b(\w+\.py)\b[^`]*`(?! of commit)", text):
        assert (BENCHMARKS / script).is_file(), script


PROBLEMS = {
    "chains": lambda: tasks.chains(20),
    "counting": lambda: tasks.counting(8),
    "sums": lambda: tasks.sums(4, 10),
    "coordinates": lambda: tasks.coordinates(4),
    "rgg": lambda: tasks.rgg(300),
}


def apart(a, b):
    """The relative distance of two tensors."""
    return float((a - b).norm() / b.norm().clamp_min(1e-300))


@pytest.mark.parametrize("name", PROBLEMS)
def test_rivals_agree(name):
    """Energies by a forward pass, and the recipe with tight tolerances where JAX is installed."""
    task = PROBLEMS[name]()
    model = rivals.build(task, 3, Newton(atol=1e-12))
    parameters = {key: p.detach().clone() for key, p in model.named_parameters()}
    h0 = torch.randn(3, len(task.x), 2, dtype=torch.float64)
    energy = rivals.ForwardEnergy(task)
    found = energy.energy(energy.features(parameters), h0.mT)
    assert apart(found, model.energy(h0, rivals.inputs_of(task)).detach().sum(-1)) < 1e-12
    pytest.importorskip("jax")
    from rivals_jax import JaxRecipe

    tight = rivals.Recipe(tolerance=1e-10, max_iter=5000, cg_tolerance=1e-12)
    ours, theirs = (
        contender.load(parameters, h0)()()
        for contender in (rivals.Hogwild(task, model), JaxRecipe(task, tight))
    )
    assert apart(theirs.h, ours.h) < 1e-6
    gradients = (torch.cat([o.gradients[n].flatten() for n in parameters]) for o in (theirs, ours))
    assert apart(*gradients) < 1e-6
    assert not theirs.missed
