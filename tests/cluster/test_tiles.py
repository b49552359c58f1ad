"""A large part in tiles: the answer is that of the solver."""

import pytest
import torch
from helpers import DOUBLE
from kernel_cases import TIGHT, layer, needs_library, odd_graph, on_torch

from hogwild import EnergyGNN, Inputs
from hogwild.cluster import Disorder, infer, tiles
from hogwild.cluster.generate import geometric, grid, power_law
from hogwild.cluster.tiles import TiledEnergy
from hogwild.kernels.native import library
from hogwild.kernels.tiles import HELD, OWN, RING, Tiling
from hogwild.solvers.loop import solve

pytestmark = needs_library


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small tiles, so that small graphs have several groups of them."""
    monkeypatch.setattr(tiles, "SIZE", 12)
    monkeypatch.setattr(tiles, "GROUP", 3)
    monkeypatch.setattr(tiles, "SPREAD", 1000)
    monkeypatch.setattr("hogwild.cluster.host.LEAST", 1)


def tiled(conv, inputs, moving=None, room=1 << 30):
    moving = inputs.num_nodes if moving is None else moving
    return TiledEnergy(library(), conv.problem(inputs).recipe, moving, room)


def swept(energy, h, free, times=60):
    h = h.clone()
    for _ in range(times):
        energy.sweep(h, free, TIGHT.run)
    return h


OPTIONS = {
    "edge": {},
    "node-normalize": {"message": "node", "normalize": True},
    "mean": {"aggr": "mean"},
    "heads": {"heads": 2, "edge_dim": 2},
    "replicas": {"replicas": 2, "edge_dim": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_sweeps_end_at_the_solution(options):
    """Directed edges, self-loops, parallel edges, isolated nodes; weights and degrees are those of
    the whole graph."""
    conv = layer(1, 0.1, **options)
    inputs = odd_graph(2, [70], 1.3, True, conv.edge_dim, weighted=True)
    energy = tiled(conv, inputs)
    assert energy.tiling.count > tiles.GROUP  # several groups
    problem = conv.problem(inputs).detach()
    h0 = torch.randn(problem.start().shape, **DOUBLE)
    at = problem.evaluate(h0)
    gradient, scale = energy.gradient(h0)
    torch.testing.assert_close(gradient, at.gradient, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(scale, at.scale, rtol=1e-9, atol=0)
    found = swept(energy, h0, inputs.num_nodes)
    with on_torch():
        answer = conv.embed(inputs).value
    answer = answer.mT if conv.replicas else answer.mT[None]
    torch.testing.assert_close(found, answer, rtol=0, atol=1e-9)


def test_nodes_that_do_not_move_stay():
    conv = layer(3, 0.1)
    inputs = odd_graph(4, [60], 1.5, False)
    h0 = torch.randn(1, conv.hidden_channels, 60, **DOUBLE)
    energy = tiled(conv, inputs, moving=45)
    for free in (45, 30):
        found = swept(energy, h0, free)
        assert torch.equal(found[..., free:], h0[..., free:])
        residual = energy.gradient(found)[0][..., :free]
        assert float(residual.abs().max()) < 1e-9


def test_groups_that_are_not_kept_are_made_again():
    conv = layer(5, 0.1)
    inputs = odd_graph(6, [80], 1.2, False)
    h0 = torch.zeros(1, conv.hidden_channels, 80, **DOUBLE)
    kept, made = tiled(conv, inputs), tiled(conv, inputs, room=0)
    assert torch.equal(swept(kept, h0, 80, 2), swept(made, h0, 80, 2))
    assert kept._kept
    assert not made._kept


@pytest.mark.parametrize("seed", range(4))
def test_every_node_has_one_tile_and_all_of_its_edges(seed):
    """The tiles are disjoint and cover all nodes that move. Nodes for which a tile solves bring all
    edges of themselves and of their receivers."""
    inputs = odd_graph(seed, [50, 3, 1], [0.3, 1.0, 2.0, 0.0][seed], True)
    (src, dst), n, moving = inputs.edge_index, 54, 50
    tiling = Tiling(library(), src, dst, n, moving, 7)
    seen = []
    for start in range(0, tiling.count, 2):
        last = min(start + 2, tiling.count)
        found = tiling.gather(start, last, 2, 10**9)
        assert torch.equal(found.node[found.ends[0]], src[found.edge])
        assert torch.equal(found.node[found.ends[1]], dst[found.edge])
        seen.append(found.node[found.kind == OWN])
        for t in range(found.count):
            here = found.tile == t
            solved = set(found.node[here & (found.kind != HELD)].tolist())
            own = set(found.node[here & (found.kind == OWN)].tolist())
            rings = set(own)
            for _ in range(2):
                near = [b for a, b in zip(src.tolist(), dst.tolist(), strict=True) if a in rings]
                near += [a for a, b in zip(src.tolist(), dst.tolist(), strict=True) if b in rings]
                rings |= {i for i in near if i < moving}
            assert solved == rings
            assert RING not in found.kind[here].tolist() or rings > own
            centres = solved | {int(j) for i, j in zip(src, dst, strict=True) if int(i) in solved}
            wanted = {q for q in range(src.numel()) if int(dst[q]) in centres}
            mine = found.edge[here[found.ends[1]]]
            assert sorted(mine.tolist()) == sorted(wanted)
    assert sorted(torch.cat(seen).tolist()) == list(range(moving))


def test_wide_rings_are_refused(monkeypatch):
    monkeypatch.setattr(tiles, "SPREAD", 2)
    inputs = power_law(400).inputs()
    model = EnergyGNN(inputs.x.size(1), out_channels=1).double()
    assert TiledEnergy.of(library(), model.problem(inputs).recipe, 400) is None
    with torch.no_grad():
        expected = model.embed(inputs).value
    run = infer(model, inputs, work="solve")
    assert float((run.h - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("workers", [1, 3])
def test_infer(workers):
    """In tiles within each part, and the error bar holds."""
    torch.manual_seed(0)
    inputs = geometric(300).inputs()
    model = EnergyGNN(inputs.x.size(1), out_channels=2, hidden_channels=3).double()
    with torch.no_grad():
        expected = model.embed(inputs).value
    disorder = Disorder(seed=1, delay=2) if workers > 1 else None
    run = infer(model, inputs, workers, tol=1e-8, work="solve", disorder=disorder)
    assert run.converged
    assert float((run.h - expected).norm()) <= run.error_bar.error + 1e-12
    assert run.error_bar.relative < 1e-8


def test_slow_sweeps_give_way_to_the_whole_solve(monkeypatch):
    """Where nothing fades within the rings, sweeps would not end."""
    monkeypatch.setattr(tiles, "RINGS", 0)
    monkeypatch.setattr("hogwild.cluster.work.SLOW", 0.0)  # every sweep counts as slow
    torch.manual_seed(1)
    inputs = grid(9).inputs()
    model = EnergyGNN(inputs.x.size(1), out_channels=1).double()
    called = []

    def noted(*args):
        called.append(args)
        return solve(*args)

    monkeypatch.setattr("hogwild.cluster.work.solve", noted)
    run = infer(model, Inputs(inputs.x, inputs.edge_index), tol=1e-9, work="solve")
    assert run.converged
    assert called
