"""The energy: derivatives in closed form, strong convexity, bounds, and the formula itself."""

import helpers
import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, assemble, batch_of, chain, columns, cycle, edges
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import EnergyConv, Inputs, ops
from hogwild.graph import Graph, Pattern
from hogwild.solvers import Newton
from hogwild_node.picnn import Tape

VARIANTS = {
    "edge": {},
    "edge-attr": {"edge_dim": 2},
    "weighted": {"edge_weight": True},
    "node": {"message": "node"},
    "heads": {"heads": 2, "edge_weight": True},
    "heads-averaged": {"heads": 3, "concat": False, "edge_dim": 2},
    "node-heads": {"message": "node", "heads": 2, "edge_dim": 1},
    "mean": {"aggr": "mean", "edge_weight": True},
    "normalize": {"normalize": True, "edge_weight": True},
    "node-normalize": {"message": "node", "normalize": True},
    "affine": {"widths": ()},
    "squareplus": {"act": "squareplus", "gate": "relu", "hidden_channels": 3},
    "narrow": {"hidden_channels": 1, "message_channels": 1, "widths": (2,)},
}
GRAPHS = {
    "odd": (ODD, torch.zeros(ODD_NODES, dtype=torch.long)),
    "single": (edges(), torch.tensor([0])),
    "isolated": (edges(), torch.tensor([0, 0, 0])),
    "loops": (edges((0, 0), (0, 0), (0, 1)), torch.tensor([0, 0])),
    "complete": (helpers.complete(4), torch.zeros(4, dtype=torch.long)),
    "batch": batch_of((ODD, ODD_NODES), (edges(), 1), (chain(2), 2)),
}
FEW = settings(max_examples=40, deadline=None, derandomize=True)


def pose(options, graph="odd", *, replicas=None, scale=None, seed=0):
    """A model, its inputs and its problem; ``scale``: all parameters from N(0, scale²)."""
    options = dict(options)
    weighted = options.pop("edge_weight", False)
    torch.manual_seed(seed)
    conv = EnergyConv(3, replicas=replicas, **options).double()
    if scale is not None:
        helpers.randomise(conv, scale, seed)
    edge_index, batch = GRAPHS[graph] if isinstance(graph, str) else graph
    n, e = batch.numel(), edge_index.size(1)
    x = torch.randn(n, 3, **DOUBLE)
    attr = None if conv.edge_dim is None else torch.randn(e, conv.edge_dim, **DOUBLE)
    weight = 2.0 * torch.rand(e, **DOUBLE) if weighted else None
    args, kwargs = (x, edge_index, attr, batch), {"edge_weight": weight}
    problem = conv.problem(Inputs(*args, **kwargs)).detach()
    h = torch.randn(problem.replicas, conv.hidden_channels, n, **DOUBLE)
    return conv, args, kwargs, problem, h


def autograd(problem, h):
    """Gradient and Hessian [R, kN, kN] of the energy by automatic differentiation."""
    h = h.clone().requires_grad_()
    (g,) = torch.autograd.grad(problem.evaluate(h).value.sum(), h, create_graph=True)
    rows = [
        torch.autograd.grad(
            g.flatten(1)[:, i].sum(),
            h,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )[0].flatten(1)
        for i in range(h[0].numel())
    ]
    return g.detach(), torch.stack(rows, 1)


def close(got, expected):
    size = max(float(expected.detach().abs().max()), 1.0)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 * size)


def check_derivatives(problem, h):
    gradient, dense = autograd(problem, h)
    at = problem.evaluate(h)
    close(at.gradient, gradient)
    hessian = at.hessian()
    close(columns(hessian.apply, h), dense)
    diagonal, off = hessian.blocks()
    close(assemble(problem.graph, diagonal, off), dense)
    r, k, n = h.shape
    blocks = dense.view(r, k, n, k, n).diagonal(dim1=2, dim2=4)
    close(hessian.diagonal(), blocks)


@pytest.mark.parametrize("variant", ["edge", "node", "heads", "affine"])
def test_the_hessian_in_chunks(variant, monkeypatch):
    """Of many rows it is computed some at a time, and is the same."""
    long = (chain(600), torch.zeros(600, dtype=torch.long))
    *_, problem, h = pose(VARIANTS[variant], long, replicas=2)
    whole, direction = problem.evaluate(h).hessian(), torch.randn_like(h)
    chunks, rows = [], Tape.rows
    monkeypatch.setattr(Tape, "rows", lambda self, part: chunks.append(part) or rows(self, part))
    monkeypatch.setattr(ops, "CHUNK_ELEMENTS", 1)
    pieces = problem.evaluate(h).hessian()
    assert chunks.count(slice(512, 600)) == 2  # of nodes: self messages and updates
    assert chunks.count(slice(1024, 1198)) == 1  # of edges
    torch.testing.assert_close(
        pieces.apply(direction), whole.apply(direction), rtol=1e-12, atol=0.0
    )
    for some, all_ in zip(pieces.blocks(), whole.blocks(), strict=True):
        torch.testing.assert_close(some, all_, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_derivatives_equal_autograd(options):
    """∇E, ∇²E v, the blocks and the diagonal blocks in closed form are those of autograd."""
    *_, problem, h = pose(options)
    check_derivatives(problem, h)


@pytest.mark.parametrize("graph", ["single", "isolated", "loops", "complete", "batch"])
@pytest.mark.parametrize("name", ["edge-attr", "node", "heads", "normalize"])
def test_derivatives_on_every_graph(name, graph):
    *_, problem, h = pose(VARIANTS[name], graph)
    check_derivatives(problem, h)


@pytest.mark.parametrize("name", ["heads-averaged", "mean"])
def test_derivatives_of_replicas(name):
    """Replicas do not mix: one block of the Hessian each."""
    *_, problem, h = pose(VARIANTS[name], "batch", replicas=3)
    check_derivatives(problem, h)


@FEW
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(0.0, 5.0),
    name=st.sampled_from(list(VARIANTS)),
    graph=st.sampled_from(["odd", "loops", "complete"]),
)
def test_strongly_convex_for_all_parameters(seed, scale, name, graph):
    """λ_min(∇²E) ≥ β and E below its chords by β/2 t(1−t)|h−h'|², whatever the parameters."""
    conv, _, _, problem, h = pose(VARIANTS[name], graph, scale=scale, seed=seed)
    dense = columns(problem.evaluate(h).hessian().apply, h)
    spectrum = torch.linalg.eigvalsh(0.5 * (dense + dense.mT))
    assert float(spectrum[:, 0]) >= conv.beta - 1e-10 * float(spectrum[:, -1])

    other = torch.randn_like(h)
    ends = problem.evaluate(h).value, problem.evaluate(other).value
    for t in (0.2, 0.5, 0.9):
        middle = problem.evaluate(t * h + (1 - t) * other).value
        chord = t * ends[0] + (1 - t) * ends[1]
        strong = 0.5 * conv.beta * t * (1 - t) * (h - other).square().sum()
        size = 1.0 + ends[0].abs() + ends[1].abs()
        assert bool((middle <= chord - strong + 1e-10 * size).all())


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("scale", [None, 2.0])
def test_lipschitz_bounds_the_largest_eigenvalue(options, scale):
    """lipschitz() ≥ λ_max(∇²E(h)) graph by graph at near and far points."""
    *_, problem, h = pose(options, "batch", replicas=2, scale=scale)
    bound = problem.lipschitz()
    assert bound.shape == (2, 3)
    for far in (0.0, 1.0, 30.0):
        dense = columns(problem.evaluate(far * h).hessian().apply, h)
        n = problem.graph.num_nodes
        for g in range(3):
            mine = (problem.graph.batch == g).nonzero()[:, 0]
            rows = torch.cat([mine + c * n for c in range(h.size(1))])
            top = torch.linalg.eigvalsh(dense[:, rows][:, :, rows])[:, -1]
            assert bool((top <= bound[:, g] * (1 + 1e-12)).all())


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_energy_adds_up_over_graphs(options):
    """One energy a graph: each equals the graph's alone, and ``energy`` is ``evaluate``."""
    conv, (x, edge_index, attr, batch), kwargs, problem, h = pose(options, "batch")
    whole = conv.energy(h[0].T, Inputs(x, edge_index, attr, batch, **kwargs))
    close(whole, problem.evaluate(h).value[0])
    for g in range(3):
        sub, nodes, kept = problem.graph.select(torch.tensor([g]))
        weight = kwargs["edge_weight"]
        alone = conv.energy(
            h[0].T[nodes],
            Inputs(
                x[nodes],
                torch.stack([sub.src, sub.dst]),
                None if attr is None else attr[kept],
                edge_weight=None if weight is None else weight[kept],
            ),
        )
        close(alone[0], whole[g])


def by_hand(conv, h, x, edge_index, attr, weight):
    """Σ_i u(m_i, h_i, x_i) + β/2 |h_i|² with m_i = Σ_j ω_ij m(h_i, h_j, x_i, x_j, e_ij) +
    m_∘(h_i, x_i), one node and one edge at a time; the weights ω of the edges are given."""
    message, loop, update = conv.message_nets[0], conv.loop_nets[0], conv.update_nets[0]
    total = 0.0
    for i in range(x.size(0)):
        m = loop(x[i : i + 1], h[i : i + 1])[0]
        for e, (j, target) in enumerate(edge_index.T.tolist()):
            if target != i:
                continue
            features = [x[i], x[j]] + ([] if attr is None else [attr[e]])
            y = torch.stack([h[i], h[j]], 1).flatten()  # (channel, end)
            if conv.message == "node":
                features, y = [x[j]], h[j]
            value = message(torch.cat(features)[None], y[None])[..., 0, :]  # [C] or [H, C]
            if conv.heads is None:
                m = m + weight[e] * value
            else:
                value = weight[:, e, None] * value
                m = m + (value.flatten() if conv.concat else value.mean(0))
        total = total + update(x[i : i + 1], torch.cat([m, h[i]])[None])[0, 0]
        total = total + 0.5 * conv.beta * h[i].square().sum()
    return total


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("message", ["edge", "node"])
@pytest.mark.parametrize("heads", [None, 2, 3])
@pytest.mark.parametrize("concat", [True, False])
def test_energy_equals_the_formula(heads, concat, message, weighted, edge_dim):
    """The sum over nodes and neighbours of the module docstring, in nested loops."""
    if message == "node" and heads is None:
        edge_dim = None
    options = {"heads": heads, "concat": concat, "message": message, "edge_dim": edge_dim}
    conv, args, kwargs, _, h = pose(options | {"edge_weight": weighted})
    x, edge_index, attr, _ = args
    weight = kwargs["edge_weight"] if weighted else torch.ones(edge_index.size(1), **DOUBLE)
    if heads is not None:
        es = None if attr is None else attr.T[None]
        weight = weight * conv.attention(x.T[None], es, Graph.of(edge_index, x.size(0)))
    if message == "node":
        attr = None
    expected = by_hand(conv, h[0].T, x, edge_index, attr, weight)
    torch.testing.assert_close(conv.energy(h[0].T, Inputs(*args, **kwargs))[0], expected)


def test_mean_and_normalized_weights_equal_the_formula():
    """``mean``: ω_ij = 1/|N(i)|; ``normalize``: (D+I)^-½ (A+I) (D+I)^-½, loops on the diagonal."""
    conv, args, _, _, h = pose({"aggr": "mean"})
    x, edge_index, *_ = args
    degree = torch.bincount(edge_index[1], minlength=x.size(0)).double()
    expected = by_hand(conv, h[0].T, x, edge_index, None, 1.0 / degree[edge_index[1]])
    torch.testing.assert_close(conv.energy(h[0].T, Inputs(*args))[0], expected)

    conv, args, kwargs, problem, h = pose({"normalize": True, "edge_weight": True}, "batch")
    x, edge_index, *_ = args
    n = x.size(0)
    adjacency = torch.zeros(n, n, **DOUBLE)
    for (j, i), w in zip(edge_index.T.tolist(), kwargs["edge_weight"], strict=True):
        adjacency[i, j] += w
    root = (adjacency.sum(1) + 1.0).rsqrt()
    full = root[:, None] * (adjacency + torch.eye(n, **DOUBLE)) * root
    weight, loop = problem.weight.flatten(), problem.loop_weight
    got = torch.diag(loop).index_put((edge_index[1], edge_index[0]), weight, accumulate=True)
    torch.testing.assert_close(got, full)


def test_a_node_hears_its_sources():
    """In edge_index row 0 sends and row 1 receives: e^i depends on h_j for j -> i, not i -> j."""
    conv, (x, *_), _, _, h = pose({"message": "node"}, (edges((0, 1)), torch.tensor([0, 0])))
    h = h[0].T
    for source, target in ((0, 1), (1, 0)):
        edge_index = edges((source, target))
        weight = torch.ones(1, **DOUBLE, requires_grad=True)
        energy = conv.energy(h, Inputs(x, edge_index, edge_weight=weight))
        m = conv.loop_nets[0](x, h)
        m[target] = m[target] + conv.message_nets[0](x, h)[source]
        expected = conv.update_nets[0](x, torch.cat([m, h], 1)).sum() + 0.02 * h.square().sum()
        torch.testing.assert_close(energy[0], expected)


@pytest.mark.parametrize("name", ["edge", "heads", "normalize", "weighted"])
def test_select_is_the_same_problem(name):
    """The problem on some replicas and graphs has their energies and gradients."""
    *_, problem, h = pose(VARIANTS[name], "batch", replicas=3)
    at = problem.evaluate(h)
    for replicas, graphs in (([1], [0, 2]), ([0, 2], [1]), ([0, 1, 2], [2]), ([2], [0, 1, 2])):
        sub, nodes = problem.select(torch.tensor(replicas), torch.tensor(graphs))
        here = sub.evaluate(h[replicas][..., nodes])
        close(here.value, at.value[replicas][:, graphs])
        close(here.gradient, at.gradient[replicas][..., nodes])
        close(sub.lipschitz(), problem.lipschitz()[replicas][:, graphs])


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_scale_and_noise_are_no_underestimates(options):
    """``scale`` bounds the gradient's terms, hence the gradient; ``noise`` bounds the rounding of
    the value, seen by evaluating in float32."""
    conv, args, kwargs, problem, h = pose(options, (cycle(7), torch.zeros(7).long()), scale=1.0)
    at = problem.evaluate(h)
    assert bool((at.scale >= problem.graph.norm(at.gradient) * (1 - 1e-12)).all())
    conv.solve_dtype = torch.float32
    rough = conv.problem(Inputs(*args, **kwargs)).detach().evaluate(h.float())
    assert bool(((rough.value.double() - at.value).abs() <= rough.noise).all())


def test_a_hub_does_not_form_all_pairs_of_its_neighbours(monkeypatch):
    """Conjugate gradients never build the pattern, with self-loops and multi-edges either."""
    monkeypatch.setattr(Pattern, "of", lambda graph: pytest.fail("pattern was built"))
    edge_index = torch.cat([helpers.star(30), torch.tensor([[0, 1, 1], [0, 0, 0]])], 1)
    conv = EnergyConv(2, solver=Newton(linear="cg")).double()
    found = conv.embed(Inputs(torch.randn(30, 2, dtype=torch.float64), edge_index))
    assert bool(found.converged.all())


def test_diagonal_of_a_multigraph_is_exact():
    """Linear in the edges, and equal to the diagonal of the assembled blocks."""
    edge_index = torch.cat([cycle(6), torch.tensor([[0, 1, 1, 3], [0, 0, 0, 3]])], 1)
    conv = EnergyConv(2).double()
    problem = conv.problem(Inputs(torch.randn(6, 2, dtype=torch.float64), edge_index)).detach()
    h = torch.randn(1, 2, 6, dtype=torch.float64)
    diagonal = problem.evaluate(h).hessian().diagonal()
    torch.testing.assert_close(diagonal, problem.evaluate(h).hessian().blocks()[0])


def test_a_node_read_without_gradients_has_them_later():
    conv, args, kwargs, _, h = pose({})
    problem = conv.problem(Inputs(*args, **kwargs))

    def slope():
        everyone = problem.graph.everyone
        return problem.node.local(h, everyone.current(h), everyone)[0].sum()

    with torch.no_grad():
        slope()
    assert torch.autograd.grad(slope(), conv.parameters(), allow_unused=True)[0] is not None


def test_what_inference_mode_has_computed_has_derivatives_later():
    *_, problem, h = pose({})
    with torch.inference_mode():
        problem.evaluate(h).value  # noqa: B018 (the problem keeps what it computes)
    h.requires_grad_()
    (slope,) = torch.autograd.grad(problem.evaluate(h).value.sum(), h)
    close(slope, problem.evaluate(h.detach()).gradient)
