"""A node computes in NumPy what the library computes in torch, for every model and rule."""

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from hogwild import Inputs
from hogwild.graph import Graph
from hogwild.models import EIGNNConv, EnergyConv, GSDConv, IGNNConv
from hogwild.rules import rule_for
from hogwild_node import FixedPointRule, GradientRule, MessageRule, Star
from hogwild_node.tree import walk

MODELS = {
    "edge": lambda: EnergyConv(3, hidden_channels=2),
    "node": lambda: EnergyConv(3, hidden_channels=3, message="node"),
    "heads": lambda: EnergyConv(3, hidden_channels=2, heads=2),
    "averaged heads": lambda: EnergyConv(3, hidden_channels=2, heads=2, concat=False),
    "edge features": lambda: EnergyConv(3, hidden_channels=2, edge_dim=2),
    "normalised": lambda: EnergyConv(3, hidden_channels=1, normalize=True),
    "squareplus": lambda: EnergyConv(3, hidden_channels=2, act="squareplus", widths=(5,)),
    "affine": lambda: EnergyConv(3, hidden_channels=2, widths=()),
    "replicas": lambda: EnergyConv(3, hidden_channels=2, replicas=3),
    "wide": lambda: EnergyConv(3, hidden_channels=8),
    "gsd": lambda: GSDConv(3, hidden_channels=2),
    "ignn": lambda: IGNNConv(3, hidden_channels=2, act="tanh"),
    "eignn": lambda: EIGNNConv(3, hidden_channels=2),
}
ENERGIES = [name for name in MODELS if name not in ("ignn", "eignn")]
GRAPHS = {
    "cycles": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 2)],
    "lonely": [(0, 1)],
    "star": [(0, i) for i in range(1, 9)],
}


def numpy(x):
    """The same structure in NumPy."""
    return walk(x, lambda array, _: array.detach().numpy())


def star(at):
    found = {f.name: getattr(at, f.name) for f in fields(Star)}
    return Star(**{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in found.items()})


def pose(name, graph="cycles", extra=()):
    """A problem, its graph and embeddings; ``extra`` edges may be loops and repeat others."""
    torch.manual_seed(0)
    pairs = GRAPHS[graph]
    n = max(max(pair) for pair in pairs) + 2  # one node has no neighbours
    edge_index = torch.tensor([*pairs, *[(j, i) for i, j in pairs], *extra]).T.contiguous()
    conv = MODELS[name]().double()
    attr = torch.randn(edge_index.size(1), 2).double() if name == "edge features" else None
    x = torch.randn(n, 3).double()
    problem = conv.problem(Inputs(x, edge_index, attr)).detach()
    return problem, torch.randn(problem.replicas, problem.channels, n).double()


def close(mine, theirs, tol=1e-12):
    theirs = theirs.numpy() if isinstance(theirs, torch.Tensor) else theirs
    np.testing.assert_allclose(mine, theirs, rtol=tol, atol=tol * np.abs(theirs).max(initial=1.0))


LOOPS = [(), ((0, 0), (1, 0), (1, 0), (0, 1), (0, 1))]


@pytest.mark.parametrize("extra", LOOPS, ids=["simple", "multigraph"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ENERGIES)
def test_local_energies(name, graph, extra):
    problem, h = pose(name, graph, extra)
    mine, at = numpy(problem.node), problem.graph.everyone
    inbox = torch.randn(*h.shape[:2], problem.graph.num_edges).double()
    far = (h + torch.randn_like(h), inbox + torch.randn_like(inbox))
    theirs = [
        problem.node.local(h, inbox, at),
        problem.node.row_bounds(at),
        *(
            tuple(getattr(model, part) for part in ("own", "toward", "b", "x", "c", "j", "u"))
            for model in (
                problem.node.quadratic(h, inbox, at),
                problem.node.quadratic(h, inbox, at, majorise=0.7),
                problem.node.bounding(h, inbox, at, far),
            )
        ),
    ]
    h, inbox, at, far = h.numpy(), inbox.numpy(), star(at), tuple(x.numpy() for x in far)
    own = [
        mine.local(h, inbox, at),
        mine.row_bounds(at),
        *(
            tuple(getattr(model, part) for part in ("own", "toward", "b", "x", "c", "j", "u"))
            for model in (
                mine.quadratic(h, inbox, at),
                mine.quadratic(h, inbox, at, majorise=0.7),
                mine.bounding(h, inbox, at, far),
            )
        ),
    ]
    for place, (ours, others) in enumerate(zip(own, theirs, strict=True)):
        for a, b in zip(ours, others, strict=True):
            # The chord of an activation over a short reach is a small difference of large numbers.
            close(a, b, 1e-12 if place < 4 else 1e-8)


def alone(model, graph, node):
    """The model and the star of one node: all that a robot has."""
    at = graph.star(torch.tensor([node]))
    mine = numpy(model.at(at))
    at = star(at)
    return mine, replace(at, nodes=None, edges=None)


@pytest.mark.parametrize("extra", LOOPS, ids=["simple", "multigraph"])
@pytest.mark.parametrize("rule", ["gradient", "messages"])
@pytest.mark.parametrize("name", ENERGIES)
def test_a_node_alone_follows_the_rule_of_all(name, rule, extra):
    """One update of every node by itself, from what it heard, is the update of all together; and
    so are many, each from the last one's packets."""
    problem, h = pose(name, extra=extra)
    graph, everyone = problem.graph, problem.graph.everyone
    theirs = rule_for(problem, rule)
    letters = theirs.begin(h.clone(), everyone.current(h))
    nodes = []
    for i in range(graph.num_nodes):
        model, at = alone(problem.node, graph, i)
        steps = GradientRule(model, at, problem.channels)
        mine = MessageRule(steps) if rule == "messages" else steps
        edges = graph.star(torch.tensor([i])).edges.numpy()
        own = h[..., [i]].numpy().copy()
        sent = mine.begin(own, everyone.current(h).numpy()[..., edges])
        close(sent, letters[..., edges], 1e-9)
        nodes.append((mine, at, edges))
    for update in range(30):
        inbox, mail = everyone.current(h), letters[..., graph.reverse]
        before = h.numpy().copy()
        h, letters = theirs.update(h, inbox, mail, everyone)
        for i, (mine, at, edges) in enumerate(nodes):
            own, sent = mine.update(
                before[..., [i]], inbox.numpy()[..., edges], mail.numpy()[..., edges], at
            )
            close(own, h[..., [i]], 1e-12 if not update else 1e-7)
            close(sent, letters[..., edges], 1e-8 if not update else 1e-6)
    assert torch.isfinite(h).all()


@pytest.mark.parametrize("name", ["ignn", "eignn"])
def test_a_node_alone_applies_the_map_of_all(name):
    problem, h = pose(name)
    graph, everyone = problem.graph, problem.graph.everyone
    inbox = torch.randn(*h.shape[:2], graph.num_edges).double()
    theirs = problem.node.update(h, inbox, everyone)
    for i in range(graph.num_nodes):
        model, at = alone(problem.node, graph, i)
        rule = FixedPointRule(model, at, problem.channels)
        edges = graph.star(torch.tensor([i])).edges
        own, letters = rule.update(h[..., [i]].numpy(), inbox[..., edges].numpy(), None, at)
        assert letters is None
        close(own, theirs[..., [i]])


def test_parts_keep_the_constants_of_the_whole_graph():
    """Degrees and normalisations are those of the whole graph, whatever part is looked at."""
    for name in ("gsd", "ignn", "normalised"):
        problem, h = pose(name)
        graph = problem.graph
        nodes = torch.tensor([2, 4, 5])
        at = graph.star(nodes)
        inbox = graph.everyone.current(h)
        if name == "ignn":
            whole = problem.node.update(h, inbox, graph.everyone)
            part = problem.node.update(h[..., nodes], inbox[..., at.edges], at)
        else:
            whole = problem.node.local(h, inbox, graph.everyone)[0]
            part = problem.node.local(h[..., nodes], inbox[..., at.edges], at)[0]
        close(part, whole[..., nodes])


def test_float32_stays_float32():
    """A robot computes in single precision."""
    problem, h = pose("edge")
    small = walk(problem.node, lambda x, _: x.numpy().astype(np.float32))
    at = star(problem.graph.everyone)
    for rule in (
        GradientRule(small, at, problem.channels),
        MessageRule(GradientRule(small, at, problem.channels)),
    ):
        own = h.numpy().astype(np.float32)
        inbox = own[..., problem.graph.src.numpy()]
        letters = rule.begin(own, inbox)
        own, letters = rule.update(own, inbox, letters[..., problem.graph.reverse.numpy()], at)
        assert own.dtype == letters.dtype == np.float32


def test_neither_torch_nor_pyg_is_imported():
    code = (
        "import sys; sys.modules.update(torch=None, torch_geometric=None, hogwild=None)\n"
        "import hogwild_node, hogwild_node.tree, hogwild_node.rules.mode\n"
        "print(sorted(m.split('.')[0] for m in sys.modules if m.startswith(('torch', 'scipy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['torch', 'torch_geometric']"  # as None: they cannot be imported


def test_singular_systems_are_not_a_number():
    """One bad system leaves the others of its batch alone."""
    from hogwild_node.ops import NUMPY

    a = np.stack([np.eye(2), np.zeros((2, 2))])
    x = NUMPY.solve(a, np.ones((2, 2, 1)))
    assert np.array_equal(x[0], np.ones((2, 1)))
    assert np.isnan(x[1]).all()
    assert np.isnan(NUMPY.inverse(a)[1]).all()


def test_an_unknown_library_is_named():
    from hogwild_node import namespace

    with pytest.raises(TypeError, match="a list was given; expected an array"):
        namespace([1.0])


def test_graphs_without_loops_have_no_labels():
    simple = Graph.of(torch.tensor([[0, 1], [1, 0]]), 2).everyone
    assert simple.loops is None
    looped = Graph.of(torch.tensor([[0, 1, 1], [1, 0, 1]]), 2).everyone
    assert looped.loops.tolist() == [False, False, True]
