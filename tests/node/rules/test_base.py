"""A node that computes alone, in NumPy, follows the rule of all nodes together."""

import numpy as np
import pytest
import torch
from tiny_nodes import ENERGIES, LOOPS, alone, close, pose, star

from hogwild.rules import rule_for
from hogwild_node import FixedPointRule, GradientRule, MessageRule
from hogwild_node.tree import walk

CASES = [  # the quick ones hold every energy with both rules and on both kinds of graphs
    pytest.param(name, rule, extra, marks=[pytest.mark.slow] if (a + b + c) % 2 else [])
    for a, name in enumerate(ENERGIES)
    for b, rule in enumerate(("gradient", "messages"))
    for c, extra in enumerate(LOOPS)
]


@pytest.mark.parametrize(("name", "rule", "extra"), CASES)
def test_a_node_alone_follows_the_rule_of_all(name, rule, extra):
    """One update of every node by itself, from what it heard, is the update of all together; and
    so are many, each from the last one's packets."""
    problem, h = pose(name, extra=extra)
    graph, everyone = problem.graph, problem.graph.everyone
    theirs = rule_for(problem, rule)
    letters = theirs.begin(h.clone(), everyone.current(h))
    nodes = []
    for i in range(graph.num_nodes):
        both = rule == "gradient" and problem.node.pairwise
        model, at = alone(problem.node, graph, i, both)
        steps = GradientRule(model, at, problem.channels)
        mine = MessageRule(steps) if rule == "messages" else steps
        edges = graph.star(torch.tensor([i])).edges.numpy()
        own = h[..., [i]].numpy().copy()
        sent = mine.begin(own, everyone.current(h).numpy()[..., edges])
        assert (sent is None) is (letters is None) is both
        if sent is not None:
            close(sent, letters[..., edges], 1e-9)
        nodes.append((mine, at, edges))
    for update in range(8):
        inbox, before = everyone.current(h), h.numpy().copy()
        mail = None if letters is None else letters[..., graph.reverse]
        h, letters = theirs.update(h, inbox, mail, everyone)
        for i, (mine, at, edges) in enumerate(nodes):
            post = None if mail is None else mail.numpy()[..., edges]
            own, sent = mine.update(before[..., [i]], inbox.numpy()[..., edges], post, at)
            close(own, h[..., [i]], 1e-12 if not update else 1e-7)
            if sent is not None:
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
