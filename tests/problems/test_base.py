"""Fixed points: the step of some nodes, and derivatives that nobody wrote down."""

import torch

from hogwild.ops import gather
from hogwild.testing.problems import Affine, random_graph


def test_fixed_point_update_of_some_nodes():
    graph = random_graph([1, 4, 9], seed=3)
    problem = Affine.random(graph, replicas=2)
    h = torch.randn(2, 2, graph.num_nodes, dtype=torch.float64)
    nodes = torch.tensor([3, 13, 0])
    at = graph.star(nodes)
    some = problem.update(h[..., nodes], gather(h, graph.src)[..., at.edges], at)
    torch.testing.assert_close(some, problem.step(h)[..., nodes])
    v = torch.randn_like(h)
    slow = super(Affine, problem).pullback(h, v)
    torch.testing.assert_close(problem.pullback(h, v), slow)
