r"""Graph signal denoising: K propagations against PyG's APPNP and the exact solve.

The gradient iteration of :class:`~hogwild.models.GSDConv` with step 1/2(γ+β) is APPNP's
propagation with teleport γ/(γ+β). Both compute the same K = 10 iterates of the same signal on the
same graph and
must agree to rounding, or the benchmark stops.

* ``steps``: K propagations of a given problem, against ``APPNP(cached=True)`` after its first call:
  propagation alone.
* ``posed``: the same with the normalisation of the weights in every call, against
  ``APPNP(cached=False)``. Hogwild keeps the analysis of the connectivity (which nodes are joined)
  with the graph. PyG keeps nothing.
* ``exact``: the minimiser by the default solver, started at the signal, with tolerance 1e-8 on the
  largest entry of the gradient in float64. K propagations only approach this minimiser; the last
  column has their distance from it.

With ``--backward`` every call is followed by the gradient with respect to the signal: through all K
propagations for both contenders, through one linear solve for the exact solution. Contenders take
turns within every repetition. The report has medians. Hogwild is faster where a number is below 1.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from tasks import chains, rgg
from torch import Tensor
from torch_geometric.nn import APPNP
from training_step import THREADS, environment, limit_threads, table, timed, write

from hogwild.graph import Graph
from hogwild.models.gsd import GSDProblem
from hogwild.solvers import Newton, differentiable, solve

GAMMA, BETA, K = 1.0, 5.0, 10
CONTENDERS = ("appnp-cached", "steps", "appnp", "posed", "exact")
HEAD = ("nodes", "edges", "channels", "APPNP cached, ms", "steps, ms", "ratio", "APPNP, ms",
        "posed, ms", "ratio", "exact, ms", "K steps off by")  # fmt: skip


def contenders(edge_index: Tensor, signal: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The timed functions, by name. Each maps the signal [N, k] to [N, k]."""
    teleport = GAMMA / (GAMMA + BETA)
    graph = Graph.of(edge_index, len(signal))
    ones = signal.new_ones(graph.num_edges)
    kept, fresh = (APPNP(K, teleport, cached=cached) for cached in (True, False))

    def pose() -> GSDProblem:
        target = signal.mT.contiguous().unsqueeze(0)
        return GSDProblem.of(graph, GAMMA, BETA, target, ones)

    ready = pose().detach()

    def propagate(problem: GSDProblem) -> Tensor:
        h = problem.target
        for _ in range(K):
            h = problem.step(h)
        return h[0].mT

    def steps() -> Tensor:
        return propagate(replace(ready, target=signal.mT.contiguous().unsqueeze(0)))

    def exact() -> Tensor:
        problem = pose()
        found = solve(problem.detach(), Newton(), problem.target.detach())
        found.check()
        h = found.value
        if torch.is_grad_enabled():
            h = differentiable(problem, h)
        return h[0].mT

    return {
        "appnp-cached": lambda: kept(signal, edge_index),
        "steps": steps,
        "appnp": lambda: fresh(signal, edge_index),
        "posed": lambda: propagate(pose()),
        "exact": exact,
    }


def measure(
    edge_index: Tensor, channels: int, args: argparse.Namespace
) -> dict[str, float | dict[str, list[float]]]:
    """Milliseconds of every contender in every repetition, and the distance of K propagations from
    the exact solution."""
    nodes = int(edge_index.max()) + 1
    random = torch.Generator().manual_seed(0)
    signal = torch.randn(nodes, channels, generator=random, dtype=getattr(torch, args.dtype))
    signal = signal.to(args.device).requires_grad_(args.backward)
    calls = contenders(edge_index.to(args.device), signal)

    def call(name: str) -> Tensor:
        with torch.set_grad_enabled(args.backward):
            out = calls[name]()
            if args.backward:
                torch.autograd.grad(out.sum(), signal)
        return out.detach()

    first = {name: call(name) for name in CONTENDERS}  # not measured: caches and analyses
    for name in ("steps", "appnp", "posed"):
        torch.testing.assert_close(first[name], first["appnp-cached"])
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(args.repetitions):
        for name in CONTENDERS:
            times[name].append(timed(lambda name=name: call(name), args.device)[0])
    gap = float((first["steps"] - first["exact"]).norm() / first["exact"].norm())
    size = {"nodes": nodes, "edges": edge_index.size(1), "channels": channels}
    return {**size, "ms": times, "steps_off_by": gap}


def line(cell: dict) -> list[str]:
    """A row of the Markdown table."""
    ms = {name: statistics.median(times) for name, times in cell["ms"].items()}

    def pair(rival: str, ours: str) -> list[str]:
        return [f"{ms[rival]:.2f}", f"{ms[ours]:.2f}", f"{ms[ours] / ms[rival]:.2f}"]

    return [
        f"{cell['nodes']:,}", f"{cell['edges']:,}", str(cell["channels"]),
        *pair("appnp-cached", "steps"), *pair("appnp", "posed"),
        f"{ms['exact']:.2f}", f"{cell['steps_off_by']:.1%}",
    ]  # fmt: skip


def numbers(text: str) -> list[int]:
    """Comma-separated positive integers."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}; expected positive numbers such as 2,16")
    return [int(part) for part in parts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument(
        "--nodes",
        type=numbers,
        default="1000,10000,100000",
        help="sizes of the random geometric graphs (mean degree 6), beside the two chains of 100 "
        "nodes; default: %(default)s",
    )
    parser.add_argument(
        "--channels", type=numbers, default="2,16", help="widths; default: %(default)s"
    )
    parser.add_argument("--backward", action="store_true", help="time the gradient, too")
    parser.add_argument("--repetitions", type=int, default=21, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for gsd.json and .md")
    args = parser.parse_args()
    limit_threads(args.threads)

    cells = []
    graphs = [chains().edge_index, *(rgg(n).edge_index for n in args.nodes)]
    for edge_index in graphs:
        for channels in args.channels:
            cells.append(measure(edge_index, channels, args))
            print("  ", " | ".join(line(cells[-1])), flush=True)
    place = ", ".join(f"{k} {v}" for k, v in environment(args.device).items())
    what = f"{args.dtype}, forward and backward" if args.backward else f"{args.dtype}, forward"
    markdown = f"K = {K} propagation steps and the exact solve, {what} ({place}).\n\n"
    markdown += table(HEAD, [line(cell) for cell in cells])
    results = {
        "environment": environment(args.device),
        "dtype": args.dtype,
        "backward": args.backward,
        "cells": cells,
    }
    write(args.output, "gsd", results, markdown)
    print("\n" + markdown)


if __name__ == "__main__":
    main()
