r"""What the constants of ``rule="messages"`` do: every constant a quarter and four times as large.

Three kinds of energies, all untrained: a chain, random geometric graphs, and small graphs with
cycles whose features are 100 times as large as standardised features
(``benchmarks/safeguard.py``). Nodes follow the paper's schedule (S = 5, D = 2). For every constant
and every value the table has the ticks until all runs are within 1e-3 of the synchronous answer on
the first two, and on the third how many cases are that near after ``--ticks`` ticks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from safeguard import badly_scaled
from torch_geometric.data import Batch, Data
from training_step import THREADS, limit_threads, publish

from hogwild import EnergyGNN, simulate
from hogwild_node.rules import messages, mode, trust

CONSTANTS: dict[str, ModuleType] = {
    "SILENT": messages, "HOLD": messages, "REACH": messages,
    "PASSES": mode, "ENOUGH": mode, "ARRIVED": mode,
    "WINDOW": trust, "MARGIN": trust, "STRIKES": trust, "FLOOR": trust, "MEMORY": trust,
}  # fmt: skip
NEAR = 1e-3


def chain(length: int) -> Data:
    """A path with random features."""
    i = torch.arange(length - 1)
    edges = torch.cat([torch.stack([i, i + 1]), torch.stack([i + 1, i])], 1)
    x = torch.randn(length, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Data(x=x, edge_index=edges)


def geometric(nodes: int, count: int) -> Batch:
    """Random geometric graphs of mean degree six, with random features."""
    graphs, rng = [], torch.Generator().manual_seed(0)
    for _ in range(count):
        place = torch.rand(nodes, 2, generator=rng, dtype=torch.float64)
        near = torch.cdist(place, place) < (6.0 / (nodes * torch.pi)) ** 0.5
        edges = (near & ~torch.eye(nodes, dtype=torch.bool)).nonzero().T.contiguous()
        x = torch.randn(nodes, 3, generator=rng, dtype=torch.float64)
        graphs.append(Data(x=x, edge_index=edges))
    return Batch.from_data_list(graphs)


def values(name: str) -> Iterator[Any]:
    """A quarter and four times a constant; whole numbers stay whole and positive. A factor of
    growth keeps its distance from one, and a share stays below one."""
    used = getattr(CONSTANTS[name], name)
    for factor in (0.25, 4.0):
        if name == "MARGIN":
            yield 1.0 + factor * (used - 1.0)
        elif isinstance(used, int):
            yield max(round(factor * used), 1)
        else:
            yield min(factor * used, 0.5) if name == "FLOOR" else factor * used


def changed(name: str, value: Any) -> ExitStack:
    """A context in which a constant has another value."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(CONSTANTS[name], name, value))
    if name == "STRIKES":
        stack.enter_context(mock.patch.object(trust, "CREDIT", 2 * value))
    return stack


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=30, help="of the chain; %(default)s")
    parser.add_argument("--nodes", type=int, default=30, help="of a geometric graph; %(default)s")
    parser.add_argument("--models", type=int, default=4, help="parameter sets; %(default)s")
    parser.add_argument("--ticks", type=int, default=600, help="default: %(default)s")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--output", type=Path, help="folder for constants.json and constants.md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1, replicas=arguments.models, on_failure="ignore").double()
    kinds = {
        "chain": chain(arguments.length),
        "geometric": geometric(arguments.nodes, 3),
        "badly scaled": badly_scaled(100.0),
    }
    head = ("constant", "value", "ticks, chain", "ticks, geometric", "near, badly scaled")
    title = "Constants of rule=\"messages\" ({}; 'not' is not within the ticks)."
    rows: list[list[str]] = []
    cells: list[dict[str, object]] = []
    markdown = ""
    trials = [("as they are", None), *((name, v) for name in CONSTANTS for v in values(name))]
    for name, value in trials:
        row = [name, "" if value is None else f"{value:.4g}"]
        cell: dict[str, object] = {"constant": name, "value": value}
        for kind, data in kinds.items():
            with ExitStack() if value is None else changed(name, value):
                run = simulate(
                    model, data, rule="messages", runs=1, ticks=arguments.ticks, tol=NEAR,
                    progress=False,
                )  # fmt: skip
            near = run.deviation <= NEAR
            cell[kind] = {"ticks": run.ticks, "near": int(near.sum()), "cases": near.numel()}
            if kind == "badly scaled":
                row.append(f"{int(near.sum())} of {near.numel()}")
            else:
                row.append(f"{run.ticks}" if bool(near.all()) else "not")
        rows.append(row)
        cells.append(cell)
        print(row, flush=True)
        markdown = publish(arguments.output, "constants", title, head, rows, cells)
    print(markdown)


if __name__ == "__main__":
    main()
