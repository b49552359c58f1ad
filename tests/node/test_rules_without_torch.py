"""A rule on one node in NumPy makes the updates that it makes on a whole graph in torch."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE
from models.test_export import MODELS, neighbours
from torch import Tensor

from hogwild import EIGNN, GCN, Inputs
from hogwild.models.export import described
from hogwild.rules import fitting, rule_for
from hogwild_node import model as node_models
from hogwild_node.model_file import ModelFile, name_of

FIXED = {"wide", "eignn, no encoder", "ignn, tanh"}  # these have a width of their own
CASES = [(name, k, d) for name in MODELS for k in range(1, 9) for d in range(9)]
CASES = [case for case in CASES if case[0] not in FIXED or case[1] == 2]
SIZES = [(2, 2), (3, 8)]  # k and degree, by turns
QUICK = {("edge", 1, 0), ("edge", 8, 3), *((name, 2, 3) for name in FIXED)}
QUICK |= {(name, *SIZES[i % 2]) for i, name in enumerate(sorted({*MODELS} - FIXED))}


def sampled(case):
    """The case, which is slow unless it is one of the few quick ones."""
    return case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow)


def wheel(degree):
    """A node with so many neighbours, which also form a path."""
    pairs = [(0, i) for i in range(1, degree + 1)] + [(i, i + 1) for i in range(1, degree)]
    both = [*pairs, *((j, i) for i, j in pairs)]
    return torch.tensor(both, dtype=torch.long).reshape(-1, 2).T


def read(edge_index, letters):
    """The letters that the receiver of every edge reads: those filed under the reverse edge."""
    place = {(i, j): e for e, (i, j) in enumerate(edge_index.T.tolist())}
    back = torch.tensor([place[j, i] for i, j in edge_index.T.tolist()], dtype=torch.long)
    return letters[..., back]


@pytest.mark.parametrize(("name", "k", "degree"), [sampled(case) for case in CASES])
def test_one_update_and_a_hundred(name, k, degree):
    torch.manual_seed(k + 10 * degree)
    options = {} if name in FIXED else {"hidden_channels": k}
    model = MODELS[name](**options).double().eval()
    n, edge_index = degree + 1, wheel(degree)
    attr = None if model.edge_dim is None else torch.randn(edge_index.size(1), 2, **DOUBLE)
    rank = 0.5 + 0.1 * edge_index.sum(0).double()  # of equal weight both ways
    weight = None if isinstance(model, GCN | EIGNN) else rank
    inputs = Inputs(torch.randn(n, 3, **DOUBLE), edge_index, attr, edge_weight=weight)
    config, tensors = described(model)
    alone = node_models.of(ModelFile(config, tensors, name_of(config, tensors)))
    with torch.no_grad():
        problem = model.problem(inputs).detach()
        for rule in (set(fitting(problem)) & {*alone.rules}) - {"balls"}:  # test_balls.py has those
            follow(problem, alone, inputs, rule)


def follow(problem, alone, inputs, rule):
    """Run a rule on all nodes in torch, and beside it on node 0 in NumPy."""
    graph, edge_index = problem.graph, inputs.edge_index
    whole = rule_for(problem, rule, "auto", None)
    everyone = graph.everyone
    near, _ = neighbours(inputs, 0, alone.encode)
    at = node_models.star_of(len(near))
    mine = (edge_index[1] == 0).nonzero()[:, 0]
    local = alone.pose(alone.encode(inputs.x[0].numpy()), near, rule)
    single = alone.rule(rule, local, at)
    h = problem.start()
    own = h[..., :1].numpy().copy()
    letters = whole.begin(h, everyone.current(h))
    first = single.begin(own, everyone.current(h)[..., mine].numpy())
    close(first, None if letters is None else letters[..., mine], 1e-8)
    for tick in range(problem.depth if whole.ends else 100):
        inbox = everyone.current(whole.broadcast(h, everyone))
        mail = None if letters is None else read(edge_index, letters)
        heard = inbox[..., mine].numpy().copy()
        post = None if mail is None else mail[..., mine].numpy().copy()
        own, sent = single.update(own, heard, post, at)
        h, letters = whole.update(h, inbox, mail, everyone)
        if tick == 0:
            close(own, h[..., :1], 1e-12)
            close(sent, None if letters is None else letters[..., mine], 1e-8)
    close(own, h[..., :1], 1e-7)


def close(one, two, tolerance):
    assert (one is None) == (two is None)
    if one is not None and one.size:
        assert isinstance(two, Tensor)
        size = max(float(two.abs().max()), 1.0)
        np.testing.assert_allclose(one, two.numpy(), rtol=0.0, atol=tolerance * size)
