"""Energies that users write as two functions."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

import hogwild
from hogwild import GNN, Inputs
from hogwild.models import ImplicitConv, Kind
from hogwild.nn import MLP
from hogwild.ops import as_field
from hogwild.problems import Pairwise
from hogwild.solvers import Newton, solve
from hogwild.testing import Quadratic, check_model, random_graph
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over


@dataclass
class Huber(Pairwise):
    target: Tensor = over(NODES)  # [R, k, N]
    pull: Tensor = over(EDGES)  # [E]
    most: float = over(FIXED)
    differences = True

    def node_energy(self, h):
        return 0.5 * (h - self.target).square().sum(1)

    def edge_energy(self, receiver, sender):
        return self.pull * ((1.0 + (receiver - sender).square()).sqrt() - 1.0).sum(1)

    @property
    def constants(self):
        return 1.0, 1.0, 2.0 * self.most


class HuberConv(ImplicitConv):
    kind = Kind.OPTIMISATION

    def __init__(self, in_channels, *, hidden_channels=2, **kwargs):
        super().__init__(in_channels, hidden_channels, **kwargs)
        self.encoder = MLP(in_channels, (hidden_channels,), replicas=self.replicas)

    def reset_parameters(self):
        self.encoder.reset_parameters()

    def default_solver(self):
        return Newton()

    def problem(self, inputs):
        inputs = Inputs.of(inputs)
        graph, dtype = self.graph(inputs), self.precision(inputs.x)
        target = as_field(self.encoder(inputs.x), dtype)
        weight = inputs.edge_weight
        pull = target.new_ones(graph.num_edges) if weight is None else weight.to(dtype)
        return Huber(graph, target, pull, 3.0)


def problem(sizes=(1, 5, 8), seed=0, replicas=2):
    graph = random_graph(list(sizes), seed=seed)
    made = torch.Generator().manual_seed(seed)
    shape = (replicas, 2, graph.num_nodes)
    target = torch.randn(shape, generator=made, dtype=torch.float64)
    pull = 3.0 * torch.rand(graph.num_edges, generator=made, dtype=torch.float64)
    return Huber(graph, target, pull, 3.0)


def test_a_convolution_made_of_it_is_a_model():
    check_model(lambda **options: HuberConv(3, **options))


@given(st.integers(0, 20))
@settings(max_examples=10, deadline=None)
def test_derivatives(seed):
    """Value, gradient and Hessian against autograd on the whole energy."""
    p = problem(seed=seed)
    made = torch.Generator().manual_seed(seed + 1)
    h = torch.randn(p.target.shape, generator=made, dtype=torch.float64)

    def total(x):
        g = p.graph
        return p.node_energy(x).sum() + p.edge_energy(x[..., g.dst], x[..., g.src]).sum()

    at = p.evaluate(h)
    torch.testing.assert_close(at.value.sum(), total(h))
    slope = torch.autograd.functional.jacobian(total, h)
    torch.testing.assert_close(at.gradient, slope, rtol=0, atol=1e-12)
    whole = torch.autograd.functional.hessian(total, h)
    v = torch.randn(h.shape, generator=made, dtype=torch.float64)
    hessian = at.hessian()
    torch.testing.assert_close(
        hessian.apply(v), torch.einsum("rknslm,slm->rkn", whole, v), rtol=0, atol=1e-12
    )
    n = torch.arange(h.size(-1))
    for r in range(2):
        own = whole[r][:, n, r][:, :, :, n].diagonal(dim1=1, dim2=3)
        torch.testing.assert_close(hessian.diagonal()[r], own, rtol=0, atol=1e-12)
    # The bounds hold at this point, and so does the strong convexity.
    rows = whole.abs().sum((3, 4, 5))
    assert (rows <= p.row_bounds() * (1 + 1e-12)).all()
    least = torch.linalg.eigvalsh(whole.reshape(h.numel(), h.numel())).min()
    assert least >= p.convexity().min() - 1e-12


@dataclass
class Spring(Pairwise):
    """The energy of :class:`hogwild.testing.Quadratic`, as two functions."""

    b: Tensor = over(NODES)
    q: Tensor = over(SHARED)
    coupling: float = over(FIXED)

    def node_energy(self, h):
        return 0.5 * (h * torch.einsum("rkl,rln->rkn", self.q, h)).sum(1) - (self.b * h).sum(1)

    def edge_energy(self, receiver, sender):
        return 0.5 * self.coupling * (receiver - sender).square().sum(1)

    @property
    def constants(self):
        sizes = torch.linalg.eigvalsh(self.q)
        return float(sizes.min()), float(sizes.max()), 2.0 * self.coupling


def test_the_answer_of_an_energy_that_is_known():
    known = Quadratic.random(random_graph([1, 4, 9], seed=3), replicas=2)
    same = Spring(known.graph, known.b, known.q, known.coupling)
    found = solve(same, Newton(), same.start())
    assert found.converged.all()
    torch.testing.assert_close(found.value, known.answer(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", ["messages", "gradient"])
def test_nodes_reach_the_answer(rule):
    torch.manual_seed(0)
    ring = torch.arange(8)
    edges = torch.stack([torch.cat([ring, (ring + 1) % 8]), torch.cat([(ring + 1) % 8, ring])])
    data = Data(x=torch.randn(8, 3, dtype=torch.float64), edge_index=edges)
    model = GNN(HuberConv(3), out_channels=1).double()
    run = hogwild.simulate(model, data, rule=rule, runs=2)
    assert run.converged.all()
    torch.testing.assert_close(run.predictions[0], model.predict(data), rtol=0, atol=1e-4)
    assert hogwild.certify(model, data, step="certified").guaranteed


def test_the_solve_runs_in_solve_dtype_whatever_the_fields_have():
    """Fields of a lower precision are what they are; the embeddings are float64."""

    class Rough(HuberConv):
        def problem(self, inputs):
            return super().problem(inputs).map(lambda x: x.float() if x.is_floating_point() else x)

    conv = Rough(3, solver=Newton(atol=1e-11))
    x, edge_index = torch.randn(6, 3), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    found = conv.embed(Inputs(x, edge_index))
    assert found.residual.dtype == torch.float64
    assert float(found.residual) < 1e-11
