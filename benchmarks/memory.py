r"""Peak memory of a training step: compiled code against torch, on the cells of training_step.py.

Every measurement has its own process. It makes one model of a cell, and three training steps
(forward solve, adjoint, parameter gradients) from a cold start. The peak is the process's largest
resident memory (VmHWM) after these steps, less what is resident before the first one: torch,
hogwild, the task and the model. The first step also plans and allocates workspaces.

    python benchmarks/memory.py --cells chains:1,counting:10
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from training_step import CELLS, SIZES, described, environment, limit_threads, table, write

from hogwild.kernels.native import SWITCH


def resident(field: str) -> float:
    """A field of /proc/self/status, in MB."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(text: str, steps: int) -> dict[str, float]:
    """Peak memory of one cell in this process, in MB above what was resident before."""
    from rivals import build, training_step
    from tasks import TASKS

    name, replicas = text.split(":")
    task = TASKS[name](SIZES["cpu"][name])
    model = build(task, int(replicas))
    before = resident("VmRSS")
    for _ in range(steps):
        model.zero_grad()
        training_step(model, task, None)
    return {"before": before, "peak": resident("VmHWM") - before}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cells = ",".join(cell for cell in CELLS if not cell.startswith("rgg"))
    parser.add_argument("--cells", default=cells, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a cell, in this process
    parser.add_argument("--output", type=Path, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    if arguments.one:
        limit_threads(arguments.threads)
        print(json.dumps(measure(arguments.one, arguments.steps)))
        return
    rows, results = [], []
    for cell in arguments.cells.split(","):
        found = {}
        for kernels in ("on", "off"):
            call = [sys.executable, __file__, "--one", cell, "--steps", str(arguments.steps)]
            if arguments.threads:
                call += ["--threads", str(arguments.threads)]
            said = subprocess.run(
                call, env={**os.environ, SWITCH: kernels}, capture_output=True, text=True
            )
            if said.returncode:
                raise SystemExit(said.stderr)
            found[kernels] = json.loads(said.stdout.splitlines()[-1])
        compiled, torch = found["on"]["peak"], found["off"]["peak"]
        results.append({"cell": cell, **found})
        rows.append([cell, f"{compiled:.1f}", f"{torch:.1f}", f"{compiled / torch:.2f}"])
        print(rows[-1], flush=True)
    place = environment("cpu")
    markdown = f"Peak memory of a training step, MB ({described(place)}).\n\n"
    markdown += table(("cell", "compiled", "torch", "compiled / torch"), rows)
    write(arguments.output, "memory", {"environment": place, "cells": results}, markdown)
    print("\n" + markdown)


if __name__ == "__main__":
    main()
