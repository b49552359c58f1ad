"""Small graphs, random parameters and dense matrices shared by the tests."""

import pytest
import torch
from torch_geometric.data import Data

from hogwild import EnergyGNN, Inputs
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    GeometricDelay,
    GilbertElliott,
    Latency,
    LinkChurn,
    ParetoDelay,
    Reordering,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Trace
from hogwild.graph import Graph
from hogwild.ops import gather
from hogwild.testing.problems import random_graph

DOUBLE = {"dtype": torch.float64}
HARSH = [
    BernoulliLoss(0.3),
    Stragglers(0.2, slowdown=3),
    Reordering(0.3),
    Crashes(0.5, period=20, downtime=6, rejoin="cold", until=40),
]
"""Everything goes wrong that a rule may survive."""
UNBOUNDED = [BernoulliLoss(0.5), GilbertElliott()]


def bounded(rate, until=500):
    """Every impairment under which the staleness stays bounded."""
    return [
        GeometricDelay(0.5, cap=6),
        ParetoDelay(1.5, cap=8),
        Latency(4, jitter=2),
        Reordering(rate),
        BernoulliLoss(rate, burst=3),
        LinkChurn(rate, period=60, downtime=10),
        Stragglers(0.2, slowdown=3),
        Crashes(0.2, period=60, downtime=10, until=until),
    ]


def refused(make, error, words):
    """Assert that a call raises an error whose text holds these words."""
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def bare(edge_index, n):
    """A graph without features."""
    return Inputs(torch.empty(n, 0), edge_index)


def edges(*pairs):
    """``edge_index`` of directed edges (source, target)."""
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous()


def undirected(*pairs):
    """``edge_index`` with every pair in both directions."""
    return edges(*[e for i, j in pairs for e in ((i, j), (j, i))])


def chain(n):
    return undirected(*[(i, i + 1) for i in range(n - 1)])


def star(n):
    return undirected(*[(0, i) for i in range(1, n)])


def cycle(n):
    return undirected(*[(i, (i + 1) % n) for i in range(n)])


def grid(a, b):
    across = [(i * b + j, i * b + j + 1) for i in range(a) for j in range(b - 1)]
    down = [(i * b + j, i * b + j + b) for i in range(a - 1) for j in range(b)]
    return undirected(*across, *down)


def complete(n):
    return undirected(*[(i, j) for i in range(n) for j in range(i)])


def tree(n, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return undirected(*[(int(torch.randint(i, (1,), generator=rng)), i) for i in range(1, n)])


def circulant(n, degree):
    """A regular undirected graph: every node hears ``degree`` others."""
    offsets = [d for s in range(1, degree // 2 + 1) for d in (s, -s)]
    offsets += [n // 2] if degree % 2 else []
    return edges(*[(i, (i + d) % n) for i in range(n) for d in offsets])


# Node 5 is isolated, 3 has a self-loop, 0 -> 1 is doubled, 4 -> 0 and 2 -> 4 have no reverse.
ODD = edges((0, 1), (0, 1), (1, 0), (1, 2), (2, 1), (3, 3), (3, 1), (1, 3), (4, 0), (2, 4))
ODD_NODES = 6


def batch_of(*graphs):
    """``edge_index``, ``batch`` of several (edge_index, num_nodes)."""
    parts, batch, offset = [], [], 0
    for g, (edge_index, n) in enumerate(graphs):
        parts.append(edge_index + offset)
        batch += [g] * n
        offset += n
    return torch.cat(parts, 1), torch.tensor(batch)


def randomise(module, scale, seed=0):
    """Overwrite every parameter with N(0, scale²)."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=rng, dtype=torch.float64))
    return module


def columns(apply, like):
    """The dense matrices [R, kN, kN] of a linear map on [R, k, N]."""
    size = like[0].numel()
    eye = torch.eye(size, dtype=like.dtype).view(size, *like.shape[1:])
    return torch.stack([apply(e.expand_as(like).contiguous()).flatten(1) for e in eye], -1)


def assemble(graph, diagonal, off):
    """The dense matrices [R, kN, kN] of blocks in the order of the graph's pattern."""
    replicas, k, _, n = diagonal.shape
    out = diagonal.new_zeros(replicas, k, n, k, n)
    for i in range(n):
        out[:, :, i, :, i] += diagonal[..., i]
    pattern = graph.pattern
    for m, (i, j) in enumerate(zip(pattern.rows.tolist(), pattern.cols.tolist(), strict=True)):
        out[:, :, i, :, j] += off[..., m]
        out[:, :, j, :, i] += off[..., m].transpose(1, 2)
    return out.view(replicas, k * n, k * n)


def graph_of(edge_index, n=None, batch=None):
    n = int(edge_index.max()) + 1 if n is None else n
    return Graph.of(edge_index, n, batch)


def record(schedule, ticks):
    """The trace of a schedule's first ticks."""
    trace = Trace.of(schedule, {})
    for t in range(ticks):
        trace.ticks.append(schedule.tick(t))
    return trace


def on_torch(simulation):
    """The same simulation without compiled code."""
    simulation.kernel = simulation.ticks = None
    timetable = simulation.timetable
    if isinstance(timetable, Schedule):
        timetable._view, timetable._clock = timetable.view, None
    return simulation


def looks_like_a_picture(path, width=300):
    """A PNG of some size, with ink on white."""
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    assert min(pixels.shape[:2]) >= width
    ink = (pixels.min(-1) < 0.9).mean()
    return 0.005 < ink < 0.9


def features(n, width=3):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(2), **DOUBLE)


def example(edge_index=None, n=6, y=None, seed=1, width=3):
    """One graph with random features; by default a grid of six nodes."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=rng, **DOUBLE)
    return Data(x=x, edge_index=grid(2, 3) if edge_index is None else edge_index, y=y)


def graphs(sizes=(1, 5, 12), seed=1, channels=3, extra=0.5, edge_dim=None):
    """A batch of random connected graphs with random features."""
    graph = random_graph(list(sizes), seed=seed, extra=extra)
    rng = torch.Generator().manual_seed(seed)
    data = Data(
        x=torch.randn(graph.num_nodes, channels, generator=rng, **DOUBLE),
        edge_index=torch.stack([graph.src, graph.dst]),
    )
    if edge_dim is not None:
        data.edge_attr = torch.randn(graph.num_edges, edge_dim, generator=rng, **DOUBLE)
    data.batch = graph.batch
    return data


def energy(**options):
    """An energy GNN for :func:`graphs`."""
    torch.manual_seed(0)
    return EnergyGNN(3, out_channels=2, **options).double()


def assert_second_derivatives(fn, given, step=1e-5):
    """The product of the Hessian of a random loss with a random vector equals central differences
    of gradients. Gradients that autograd records equal those that it does not record."""
    rng = torch.Generator().manual_seed(7)

    def drawn(like):
        return torch.randn(like.shape, generator=rng, dtype=like.dtype)

    out = fn(*given)
    weight, direction = drawn(out), [drawn(x) for x in given]

    def gradients(given, recorded=False):
        loss = (weight * fn(*given).tanh()).sum()
        return torch.autograd.grad(
            loss, given, create_graph=recorded, allow_unused=True, materialize_grads=True
        )

    recorded, plain = gradients(given, True), gradients(given)
    for a, b in zip(recorded, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    along = sum((g * u).sum() for g, u in zip(recorded, direction, strict=True))
    found = torch.autograd.grad(along, given, allow_unused=True, materialize_grads=True)
    up, down = (
        gradients(
            [(x + s * u).detach().requires_grad_() for x, u in zip(given, direction, strict=True)]
        )
        for s in (step, -step)
    )
    for product, a, b in zip(found, up, down, strict=True):
        expected = (a - b) / (2 * step)
        size = max(1.0, float(expected.abs().max()), float(product.detach().abs().max()))
        torch.testing.assert_close(product, expected, rtol=0, atol=1e-5 * size)
    assert any(x.any() for x in found)


def check_local_energies(problem, energies):
    """``energies(h, inbox)`` [R, n] of all nodes add up to E; ``local`` is their gradient, for all
    nodes and for some. Returns embeddings, an inbox unrelated to them, and both gradients."""
    graph, node, n = problem.graph, problem.node, problem.graph.num_nodes
    h = torch.randn(problem.replicas, problem.channels, n, **DOUBLE)
    exact = energies(h, gather(h, graph.src)).sum(-1)
    torch.testing.assert_close(exact, problem.evaluate(h).value[:, 0])
    inbox = torch.randn_like(gather(h, graph.src))  # stale values
    own, toward = node.local(h, inbox, graph.everyone)
    leaves = (h.clone().requires_grad_(), inbox.clone().requires_grad_())
    slopes = torch.autograd.grad(energies(*leaves).sum(), leaves)
    torch.testing.assert_close((own, toward), slopes)
    nodes = torch.randperm(n)[: max(1, n // 2)]
    at = graph.star(nodes)
    some = node.local(h[..., nodes], inbox[..., at.edges], at)
    torch.testing.assert_close(some, (own[..., nodes], toward[..., at.edges]))
    return h, inbox, own, toward
