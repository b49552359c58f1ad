"""The documents' numbers are those of the committed results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHORT = {
    "baselines.py": "--epochs 3 --runs 1 --ticks 100 --tasks chains",
    "c_agent.py": "--updates 100",
    "cluster.py": "--side 10 --workers 2 --models gsd --rounds 1",
    "certificates.py": "--lengths 4 --epochs 5 --ticks 60",
    "deadlines.py": "--tasks robots --models gcn ignn --epochs 2 --schedules 1 --graphs 2 "
    "--ticks 50",
    "deadlines_page.py": "--check",
    "ensemble.py": "--tasks chains --models gcn,energy-edge --replicas 3 --singles 1 --epochs 2",
    "epochs.py": "--sets MUTAG --widths 2 --epochs 2",
    "large.py": "--nodes 1000 --models gsd --threads 1",
    "memory.py": "--cells chains:1 --steps 1",
    "motion.py": "--models gsd,gcn --nodes 8 --degree 3 --changes 2 --updates 20",
    "rivals.py": "--check",
    "rules.py": "--lengths 5 --epochs 20 --seeds 1 --runs 1 --ticks 200",
    "rules.py, cycles": "--cycles --runs 1 --ticks 60",
    "steps.py": "--tasks mutag --schedules 1 --graphs 2 --ticks 20",
    "swarm_rules.py": "--memory --balls --nodes 9 --runs 1 --epochs 20",
    "ticks.py": "--cells 50x2x1 --seconds 0.2",
    "stream.py": "--nodes 300 --updates 3 --cold 1",
    "training_step.py": "--cells chains:1:10 --epochs 5 --samples 1 --rivals eager",
}
"""Benchmarks that run in seconds, each with its flags."""
LONG = {"before_after.py", "page.py", "report.py", "rivals_jax.py", "swarm.py", "tasks.py"}
"""The others need a second version, a browser, JAX or minutes, or are no commands with flags."""


def test_every_benchmark_is_run_or_named():
    found = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert found == {name.partition(",")[0] for name in SHORT} | LONG


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_benchmarks_run(name):
    place = ROOT / "benchmarks" / name.partition(",")[0]
    subprocess.run([sys.executable, place, *SHORT[name].split()], check=True)


def test_documents_match_the_results():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "report.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_deadlines_match_the_results():
    place = ROOT / "benchmarks" / "deadlines_page.py"
    done = subprocess.run(
        [sys.executable, place, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_table_of_steps_is_that_of_the_page():
    place = ROOT / "benchmarks" / "steps.py"
    done = subprocess.run(
        [sys.executable, place, "--table"], capture_output=True, text=True, check=True
    )
    assert done.stdout in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
