"""A trained GCN runs on nodes without torch: the same numbers, by the same rules."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv

import hogwild_node
from hogwild import GCN, Inputs, LayeredGNN
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.models.program import LayeredProblem
from hogwild.rules import rule_for
from hogwild_node import CachingRule, OverwritingRule, ResendingRule, Star, WaitingRule
from hogwild_node.tree import walk

RULES = {
    "overwriting": OverwritingRule,
    "waiting": WaitingRule,
    "resending": ResendingRule,
    "caching": CachingRule,
}
MODELS = {
    "gcn": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=3),
    "no bias": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=2, bias=False),
    "replicas": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=3, replicas=2),
    "leaky": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=2, act=nn.LeakyReLU(0.1)),
    "tanh": lambda: GCN(3, out_channels=2, hidden_channels=4, num_layers=2, act="tanh"),
    "no loops": lambda: LayeredGNN([GCNConv(4, 4, add_self_loops=False)] * 2, 3, out_channels=2),
    "improved": lambda: LayeredGNN([GCNConv(4, 4, improved=True)] * 2, 3, out_channels=2),
}
PAIRS = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 2)]
LOOPS = [(0, 0), (1, 0), (1, 0), (0, 1), (0, 1)]


def pose(name="gcn", extra=(), weighted=False):
    """A GCN on a graph with a node of its own; ``extra`` edges may be loops and repeat others."""
    torch.manual_seed(0)
    edges = torch.tensor([*PAIRS, *[(j, i) for i, j in PAIRS], *extra]).T.contiguous()
    model = MODELS[name]().double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.7)
        weight = torch.rand(edges.size(1)).double() if weighted else None
        return model.problem(Inputs(torch.randn(7, 3).double(), edges, edge_weight=weight))


def star(at):
    found = {f.name: getattr(at, f.name) for f in fields(Star)}
    return Star(**{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in found.items()})


def robot(problem, node):
    """All that one node has: its part of the model, its star, and its edges."""
    at = problem.graph.star(torch.tensor([node]))
    model = walk(problem.node.at(at), lambda x, _: x.detach().numpy())
    return model, replace(star(at), nodes=None, edges=None), at.edges.numpy()


def close(mine, theirs, tol=1e-12):
    np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=tol, atol=tol)


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("extra", [(), LOOPS], ids=["simple", "multigraph"])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_that_of_pyg(name, extra, weighted):
    problem = pose(name, extra, weighted)
    assert isinstance(problem.node, hogwild_node.GCN)
    graph = problem.graph
    h = torch.randn(problem.replicas, problem.channels, graph.num_nodes).double()
    inbox = torch.randn(*h.shape[:2], graph.num_edges).double()
    for layer in range(problem.depth):
        theirs = problem.update(layer, h, inbox, graph.everyone)
        close(problem.node.update(layer, h, inbox, graph.everyone).detach().numpy(), theirs)
        for node in range(graph.num_nodes):
            model, at, edges = robot(problem, node)
            mine = model.update(layer, h[..., [node]].numpy(), inbox[..., edges].numpy(), at)
            close(mine, theirs[..., [node]])


@pytest.mark.parametrize(
    ("rule", "loss"),
    [(rule, 0.0) for rule in RULES] + [("overwriting", 0.3), ("caching", 0.3)],
)
@pytest.mark.parametrize("extra", [(), LOOPS[:1]], ids=["simple", "loop"])
def test_robots_run_as_the_simulator_does(rule, loss, extra):
    """Every node by itself in NumPy, with the packets of one schedule, against all in torch."""
    problem = pose(extra=extra)
    graph, start = problem.graph, problem.start().detach()
    lost = [BernoulliLoss(loss)] if loss else []
    schedule = Schedule(graph, stagger=3, delay=2, seed=1, impairments=lost)
    with torch.no_grad():
        theirs = Simulation(rule_for(problem, rule), schedule, start, impairments=lost)
    src, reverse = graph.src.numpy(), graph.reverse.numpy()
    robots, sent, letters = [], [], {}
    own = [start[..., [i]].numpy().copy() for i in range(graph.num_nodes)]
    for i in range(graph.num_nodes):
        model, at, edges = robot(problem, i)
        mine = RULES[rule](model, at, problem.channels)
        first = mine.begin(own[i], np.concatenate([own[src[e]] for e in edges], -1)
                           if len(edges) else np.zeros((*own[i].shape[:2], 0)))  # fmt: skip
        letters |= {e: first[..., k] for k, e in enumerate(edges)} if first is not None else {}
        sent.append(mine.broadcast(own[i], at))
        robots.append((mine, at, list(edges)))
    held = {}  # what each edge delivered last
    past = []
    for _ in range(60):
        past.append((list(sent), dict(letters)))
        with torch.no_grad():
            tick = theirs.step()
        edges, views = tick.at.edges.tolist(), tick.view.tolist()
        fetched = [True] * len(edges) if tick.fetched is None else tick.fetched.tolist()
        for e, view, new in zip(edges, views, fetched, strict=True):
            if new or e not in held:
                packets, post = past[view]
                held[e] = packets[src[e]], post.get(reverse[e])
        for i in tick.at.nodes.tolist():
            mine, at, inward = robots[i]
            width = (*sent[i].shape[:2], 0)
            inbox = np.concatenate([np.zeros(width), *(held[e][0] for e in inward)], -1)
            mail = None
            if mine.letter:
                shape = (sent[i].shape[0], mine.letter, 0)
                mail = [held[e][1][..., None] for e in inward]
                mail = np.concatenate([np.zeros(shape), *mail], -1)
            own[i], post = mine.update(own[i], inbox, mail, at)
            close(own[i], theirs.h[..., [i]])
            if mine.silent is None or not mine.silent[0]:
                sent[i] = mine.broadcast(own[i], at)
                letters |= {e: post[..., k] for k, e in enumerate(inward)} if mine.letter else {}
    if rule != "overwriting":
        answer = problem.start()
        for layer in range(problem.depth):
            everyone = graph.everyone
            answer = problem.update(layer, answer, everyone.current(answer), everyone)
        close(np.concatenate(own, -1), answer, 1e-10)


def test_other_layers_stay_with_torch():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1], [1, 0]])
    dropped = GCN(3, out_channels=2, hidden_channels=4, dropout=0.5).train()
    normed = GCN(3, out_channels=2, hidden_channels=4, norm=nn.LayerNorm(4)).eval()
    for model in (LayeredGNN([SAGEConv(4, 4)], 3, out_channels=2).eval(), normed):
        problem = model.problem(Inputs(torch.randn(2, 3), edges))
        assert problem.node is problem
        assert isinstance(problem.node, LayeredProblem)
    problem = dropped.eval().problem(Inputs(torch.randn(2, 3), edges))
    assert isinstance(problem.node, hogwild_node.GCN)
    dropped.train()
    assert problem.node is problem  # a node draws its own dropout
