r"""How a training step scales: memory with the solver's iterations, time with the graph.

*Memory.* Gradient descent makes more and more iterations (with a tolerance of zero, so that it
makes all of them). The memory of forward and backward must not grow, because no iteration is
recorded. On a CPU the benchmark counts the bytes of all tensors that autograd saves for the
backward pass (each storage once). On a GPU it counts the peak of allocated memory above the memory
before the training step. The rival is the same descent *unrolled*, differentiated through its
iterations.

*Time.* One training step with the default solver on a random geometric graph of mean degree 6, from
10³ to 10⁶ nodes: from zero embeddings, and from the embeddings of the previous epoch. The report
has the median time, the CPU time of the first step, the peak memory of the process (sizes in rising
order), and the exponent of a least-squares fit of log time against log edges (1 is linear).
``--parts time`` leaves the memory out.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from rivals import EagerRecipe, build, training_step
from tasks import Task, chains, rgg
from torch import Tensor
from training_step import THREADS, clip, environment, limit_threads, table, timed, write

from hogwild import EnergyGNN
from hogwild.solvers import GradientDescent, Newton

T = TypeVar("T")


def prepare(model: EnergyGNN, task: Task, device: str) -> None:
    """Make training steps that are not measured. A graph is analysed once, and small problems are
    recorded on a GPU when they return."""
    for _ in range(2 if device == "cuda" else 1):
        training_step(model, task, None)
    model.zero_grad(set_to_none=False)


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes of the distinct storages that autograd saves while it is entered."""

    def __init__(self) -> None:
        self.kept: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is reused

        def pack(t: Tensor) -> Tensor:
            storage = t.untyped_storage()
            self.kept[storage.data_ptr()] = storage
            return t

        super().__init__(pack, lambda t: t)

    @property
    def total(self) -> int:
        return sum(storage.nbytes() for storage in self.kept.values())


def memory_of(step: Callable[[], T], device: str) -> tuple[float, T]:
    """KiB saved for the backward pass (CPU) or peak KiB allocated (GPU), and the training step's
    result."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1024, result
    saved = SavedBytes()
    with saved:
        result = step()
    return saved.total / 1024, result


def unrolled(task: Task, iterations: int) -> None:
    """Gradient descent differentiated through its iterations, as a rival."""
    model = build(task, 1)
    recipe = EagerRecipe(task)
    parameters = dict(model.named_parameters())
    features = recipe.features(parameters)
    h = torch.zeros(1, 2, len(task.x), dtype=torch.float64, device=task.x.device)
    h.requires_grad_()
    for _ in range(iterations):
        (g,) = torch.autograd.grad(recipe.energy(features, h).sum(), h, create_graph=True)
        h = h - 0.1 * g
    task.loss(recipe.readout(parameters, h)).sum().backward()


def memory(device: str) -> list[dict[str, float | str]]:
    """Memory against iterations, on chains."""
    task = chains().to(device)
    out: list[dict[str, float | str]] = []
    for count in (1, 10, 100, 1000):
        model = build(task, 1, GradientDescent(atol=0.0, max_iter=count))
        prepare(model, task, device)
        kib, (found, _) = memory_of(partial(training_step, model, task, None), device)
        taken = int(found.iterations.max())
        out.append({"how": "implicit", "iterations": taken, "KiB": kib})
    for count in (1, 10, 100):
        kib, _ = memory_of(partial(unrolled, task, count), device)
        out.append({"how": "unrolled", "iterations": count, "KiB": kib})
    for row in out:
        print("  ", row, flush=True)
    return out


def time_of(nodes: int, epochs: int, device: str) -> dict[str, float]:
    """Milliseconds of the first (cold) training step and of the median later (warm) one."""
    task = rgg(nodes).to(device)
    model = build(task, 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=1e-4)
    prepare(build(task, 1, Newton(max_iter=1)), task, device)
    h: Tensor | None = None
    times: list[float] = []
    cpus: list[float] = []
    iterations: list[int] = []
    for _ in range(epochs):
        optimiser.zero_grad()
        cpu = time.process_time()
        ms, (found, _) = timed(partial(training_step, model, task, h), device)
        times.append(ms)
        cpus.append(time.process_time() - cpu)
        iterations.append(int(found.iterations.max()))
        h = found.value.detach()
        clip(model)
        optimiser.step()
    row = {
        "nodes": nodes,
        "edges": task.edge_index.size(1),
        "cold_ms": times[0],
        "warm_ms": statistics.median(times[1:]),
        "cold_iterations": iterations[0],
        "warm_iterations": statistics.median(iterations[1:]),
        "cold_cpu_s": cpus[0],
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print("  ", row, flush=True)
    return row


def exponent(rows: list[dict[str, float]], key: str) -> float:
    """Slope of log time against log edges."""
    edges, ms = ([math.log(row[name]) for row in rows] for name in ("edges", key))
    return float(np.polyfit(edges, ms, 1)[0])


def report(
    folder: Path | None,
    device: str,
    place: dict[str, str | int],
    spent: list[dict[str, float | str]],
    times: list[dict[str, float]],
) -> str:
    """The results as Markdown; also written to a folder where one is given."""
    slopes = {key: exponent(times, key) for key in ("cold_ms", "warm_ms") if len(times) > 1}
    results = {"environment": place, "memory": spent, "time": times, **slopes}
    measure = "peak KiB" if device == "cuda" else "KiB saved for backward"
    markdown = "Scaling of a training step (" + ", ".join(f"{k} {v}" for k, v in place.items())
    markdown += ").\n"
    if spent:
        markdown += "\n" + table(
            ("differentiation", "iterations", measure),
            [(str(r["how"]), str(r["iterations"]), f"{r['KiB']:.0f}") for r in spent],
        )
    markdown += "\n" + table(
        ("nodes", "edges", "cold step, ms", "iterations", "CPU seconds", "warm step, ms",
         "iterations", "peak MiB"),
        [
            (f"{r['nodes']:,}", f"{r['edges']:,}", f"{r['cold_ms']:.1f}",
             f"{r['cold_iterations']}", f"{r['cold_cpu_s']:.1f}", f"{r['warm_ms']:.1f}",
             f"{r['warm_iterations']:g}", f"{r['peak_MiB']:.0f}")
            for r in times
        ],
    )  # fmt: skip
    if slopes:
        markdown += "\nTime grows as edges to the power "
        markdown += f"{slopes['cold_ms']:.2f} (cold) and {slopes['warm_ms']:.2f} (warm)"
        if len(times) > 2:
            last = {key: exponent(times[-2:], key) for key in slopes}
            markdown += f"; between the two largest, {last['cold_ms']:.2f} and "
            markdown += f"{last['warm_ms']:.2f}"
        markdown += ".\n"
    write(folder, "scaling", results, markdown)
    return markdown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument(
        "--nodes",
        default="1000,10000,100000,1000000",
        help="comma-separated sizes of the random geometric graphs; default: %(default)s",
    )
    parser.add_argument("--epochs", type=int, default=6, help="training steps a size; default: 6")
    parser.add_argument("--parts", default="both", choices=("both", "time"))
    parser.add_argument("--output", type=Path, help="folder for scaling.json and .md")
    arguments = parser.parse_args()
    if not all(n.isdecimal() and int(n) > 1 for n in arguments.nodes.split(",")):
        parser.error(f"--nodes {arguments.nodes!r}; expected numbers above 1 such as 1000,10000")
    limit_threads(arguments.threads)
    device = arguments.device

    spent: list[dict[str, float | str]] = []
    if arguments.parts == "both":
        print("memory against iterations", flush=True)
        spent = memory(device)
    print("time against edges", flush=True)
    times: list[dict[str, float]] = []
    for nodes in arguments.nodes.split(","):
        times.append(time_of(int(nodes), max(arguments.epochs, 2), device))
        # Write after every size, so that finished sizes are kept.
        markdown = report(arguments.output, device, environment(device), spent, times)
    print("\n" + markdown)


if __name__ == "__main__":
    main()
