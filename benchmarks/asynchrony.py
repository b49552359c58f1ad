r"""Node updates per second of the asynchronous simulator, against a Python loop.

The model is an untrained ``EnergyGNN`` of the paper's size on random geometric graphs of mean
degree 6, with the gradient rule, a constant step, S = 5, D = 2, in float64. In one update a node
reads its packets, takes the gradient step, recomputes the gradients of its own energy, and sends
packets.

* ``loop``: Algorithm 1 as printed. A Python loop visits the nodes that have a turn, and lists hold
  the past. Each update calls the same closed-form local gradients on one node.
* ``synchronous``: gradient descent on all nodes at once (no schedule, no packets), with the same
  number of node updates.

The report has node updates per second of each contender, the ratios, and the bytes that the
simulator keeps for each edge. On a GPU the report also has a share of the memory bandwidth. This
share counts the numbers that an update must at least read and write: h, the gradient and the
features' part of the networks, once each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tasks import rgg
from torch import Tensor
from training_step import THREADS, environment, limit_threads, table, write

from hogwild import EnergyGNN
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulated import Simulation
from hogwild.graph.inputs import Inputs
from hogwild.problems.base import Objective
from hogwild.rules import gradient_rule

STEP = 0.02
BANDWIDTH = {"NVIDIA H200": 4.8e12}  # bytes per second, from the data sheet


def build(nodes: int, runs: int, device: str) -> Objective:
    """The energy of an untrained model on ``runs`` copies of a random geometric graph."""
    task = rgg(nodes)
    torch.manual_seed(0)
    model = EnergyGNN(task.x.size(1), out_channels=1).double().to(device)
    with torch.no_grad():
        problem = model.problem(Inputs(task.x, task.edge_index).repeat(runs).to(device))
    assert isinstance(problem, Objective)
    return problem.detach()


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def simulator(problem: Objective, runs: int, device: str, budget: float) -> tuple[float, float]:
    """Updates per second, and bytes kept for each edge."""
    schedule = Schedule(problem.graph, runs=runs)
    simulation = Simulation(gradient_rule(problem, STEP), schedule, problem.start())
    for _ in range(10):  # all nodes have updated, caches are warm
        simulation.step()
    synchronise(device)
    before, start, ticks = int(simulation.tally.updates.sum()), time.perf_counter(), 0
    while ticks < 20 or (time.perf_counter() - start < budget and ticks < 2000):
        simulation.step()
        ticks += 1
    synchronise(device)
    seconds = time.perf_counter() - start
    outbox = simulation.outbox
    kept = sum(t.numel() * t.element_size() for t in (
        outbox.node, outbox.edge, outbox.content, outbox.latest, outbox.current,
        simulation.h, schedule.view, schedule.next) if t is not None)  # fmt: skip
    return (int(simulation.tally.updates.sum()) - before) / seconds, kept / problem.graph.num_edges


def synchronous(problem: Objective, device: str, budget: float) -> float:
    """Node updates per second of plain gradient descent."""
    h = problem.start()

    def step(h: Tensor) -> Tensor:
        return h - STEP * problem.evaluate(h).gradient

    with torch.no_grad():
        for _ in range(3):
            h = step(h)
        synchronise(device)
        start, steps = time.perf_counter(), 0
        while steps < 5 or time.perf_counter() - start < budget:
            h = step(h)
            steps += 1
            synchronise(device)
    return steps * problem.graph.num_nodes / (time.perf_counter() - start)


def loop(problem: Objective, budget: float) -> float:
    """Node updates per second of the algorithm as printed."""
    graph = problem.graph
    schedule = Schedule(graph)
    h = problem.start()
    n = graph.num_nodes
    own: list[Tensor] = [h[..., i] * 0 for i in range(n)]
    letters: list[dict[int, Tensor]] = [
        {int(j): h[..., 0] * 0 for j in graph.src[graph.dst == i]} for i in range(n)
    ]
    past_h = [[h[..., i] for i in range(n)]]
    past_g = [[dict(g) for g in letters]]
    count, start, t = 0, 0.0, 0
    with torch.no_grad():
        while True:
            if t == 3:
                count, start = 0, time.perf_counter()
            if t > 3 and time.perf_counter() - start > budget:
                return count / (time.perf_counter() - start)
            tick = schedule.tick(t)
            edges, views = tick.at.edges.tolist(), tick.view.tolist()  # type: ignore[union-attr]
            slots = tick.at.slot.tolist()
            now_h, now_g = list(past_h[-1]), [dict(g) for g in past_g[-1]]
            heard: dict[int, list[tuple[int, int]]] = {}
            for e, slot, tau in zip(edges, slots, views, strict=True):
                heard.setdefault(slot, []).append((e, tau))
            for slot, i in enumerate(tick.at.nodes.tolist()):  # type: ignore[union-attr]
                star = graph.star(torch.tensor([i]))
                g, inbox = own[i], []
                for e, tau in heard.get(slot, []):
                    j = int(graph.src[e])
                    g = g + past_g[tau][j][i]
                    inbox.append(past_h[tau][j])
                now_h[i] = past_h[-1][i] - STEP * g
                views_of = torch.stack(inbox, -1) if inbox else h[..., :0]
                mine, toward = problem.node.local(now_h[i].unsqueeze(-1), views_of, star)
                own[i] = mine[..., 0]
                for position, e in enumerate(star.edges.tolist()):  # type: ignore[union-attr]
                    now_g[i][int(graph.src[e])] = toward[..., position]
                count += 1
            past_h.append(now_h)
            past_g.append(now_g)
            t += 1


def least_bytes(problem: Objective) -> float:
    """Bytes that one node update must at least move: its own share of every tensor of the problem,
    and its packets, read and written."""
    sizes: list[int] = []

    def note(t: Tensor) -> Tensor:
        if t.size(-1) in (problem.graph.num_nodes, problem.graph.num_edges):
            sizes.append(t.numel() * t.element_size())
        return t

    problem.map(note)
    n, e, k = problem.graph.num_nodes, problem.graph.num_edges, problem.channels
    return sum(sizes) / n + 8 * k * (2 + 3 * e / n)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        default="100x50,1000x1,10000x1,100000x1",
        help="NODESxRUNS, comma separated (default: %(default)s)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--output", type=Path, help="folder for asynchrony.json and .md")
    arguments = parser.parse_args()
    limit_threads(arguments.threads)
    device, budget = arguments.device, arguments.seconds
    rows, cells = [], []
    for size in arguments.sizes.split(","):
        nodes, runs = (int(part) for part in size.split("x"))
        problem = build(nodes, runs, device)
        ours, kept = simulator(problem, runs, device, budget)
        rival = synchronous(problem, device, budget)
        slow = loop(build(nodes, 1, "cpu"), budget) if nodes <= 1000 and device == "cpu" else None
        cell = {"nodes": nodes, "runs": runs, "edges": problem.graph.num_edges, "simulator": ours,
                "synchronous": rival, "loop": slow, "bytes_per_edge": kept}  # fmt: skip
        peak = BANDWIDTH.get(torch.cuda.get_device_name()) if device == "cuda" else None
        if peak is not None:
            cell["bandwidth_share"] = ours * least_bytes(problem) / peak
        cells.append(cell)
        rows.append([
            f"{nodes:,} × {runs}", f"{ours:,.0f}", "" if slow is None else f"{slow:,.0f}",
            "" if slow is None else f"{ours / slow:,.0f}×", f"{rival:,.0f}",
            f"{rival / ours:.1f}×", f"{kept:.0f}",
            "" if peak is None else f"{100 * cell['bandwidth_share']:.1f} %",
        ])  # fmt: skip
        print(rows[-1], flush=True)
        head = ("nodes × runs", "simulator, updates/s", "loop, updates/s", "faster than the loop",
                "synchronous, updates/s", "slower than synchronous", "bytes an edge",
                "of the memory bandwidth")  # fmt: skip
        where = environment(device)
        text = (
            "Node updates a second (" + ", ".join(f"{k} {v}" for k, v in where.items()) + ").\n\n"
        )
        markdown = text + table(head, rows)
        results = {"environment": where, "cells": cells}
        write(arguments.output, "asynchrony", results, markdown)
    print(markdown)


if __name__ == "__main__":
    main()
