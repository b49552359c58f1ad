r"""Cost of a training step: hogwild against the paper's recipe, on the same snapshots.

A training step is the forward solve, the adjoint solve and the parameter gradient; the optimiser is
excluded for all contenders. For each cell (a task and a number of replicas):

1. An ``EnergyGNN`` with its default solver is trained full-batch in float64 (AdamW at 0.005, weight
   decay 1e-4, the gradient norm of each replica clipped at 1, embeddings warm started from the
   previous epoch). Every training step is timed, as a cross-check ("all epochs").
2. A snapshot is kept at a few epochs, the midpoints of equal parts of the training: the parameters,
   and the exact embeddings of the previous epoch.
3. On every snapshot each contender makes the same training step from the same warm start:
   ``hogwild`` (default solver, tolerance 1e-8 on the largest entry; on a GPU one replay of the step
   that was recorded at the first snapshot, as in ``hogwild.train``) and ``jax`` (the recipe
   compiled by JAX; compilation excluded). The recipe stops after
   50 iterations, converged or not. ``jax-converged`` is the compiled recipe with as many iterations
   as it needs to meet its tolerance (at most 10,000). A training step
   shorter than a second is repeated up to five times and its median taken, after one that is not
   measured.

The table has hogwild's mean milliseconds over the snapshots, the rivals' times as multiples, the
2-norm of the energy's gradient at the returned embeddings (by autograd for all contenders;
median over snapshots of the worst replica), the share of snapshots at which the recipe missed its
own tolerance, and the distance of its parameter gradient from hogwild's (relative, median). Compare
cells only within one process on one machine.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from harness import Record, limit_threads, parser
from rivals import (
    Contender,
    ForwardEnergy,
    Hogwild,
    Outcome,
    Parameters,
    Recipe,
    TrainingStep,
    build,
)
from tasks import TASKS, Task
from torch import Tensor

from hogwild import EnergyGNN

T = TypeVar("T")
LEARNING_RATE, WEIGHT_DECAY, CLIP = 0.005, 1e-4, 1.0
CELLS = ("chains:1", "chains:10", "chains:50", "counting:1", "counting:10", "counting:50",
         "sums:1", "coordinates:1", "rgg:1")  # fmt: skip
SIZES = {
    "cpu": {"chains": 100, "counting": 50, "sums": 200, "coordinates": 135, "rgg": 100_000},
    "cuda": {"chains": 100, "counting": 50, "sums": 1800, "coordinates": 1350, "rgg": 100_000},
}
RIVALS = {
    "jax": "JAX recipe",
    "jax-converged": "JAX recipe, converged",
}
LENGTHS = {"rgg": (20, 3)}  # (epochs, snapshots) where they are not (500, 10)


@dataclass(frozen=True)
class Cell:
    task: str
    replicas: int
    size: int
    epochs: int
    samples: int

    @classmethod
    def parse(cls, text: str, device: str, epochs: int | None, samples: int | None) -> Cell:
        """From ``TASK[:REPLICAS[:SIZE]]``."""
        name, *numbers = text.split(":")
        if name not in TASKS or len(numbers) > 2 or not all(n.isdecimal() for n in numbers):
            raise SystemExit(
                f"cell {text!r}; expected TASK[:REPLICAS[:SIZE]] with TASK one of {sorted(TASKS)}"
            )
        replicas = int(numbers[0]) if numbers else 1
        size = int(numbers[1]) if len(numbers) == 2 else SIZES[device][name]
        usual = LENGTHS.get(name, (500, 10))
        epochs = epochs or usual[0]
        return cls(name, replicas, size, epochs, min(samples or usual[1], epochs - 1))

    def __str__(self) -> str:
        return f"{self.task} ({self.size}), R = {self.replicas}"


@dataclass(frozen=True)
class Snapshot:
    epoch: int
    parameters: Parameters
    h0: Tensor  # [R, N, k]


@dataclass
class Contest:
    """One contender on one cell; every list has one entry per snapshot."""

    ms: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    adjoint_iterations: list[int | None] = field(default_factory=list)
    residual_max: list[float] = field(default_factory=list)
    residual_2: list[float] = field(default_factory=list)  # of gradients only
    gradient_error: list[float] = field(default_factory=list)
    missed: list[bool] = field(default_factory=list)


# -- measuring ------------------------------------------------------------------------------------


def timed(step: Callable[[], T], device: str) -> tuple[float, T]:
    """Milliseconds of one call, the device's queue drained before and after, and its result."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start), result


def repeated(step: Callable[[], Callable[[], Outcome]], device: str) -> tuple[float, Outcome]:
    """Median milliseconds after one call that is not measured; one call suffices above a second."""
    first, result = timed(step, device)
    times: list[float] = []
    while len(times) < 5 and (not times or first < 1e3):
        ms, result = timed(step, device)
        times.append(ms)
    return statistics.median(times), result()


def clip(model: EnergyGNN) -> None:
    """Scale the gradient of every replica down to norm ``CLIP``."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]  # [R, …] each
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    scale = (CLIP / norm).clamp_max(1.0)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


def train(cell: Cell, task: Task, device: str) -> tuple[list[Snapshot], list[float], int]:
    """Snapshots, milliseconds of every epoch's training step, and how many missed the tolerance."""
    model = build(task, cell.replicas)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    wanted, step = moments(cell.epochs, cell.samples), TrainingStep(task, model)
    snapshots: list[Snapshot] = []
    times: list[float] = []
    h: Tensor | None = None
    missed = 0
    for epoch in range(cell.epochs):
        if epoch in wanted and h is not None:
            parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
            snapshots.append(Snapshot(epoch, parameters, h))
        optimiser.zero_grad()
        ms, (found, losses) = timed(partial(step, h), device)
        times.append(ms)
        missed += not bool(found.converged.all())
        h = found.value.detach()
        clip(model)
        optimiser.step()
        if epoch + 1 in {round(cell.epochs * i / 4) for i in range(1, 5)}:
            print(
                f"  epoch {epoch + 1}: mean loss {float(losses.mean()):.4g}, "
                f"{statistics.fmean(times):.1f} ms a step so far",
                flush=True,
            )
    return snapshots, times, missed


def judge(energy: ForwardEnergy, parameters: Parameters, h: Tensor) -> tuple[float, float]:
    """Max-norm and 2-norm of the energy's gradient at ``h``, of the worst replica."""
    with torch.no_grad():
        features = energy.features(parameters)
    _, gradient = energy.value_and_gradient(features, h.mT.contiguous())
    flat = gradient.flatten(1)
    return float(flat.abs().amax()), float(flat.norm(dim=1).amax())


def compare(
    snapshots: list[Snapshot], task: Task, contenders: dict[str, Contender], device: str
) -> dict[str, Contest]:
    """Time every contender on every snapshot."""
    records = {name: Contest() for name in contenders}
    energy = ForwardEnergy(task)
    for snapshot in snapshots:
        reference: Tensor | None = None
        for name, contender in contenders.items():
            ms, outcome = repeated(contender.load(snapshot.parameters, snapshot.h0), device)
            flat = torch.cat([outcome.gradients[n].flatten() for n in snapshot.parameters])
            reference = flat if reference is None else reference  # hogwild comes first
            largest, norm = judge(energy, snapshot.parameters, outcome.h)
            record = records[name]
            record.ms.append(ms)
            record.iterations.append(outcome.iterations)
            record.adjoint_iterations.append(outcome.adjoint_iterations)
            record.residual_max.append(largest)
            record.residual_2.append(norm)
            record.gradient_error.append(float((flat - reference).norm() / reference.norm()))
            record.missed.append(outcome.missed)
            print(
                f"  epoch {snapshot.epoch}, {name}: {ms:.1f} ms, {outcome.iterations} iterations, "
                f"|g|_2 = {norm:.1e}" + (", missed its tolerance" if outcome.missed else ""),
                flush=True,
            )
    return records


# -- reporting ------------------------------------------------------------------------------------


def moments(epochs: int, samples: int) -> set[int]:
    """The epochs of ``samples`` snapshots, equally spaced and not the first."""
    return {1 + int((i + 0.5) * (epochs - 1) / samples) for i in range(samples)}


HEAD = ("cell", "epochs", "hogwild, ms", *RIVALS.values(), "residual: hogwild",
        "residual: recipe", "recipe missed its tolerance", "recipe's ∇θ off by")  # fmt: skip


def ratio(cell: dict[str, Any], rival: str) -> float | None:
    """Mean time of a rival divided by hogwild's mean time, on the same snapshots."""
    if rival not in cell["contenders"]:
        return None
    ours, theirs = (statistics.fmean(cell["contenders"][n]["ms"]) for n in ("hogwild", rival))
    return theirs / ours


def times(value: float | None) -> str:
    """A ratio, for people."""
    if value is None:
        return "not run"
    return f"{value:.2f}×" if value < 1.0 else f"{value:.1f}×"


def row(cell: dict[str, Any]) -> list[str]:
    """The line of a cell in the table."""
    runs = cell["contenders"]
    name = f"{cell['task']} ({cell['size']:,}), {cell['replicas']} replica"
    line = [name + ("s" if cell["replicas"] > 1 else ""), str(cell["epochs"])]
    line.append(f"{statistics.fmean(runs['hogwild']['ms']):.1f}")
    line += [times(ratio(cell, rival)) for rival in RIVALS]
    line.append(f"{statistics.median(runs['hogwild']['residual_2']):.0e}")
    recipe = runs.get("jax")
    if recipe is None:
        return line + ["not run"] * 3
    missed = recipe["missed"]
    line.append(f"{statistics.median(recipe['residual_2']):.0e}")
    line.append(f"{statistics.fmean(missed):.0%} of {len(missed)}")
    line.append(f"{statistics.median(recipe['gradient_error']):.0e}")
    return line


def rivals_for(task: Task, wanted: Sequence[str], device: str) -> dict[str, Contender]:
    """The rivals that can run here; prints the others."""
    found: dict[str, Contender] = {}
    limits = {"jax": Recipe().max_iter, "jax-converged": 10_000}
    compiled = {name: limit for name, limit in limits.items() if name in wanted}
    if compiled:
        if importlib.util.find_spec("jax") is None:
            print("  jax is not installed: its column is skipped")
        else:
            from rivals_jax import JaxRecipe, jax_device

            if jax_device(device) is None:
                print(f"  this jax has no {device} device: its column is skipped")
            else:
                jitted = JaxRecipe(task)
                found |= {name: jitted.limited(limit) for name, limit in compiled.items()}
    return found


def main() -> None:
    flags = parser(__doc__, "training_step")
    flags.add_argument(
        "--cells",
        default=",".join(CELLS),
        help="comma-separated TASK[:REPLICAS[:SIZE]]; SIZE is the number of graphs (sums, "
        "coordinates), of nodes (rgg), the length (chains) or the longest (counting); "
        "default: %(default)s",
    )
    flags.add_argument(
        "--rivals",
        default=",".join(RIVALS),
        help=f"some of {', '.join(RIVALS)}; '' for none; default: %(default)s",
    )
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--epochs", type=int, help="default: 500, rgg 20")
    flags.add_argument("--samples", type=int, help="snapshots a cell; default: 10, rgg 3")
    arguments = flags.parse_args()
    limit_threads(arguments.threads)
    device, wanted = arguments.device, [r for r in arguments.rivals.split(",") if r]
    if unknown := set(wanted) - set(RIVALS):
        flags.error(f"unknown rivals {sorted(unknown)}; expected some of {', '.join(RIVALS)}")
    title = "A training step against the paper's recipe"
    record = Record(arguments.output, "training_step", title, HEAD, device)
    for text in arguments.cells.split(","):
        cell = Cell.parse(text, device, arguments.epochs, arguments.samples)
        print(f"{cell}: {cell.epochs} epochs, {cell.samples} snapshots", flush=True)
        task = TASKS[cell.task](cell.size).to(device)
        snapshots, epochs_ms, missed = train(cell, task, device)
        contenders: dict[str, Contender] = {"hogwild": Hogwild(task, build(task, cell.replicas))}
        contenders |= rivals_for(task, wanted, device)
        records = compare(snapshots, task, contenders, device)
        found = asdict(cell) | {
            "nodes": len(task.x),
            "edges": task.edge_index.size(1),
            "snapshot_epochs": [s.epoch for s in snapshots],
            "epochs_ms": epochs_ms,
            "epochs_missed": missed,
            "contenders": {name: asdict(contest) for name, contest in records.items()},
        }
        record.add(row(found), found)


if __name__ == "__main__":
    main()
