r"""What certificates prove, beside what runs do.

For each model and graph, with S = 5 and D = 2:

* *messages*: the echo near the answer, the proved number of updates until 10⁻⁶ of the error is left
  near the answer, and the number that runs needed to bring the distance from 10⁻⁴ to 10⁻¹⁰;
* *gradient steps of certified size*: the same number, proved from anywhere;
* *the error now*: in a run with messages, bound over true distance (largest entry) at the moments
  at which the run was about 10⁻², 10⁻⁴ and 10⁻⁶ from the answer. "c" marks the bound from
  convexity, where the central one does not hold; "—" marks a distance that was not met.

Chains are trained (full batch, default recipe). The other models are untrained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rules import grid
from tasks import rgg
from torch_geometric.data import Batch, Data
from training_step import THREADS, limit_threads, publish

import hogwild
from hogwild import GSDGNN, EnergyGNN, Inputs, certify, simulate
from hogwild.analysis.errors import error_bounds
from hogwild.tasks import get

STAGGER, DELAY = 5, 2
LEVELS = (1e-2, 1e-4, 1e-6)


def cases(lengths: list[int], epochs: int) -> list[tuple[str, torch.nn.Module, Data]]:
    """Names, models and graphs."""
    found = []
    for length in lengths:
        task = get("chains", length=length)
        result = hogwild.train(task, model="energy-edge", epochs=epochs, replicas=1)
        graphs = Batch.from_data_list(list(task.graphs))
        graphs.x = graphs.x.double()
        found.append((f"chains l = {length}, trained", result.model.double(), graphs))
    for place, edges in (("grid, 5 × 5", grid(5)), ("random geometric, 50", rgg(50).edge_index)):
        nodes = int(edges.max()) + 1
        for name, make in (
            ("EnergyGNN", lambda: EnergyGNN(3, out_channels=2)),
            ("EnergyGNN, node", lambda: EnergyGNN(3, out_channels=2, message="node")),
            ("GSDGNN", lambda: GSDGNN(3, out_channels=2)),
        ):
            torch.manual_seed(0)
            model = make().double()
            data = Data(x=torch.randn(nodes, 3, dtype=torch.float64), edge_index=edges)
            found.append((f"{place}, {name}", model, data))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="10,30", help="of chains; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=300, help="of training; %(default)s")
    parser.add_argument("--ticks", type=int, default=600, help="of runs; default: %(default)s")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for certificates.json and .md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    lengths = [int(x) for x in arguments.lengths.split(",") if x]
    rows: list[list[str]] = []
    cells: list[dict[str, object]] = []
    for name, model, data in cases(lengths, arguments.epochs):
        cell = measure(model, data, arguments.ticks)
        cells.append({"case": name, **cell})
        rows.append([name, *shown(cell)])
        print(rows[-1], flush=True)
    head = ("case", "condition number", "echo", "messages: proved near", "messages: runs",
            "gradient: proved", "error now at 1e-2", "1e-4", "1e-6")  # fmt: skip
    print(publish(arguments.output, "certificates", "Certificates ({}).", head, rows, cells))


def measure(model: torch.nn.Module, data: Data, ticks: int) -> dict[str, object]:
    """The numbers of one case."""
    sent = certify(model, data, STAGGER, DELAY, rule="messages")
    steps = certify(model, data, STAGGER, DELAY, step="certified")
    moments = list(range(3, ticks, 3))
    run = simulate(
        model, data, stagger=STAGGER, delay=DELAY, ticks=ticks, tol=None, history=moments,
        keep_embeddings=True,
    )  # fmt: skip
    answer = model.embed(Inputs.of(data)).value.detach()
    assert run.embeddings is not None
    far = [float((h[0] - answer).abs().max()) for h in run.embeddings]
    bounds = []
    for level in LEVELS:
        at = next((t for t, x in enumerate(far) if x <= level), None)
        if at is None or far[at] < 0.01 * level:
            bounds.append(None)
            continue
        found = error_bounds(model, data, run.embeddings[at][0])
        bounds.append((float(found.entries.max()) / far[at], found.method))
    last = run.embeddings[-1][0]  # the solver stops at a gradient that is not quite zero
    left = [float((h[0] - last).abs().max()) for h in run.embeddings]
    first = [next((t for t, x in enumerate(left) if x <= level), 0) for level in (1e-4, 1e-10)]
    needed = None
    if max(left[-10:]) < 1e-11:
        needed = (moments[first[1]] - moments[first[0]]) / ((STAGGER + 1) / 2)
    return {
        "condition": steps.constants["condition_number"],
        "echo": sent.constants.get("echo"),
        "messages_proved": None if sent.local is None else sent.local.updates,
        "messages_seen": needed,
        "gradient_everywhere": steps.updates,
        "bounds": bounds,
    }


def shown(cell: dict[str, object]) -> list[str]:
    """The numbers of one case, for people."""
    names = ("condition", "echo", "messages_proved", "messages_seen", "gradient_everywhere")
    found = ["—" if cell[name] is None else f"{cell[name]:.3g}" for name in names]
    for bound in cell["bounds"]:  # type: ignore[attr-defined]
        mark = "" if bound is None or bound[1] == "central" else " c"
        found.append("—" if bound is None else f"{bound[0]:.3g}{mark}")
    return found


if __name__ == "__main__":
    main()
