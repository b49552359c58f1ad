r"""Messages on badly scaled energies with cycles: whether runs stay bounded and arrive.

The energies are untrained, on small random graphs with cycles. Their features are 100 and 1,000
times as large as standardised features. Such an energy is nearly piecewise linear, and messages
need not converge on it. A case is one parameter set on one graph. Cases whose synchronous solve
fails are left out. After the given number of ticks the benchmark counts the cases within 1e-6 of
the synchronous answer, and the cases whose distance exceeds 2, 10 and 100 times the answer's
largest entry. Distances are relative to this entry. The last column is the largest distance in the
second half of the ticks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch_geometric.data import Batch, Data
from training_step import THREADS, limit_threads, publish

from hogwild import EnergyGNN, Inputs, simulate
from hogwild.testing.problems import random_graph

SIZES = (5, 8)
SCHEDULES = ((1, 0), (5, 2))


def badly_scaled(scale: float) -> Batch:
    """Random connected graphs with cycles; features have the deviation ``scale``."""
    graphs = []
    for seed, nodes in enumerate(SIZES):
        graph = random_graph([nodes], seed=seed, extra=0.7)
        rng = torch.Generator().manual_seed(seed)
        x = scale * torch.randn(nodes, 3, generator=rng, dtype=torch.float64)
        graphs.append(Data(x=x, edge_index=torch.stack([graph.src, graph.dst])))
    return Batch.from_data_list(graphs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=7, help="parameter sets; %(default)s")
    parser.add_argument("--ticks", type=int, default=600, help="default: %(default)s")
    parser.add_argument("--rules", default="messages,gradient", help="default: %(default)s")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for safeguard.json and safeguard.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    head = ("energy", "features ×", "S, D", "rule", "cases", "arrived", "beyond 2", "beyond 10",
            "beyond 100", "largest", "in the second half")  # fmt: skip
    rows: list[list[str]] = []
    cells: list[dict[str, object]] = []
    for message in ("edge", "node"):
        for scale in (100.0, 1000.0):
            torch.manual_seed(0)
            model = EnergyGNN(
                3, out_channels=2, message=message, replicas=arguments.models, on_failure="ignore"
            ).double()
            data = badly_scaled(scale)
            with torch.no_grad():
                found = model.embed(Inputs(data.x, data.edge_index, None, data.batch))
            solved = found.converged
            for stagger, delay in SCHEDULES:
                for rule in arguments.rules.split(","):
                    run = simulate(
                        model, data, rule=rule, stagger=stagger, delay=delay,
                        ticks=arguments.ticks,
                        history=list(range(arguments.ticks // 2, arguments.ticks, 5)),
                    )  # fmt: skip
                    far = run.deviation[0][solved]
                    assert run.history is not None
                    late = max(
                        [float(far.max()), *(float(x[0][solved].max()) for x in run.history)]
                    )
                    cell = {
                        "energy": message, "scale": scale, "stagger": stagger, "delay": delay,
                        "rule": rule, "cases": far.numel(), "arrived": int((far <= 1e-6).sum()),
                        "beyond": {str(x): int((far > x).sum()) for x in (2, 10, 100)},
                        "largest": float(far.max()), "late": late,
                    }  # fmt: skip
                    cells.append(cell)
                    counts = [str(int((far > x).sum())) for x in (2, 10, 100)]
                    rows.append([
                        message, f"{scale:g}", f"{stagger}, {delay}", rule, str(far.numel()),
                        str(cell["arrived"]), *counts, f"{float(far.max()):.0e}", f"{late:.0e}",
                    ])  # fmt: skip
                    print(rows[-1], flush=True)
    title = f"Badly scaled energies ({{}}; {arguments.ticks} ticks)."
    print(publish(arguments.output, "safeguard", title, head, rows, cells))


if __name__ == "__main__":
    main()
