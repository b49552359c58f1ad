"""All benchmarks of docs/benchmarks.md, one after the other: ``make bench-all``.

``python benchmarks/all.py`` measures everything that the page shows on a CPU, and
``--device cuda`` what it shows on a GPU. Records and tables go to ``benchmarks/results/cpu`` (or
the folder that ``--output`` names). ``--tiny`` runs every benchmark for a few seconds, to see that
it works, and ``--only`` those whose name holds a word. ``$HOGWILD_DATA`` names the folder of the
data sets; a benchmark that fails is named at the end, and the others run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """A command of the page: the script, and its flags on each machine."""

    script: str
    tiny: str
    cpu: str | None = ""
    cuda: str | None = None


RUNS = {
    "training step": Run(
        "training_step.py",
        "--cells chains:1:10 --epochs 5 --samples 1 --rivals jax",
        "--threads 2 --samples 3 --epochs 200 --rivals jax",
        "--device cuda --threads 2 --samples 3 --epochs 200",
    ),
    "epochs": Run(
        "epochs.py", "--sets MUTAG --widths 2 --epochs 2", "--threads 2 --epochs 8 --models "
        "edge;attention",
    ),
    "soft epochs": Run(
        "epochs.py", "--sets MUTAG --widths 2 --epochs 2 --models soft",
        "--layers 6 --widths 64 --models soft --epochs 8 --threads 1 --clock cpu "
        "--name epochs-soft",
    ),
    "replicas": Run(
        "ensemble.py",
        "--tasks chains --models gcn,energy-edge --replicas 3 --singles 1 --epochs 2",
        "--threads 2 --tasks chains,counting --models gcn,ignn,energy-edge --epochs 8",
        "--device cuda --singles 2 --epochs 8",
    ),
    "simulator": Run("ticks.py", "--cells 50x2x1 --seconds 0.2", "--threads 2 --seconds 0.6"),
    "rules": Run("rules.py", "--lengths 5 --epochs 20 --seeds 1 --runs 1 --ticks 200"),
    "layers": Run(
        "rules.py", "--measure layers --tasks chains --epochs 3 --seeds 1 --runs 1 --ticks 100",
        "--measure layers --epochs 300 --seeds 2 --runs 3 --ticks 3000",
    ),
    "swarm that moves": Run(
        "motion.py", "--models gsd,gcn --nodes 8 --degree 3 --changes 2 --updates 20"
    ),
    "stream": Run(
        "motion.py", "--measure stream --nodes 300 --updates 3 --cold 1",
        "--measure stream --updates 200",
    ),
    "an agent": Run("swarm.py", "--start --transports udp --epochs 20", "--start"),
    "swarms": Run("swarm.py", "--sizes --only nothing", "--sizes --seconds 150"),
    "messages and balls": Run("swarm.py", "--rules --runs 1 --epochs 20", "--rules --runs 5"),
    "faults": Run("swarm.py", "--faults --only nothing", "--faults --rate 20 --seconds 25"),
    "a node in C": Run("c_agent.py", "--updates 100"),
    "cluster": Run(
        "cluster.py", "--side 10 --workers 2 --models gsd --rounds 1", "--rounds 3 --threads 1"
    ),
    "large graphs": Run(
        "large.py", "--nodes 1000 --models gsd --threads 1", "--threads 2",
        "--device cuda --nodes 100000,1000000",
    ),
    "memory": Run("large.py", "--training --cells chains:1", "--training --threads 2"),
}  # fmt: skip


def call(run: Run, flags: str, output: Path | None) -> int:
    """The exit status of a benchmark."""
    words = [sys.executable, str(HERE / run.script), *flags.split()]
    words += [] if output is None else ["--output", str(output)]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, check=False).returncode


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--output", type=Path, default=HERE / "results" / "cpu")
    flags.add_argument("--tiny", action="store_true", help="run for seconds, write nothing")
    flags.add_argument("--only", default="", help="benchmarks whose name holds this")
    given = flags.parse_args()
    failed = []
    for name, run in RUNS.items():
        chosen = run.tiny if given.tiny else getattr(run, given.device)
        if given.only in name and chosen is not None:
            print(f"{name}: {run.script} {chosen}", flush=True)
            failed += [name] * (call(run, chosen, None if given.tiny else given.output) != 0)
    if failed:
        sys.exit(f"these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
