"""Stacks: levels run together, and a node uses nothing it has not heard."""

import pytest
import torch
from helpers import DOUBLE, chain
from helpers import graphs as data
from torch_geometric.data import Data

from experiments.maximum import MaxConv
from hogwild import EIGNN, GNN, IGNN, EnergyGNN, Inputs, Readout, simulate
from hogwild.asynchrony.impairments import BernoulliLoss, Crashes
from hogwild.kernels.native import library
from hogwild.models import Stack
from hogwild.models.gsd import GSDConv
from hogwild.models.scarselli import ScarselliConv
from hogwild.ops import gather, scatter
from hogwild.rules import gradient_rule, rule_for


def arguments(graphs):
    return graphs.x, graphs.edge_index, None, graphs.batch


def stack(layer, **options):
    return lambda: GNN(
        Stack([layer(3, **options), layer(5, **options)]), Readout(2, out_channels=2)
    )


def energies(**options):
    return lambda: EnergyGNN(3, out_channels=2, **({"beta": 2.0, "num_layers": 2} | options))


GRADIENT = {"rule": "gradient"}
STACKS = {
    "energies": (energies(), GRADIENT),
    "energies, attention": (energies(heads=2), GRADIENT),
    "energies, node-wise": (energies(message="node"), GRADIENT),
    "energies, three levels": (energies(num_layers=3), GRADIENT),
    "energies, replicas": (energies(replicas=2), GRADIENT),
    "energies, messages": (energies(), {"rule": "messages"}),
    "denoising": (stack(GSDConv, gamma=9.0, beta=1.0), GRADIENT | {"step": "certified"}),
    "IGNN": (lambda: IGNN(3, out_channels=2, num_layers=3), {}),
    "EIGNN": (lambda: EIGNN(3, out_channels=2, num_layers=2), {}),
    "Scarselli": (stack(ScarselliConv), {}),
    "maximum": (stack(MaxConv), {}),
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks_end_at_their_synchronous_answer(name):
    torch.manual_seed(0)
    make, options = STACKS[name]
    model, graphs = make().double(), data((1, 5))
    loss = BernoulliLoss(0.2, burst=1)
    run = simulate(model, graphs, runs=2, stagger=5, delay=2, impairments=loss, **options)
    assert bool(run.converged.all()), float(run.deviation.max())
    found = model.embed(Inputs(*arguments(graphs))).value
    torch.testing.assert_close(run.h[1], found, rtol=1e-4, atol=1e-5)
    # Attention is compiled where nobody wants gradients of the level below.
    torch.testing.assert_close(run.reference, found, rtol=0, atol=1e-15)
    torch.testing.assert_close(run.predictions[0], model(*arguments(graphs)), rtol=1e-4, atol=1e-4)
    if name == "energies":
        crashes = Crashes(0.5, period=30, downtime=10, until=40, rejoin="cold")
        run = simulate(model, graphs, impairments=crashes, **options)
        assert bool(run.converged.all())


def test_levels_run_together():
    """Level 2 moves long before level 1 has settled, on one schedule, which can be replayed."""
    torch.manual_seed(0)
    model, graphs = EnergyGNN(3, out_channels=2, beta=2.0, num_layers=2).double(), data()
    options = GRADIENT | {"history": 1, "keep_embeddings": True, "tol": None, "ticks": 20}
    run = simulate(model, graphs, record=True, **options)
    assert run.ticks == 20
    assert float(run.embeddings[4].abs().max()) > 0.0  # by tick 5 everybody has had a turn
    again = simulate(model, graphs, replay=run.trace, **options)
    assert torch.equal(again.h, run.h)
    assert torch.equal(again.embeddings, run.embeddings)


def test_a_stack_that_diverges_is_reported_and_not_taken_for_bad_input():
    torch.manual_seed(0)
    model, graphs = EnergyGNN(3, out_channels=2, num_layers=2).double(), data((6,))
    run = simulate(model, graphs, rule="gradient", step=1e3, ticks=300)
    assert not bool(run.converged.any())


@pytest.mark.skipif(library() is None, reason="the kernels are not compiled")
@pytest.mark.parametrize("rule", ["gradient", "messages"])
@pytest.mark.parametrize(
    "options", [{}, {"heads": 2}, {"replicas": 2}, {"message": "node"}], ids=str
)
def test_levels_are_updated_in_compiled_code(rule, options, monkeypatch):
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=2.0, num_layers=3, **options).double()
    crashes = Crashes(0.5, period=10, downtime=4, until=20, rejoin="cold")
    how = {"rule": rule, "runs": 2, "impairments": crashes, "ticks": 30, "tol": None}
    run = simulate(model, data((1, 5)), **how)
    assert run.path.startswith("compiled")
    monkeypatch.setattr("hogwild.rules.levels.updates_for", lambda *_: "switched off")
    plain = simulate(model, data((1, 5)), **how)
    assert plain.path == "torch: switched off"
    torch.testing.assert_close(run.h, plain.h, rtol=0, atol=1e-7)


@pytest.mark.skipif(library() is None, reason="the kernels are not compiled")
@pytest.mark.parametrize("name", ["messages", "gradient"])
@torch.no_grad()
def test_levels_that_begin_again_are_no_longer_compiled(name):
    """Compiled updates know the memory of the first beginning only."""
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=2.0, num_layers=2).double()
    problem = model.problem(Inputs(*arguments(data())))
    graph, start = problem.graph, problem.start()
    everyone = graph.everyone

    def after(rule, h, *, compiled=False):
        letters = rule.begin(h, everyone.current(h))
        assert not compiled or rule.compile().startswith("compiled")
        for _ in range(3):
            h, letters = rule.update(h, everyone.current(h), letters[..., graph.reverse], everyone)
        return h, letters

    used, fresh = rule_for(problem, name), rule_for(problem, name)
    after(used, torch.ones_like(start), compiled=True)
    again, alone = after(used, start), after(fresh, start)
    for one, other in zip(again, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


# -- what a node may know --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: EnergyGNN(3, out_channels=2, num_layers=2), GRADIENT),
        (lambda: IGNN(3, out_channels=2, num_layers=2, act="tanh"), {}),
    ],
    ids=["energies", "IGNN"],
)
def test_a_node_that_hears_nothing_learns_nothing(make, options):
    """Every packet after the first is lost; the first says how things stood at the start, which is
    known two hops away. Features three hops away must not change anything."""
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(6, 3, **DOUBLE)
    found = []
    for _ in range(2):
        run = simulate(
            model, Data(x=x.clone(), edge_index=chain(6)), ticks=30, tol=None, **options,
            impairments=BernoulliLoss(1.0),
        )  # fmt: skip
        found.append(run.h[0])
        x[3] += 1.0
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][3], found[1][3])


@pytest.mark.parametrize(
    "name", ["energies", "energies, attention", "energies, messages", "IGNN", "Scarselli"]
)
def test_an_update_depends_on_the_inbox_alone(name):
    """Whatever the others have done and heard in the meantime."""
    torch.manual_seed(0)
    graphs, model = data((9,)), STACKS[name][0]().double()
    problem = model.problem(Inputs(*arguments(graphs)))
    graph, start = problem.graph, problem.start()
    one = graph.star(torch.tensor([4]))
    others = graph.star(torch.tensor([i for i in range(9) if i != 4]))
    outcomes = []
    for gossip in (False, True):
        nodes = rule_for(problem, **STACKS[name][1])
        letters = nodes.begin(start.clone(), graph.everyone.current(start))
        mail = None if letters is None else letters[..., graph.reverse]

        def at(star, x, mail=mail):
            return None if mail is None else star.at_edges(mail) + x

        if gossip:
            h = torch.randn_like(others.at_nodes(start))
            inbox = torch.randn(*start.shape[:2], others.slot.numel(), **DOUBLE)
            nodes.update(h, inbox, at(others, 0.0), others)
        draw = torch.Generator().manual_seed(1)
        inbox = torch.randn(*start.shape[:2], one.slot.numel(), generator=draw, **DOUBLE)
        outcomes.append(nodes.update(one.at_nodes(start) + 0.1, inbox, at(one, 0.0), one))
    for before, after in zip(*outcomes, strict=True):
        assert (before is None) == (after is None)
        if before is not None:
            torch.testing.assert_close(before, after, rtol=0, atol=1e-13)


# -- the certified step where features move --------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"heads": 2}, {"message": "node"}, {"aggr": "mean"}, {"normalize": True}]
)
def test_neighbours_shares_add_up_to_the_row_bounds(options):
    torch.manual_seed(0)
    graphs = data()
    conv = EnergyGNN(3, out_channels=2, **options, num_layers=2).double().conv.levels[0]
    problem = conv.problem(Inputs(*arguments(graphs))).detach()
    graph = problem.graph
    own, toward = problem.node.row_bounds(graph.everyone)
    total = own + scatter(toward[..., graph.reverse], graph.dst, graph.num_nodes)
    torch.testing.assert_close(total, problem.row_bounds(), rtol=1e-12, atol=0)
    some = graph.star(torch.tensor([3, 7]))
    part, parts = problem.node.row_bounds(some)
    torch.testing.assert_close(part, some.at_nodes(own), rtol=1e-13, atol=0)
    torch.testing.assert_close(parts, some.at_edges(toward), rtol=1e-13, atol=0)


def test_the_certified_step_of_a_settled_level_is_the_one_it_has_alone():
    """Once the level below stands still, and news of it has got round, the step is
    θ / ((½ + D') r) with the row bounds at those features."""
    torch.manual_seed(0)
    model, graphs, age = EnergyGNN(3, out_channels=2, num_layers=2).double(), data((7,)), 9
    settled = model.embed(Inputs(*arguments(graphs))).levels[0].value.mT.unsqueeze(0)
    stacked = model.problem(Inputs(*arguments(graphs)))
    graph = stacked.graph
    problem = stacked.pose(1, settled, gather(settled, graph.src))
    alone = gradient_rule(problem, "certified", age=age)
    moving = gradient_rule(problem, "certified", age=age, moving=True)
    h = torch.randn(1, 2, 7, **DOUBLE)
    inbox, everyone = gather(h, graph.src), graph.everyone
    steps = []
    for rule in (alone, moving):
        letters = rule.begin(h, graph.everyone.current(h))
        steps.append(rule.update(h, inbox, letters[..., graph.reverse], everyone)[0])
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-12, atol=1e-14)
    expected = h - alone.rate * problem.evaluate(h).gradient
    torch.testing.assert_close(steps[1], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", STACKS)
def test_nodes_without_neighbours(name):
    make, options = STACKS[name]
    lonely = Data(x=data().x[:2], edge_index=torch.empty(2, 0, dtype=torch.long))
    run = simulate(make().double(), lonely, ticks=400, tol=1e-4, **options)
    assert bool(run.converged.all())
