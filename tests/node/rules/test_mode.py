"""A node's search for its cluster's mode: the same alone and among others, and no longer than it
must be."""

import copy

import pytest
import torch
from helpers import on_torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from hogwild import GSDGNN, EnergyGNN, Inputs, simulate
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.ops import gather
from hogwild.rules import message_rule
from hogwild.testing.problems import random_graph
from hogwild_node.problems import Energy

# Of features; embeddings of 1 to more than 100. Far beyond, a search's decisions hang on rounding.
SCALES = (1.0, 30.0)
VARIANTS = {
    "edge": lambda: EnergyGNN(3, out_channels=2),
    "node": lambda: EnergyGNN(3, out_channels=2, message="node"),
    "heads": lambda: EnergyGNN(3, out_channels=2, heads=2),
    "replicas": lambda: EnergyGNN(3, out_channels=2, replicas=3),
    "denoising": lambda: GSDGNN(3, out_channels=2),
}


def graph_of(nodes, scale, seed):
    graph = random_graph([nodes], seed=seed, extra=0.7)
    rng = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(nodes, 3, generator=rng, dtype=torch.float64)
    return Data(x=x, edge_index=torch.stack([graph.src, graph.dst]))


def posed(variant, data, seed):
    torch.manual_seed(seed)
    problem = (
        VARIANTS[variant]().double().problem(Inputs(data.x, data.edge_index, None, data.batch))
    )
    return problem.detach()


def under_way(problem, ticks, stagger=1, delay=0):
    """A simulation after so many ticks."""
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay)
    simulation = Simulation(message_rule(problem), schedule, problem.start())
    for _ in range(ticks):
        simulation.step()
    return simulation


def same(found, expected, tol=1e-12):
    """Equal, relative to the largest entry."""
    assert float((found - expected).abs().max()) <= tol * float(expected.abs().max())


def after_an_update(simulation, nodes):
    """The rule after an update of these nodes, all on one tick, and what they sent."""
    rule = copy.deepcopy(simulation.rule, {id(simulation): simulation})  # which the rule knows
    graph = simulation.graph
    h, at = simulation.h, graph.star(nodes)
    inbox = gather(h, graph.src)
    mail = torch.cat([rule.sent, rule.gradient.refresh(h, inbox, graph.everyone)], 1)
    mail = mail[..., graph.reverse]
    return rule, *rule.update(h[..., nodes], inbox[..., at.edges], mail[..., at.edges], at)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=3, deadline=None, phases=[Phase.generate], derandomize=True)
@given(st.integers(0, 1000), st.sampled_from(SCALES), st.integers(1, 8))
def test_an_update_is_the_same_alone_and_among_others(variant, seed, scale, ticks):
    """Of one node, and of one graph of a batch (the runs of a simulation are such graphs)."""
    graphs = [graph_of(n, scale, seed + n) for n in (6, 3)]
    problem = posed(variant, Batch.from_data_list(graphs), seed)
    simulation = under_way(problem, ticks)
    everybody = torch.arange(9)
    together, new, sent = after_an_update(simulation, everybody)
    slot = problem.graph.star(everybody).slot
    for nodes in (torch.tensor([0]), torch.tensor([4]), torch.arange(6), torch.arange(6, 9)):
        alone, mine, said = after_an_update(simulation, nodes)
        same(mine, new[..., nodes])
        same(alone.own[..., nodes], together.own[..., nodes])
        assert torch.equal(alone.trust.share[:, nodes], together.trust.share[:, nodes])
        # A message is what is left of a sum without its receiver's term, which loses digits.
        same(said, sent[..., torch.isin(slot, nodes)], tol=1e-8)


@pytest.mark.parametrize("variant", ["edge", "node", "heads"])
def test_a_run_is_the_same_alone_and_among_others(variant):
    torch.manual_seed(0)
    model, data = VARIANTS[variant]().double(), graph_of(6, 1.0, 0)
    options = {"rule": "messages", "ticks": 50, "tol": None}
    same(simulate(model, data, **options).h[0], simulate(model, data, runs=3, **options).h[0])


def evaluations(monkeypatch):
    """Counts of nodes whose energy was modelled to second order, call by call."""
    counts = []
    quadratic = Energy.quadratic

    def count(self, h, inbox, at, majorise=0.0):
        if majorise == 0.0:  # majorising models are for gradient steps
            counts.append(at.size)
        return quadratic(self, h, inbox, at, majorise)

    monkeypatch.setattr(Energy, "quadratic", count)
    return counts


@pytest.fixture
def settled():
    """A simulation of eight nodes that have arrived."""
    return under_way(posed("edge", graph_of(8, 1.0, 0), 0), 90)


def test_a_settled_node_evaluates_its_energy_once(settled, monkeypatch):
    """Less is impossible: without a look it could not tell that what it heard changes nothing."""
    simulation = on_torch(settled)  # where evaluations can be counted
    counts = evaluations(monkeypatch)
    before = simulation.h.clone()
    simulation.step()
    assert counts == [8]
    assert float((simulation.h - before).abs().max()) < 1e-8 * float(before.abs().max())
