"""Workers in one process: the answers are those of the solver, whatever the disorder."""

import pytest
import torch
from cluster_parts import gather, owners, workers

from hogwild import GSDGNN, IGNN, EnergyGNN, Inputs
from hogwild.cluster.engine import Disorder, run
from hogwild.cluster.work import error_bar
from hogwild.testing import check_executor, random_graph

DOUBLE = {"dtype": torch.float64}
MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2, hidden_channels=3),
    "energy-node": lambda: EnergyGNN(3, out_channels=2, message="node", normalize=True),
    "gsd": lambda: GSDGNN(3, out_channels=2),
    "ignn": lambda: IGNN(3, out_channels=2, hidden_channels=4, act="tanh"),
}


def case(name, sizes=(12,), seed=0):
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    graph = random_graph(list(sizes), seed=seed)
    x = torch.randn(graph.num_nodes, 3, **DOUBLE)
    inputs = Inputs(x, torch.stack([graph.src, graph.dst]))
    with torch.no_grad():
        return model.problem(inputs).detach(), model.embed(inputs).value.mT[None]


def error(found, owner, answer):
    return float((gather(found, owner) - answer).norm() / answer.norm())


@pytest.mark.parametrize("disorder", [{}, {"delay": 6, "loss": 0.3}])
def test_check_executor(disorder):
    def execute(problem, rule, seed):
        owner = owners(problem.graph.num_nodes, 3)
        found, _ = workers(problem, owner, 3, tol=1e-8)
        assert run(found, Disorder(seed=seed, **disorder))
        return gather(found, owner)

    check_executor(execute)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_solver_within_the_error_bar(name, count):
    problem, answer = case(name)
    owner = owners(12, count)
    found, _ = workers(problem, owner, count, tol=1e-6)
    assert run(found, Disorder(seed=1, delay=4, loss=0.2))
    bar = error_bar([w.work.measure for w in found])
    gap = gather(found, owner) - answer
    assert bar.relative <= 1e-6
    actual = gap.norm() if name != "ignn" else gap.abs().max()
    assert float(actual) <= bar.error + 1e-8
    assert error(found, owner, answer) <= 1e-5


@pytest.mark.parametrize("name", ["energy", "gsd", "ignn"])
def test_workers_that_die_go_on_from_their_checkpoints(name, tmp_path):
    problem, answer = case(name)
    owner = owners(12, 3)
    for seed in range(2):
        folder = tmp_path / str(seed)
        found, make = workers(problem, owner, 3, tol=1e-6, folder=folder)
        for worker in found:
            worker.save()
        assert run(found, Disorder(seed=seed, delay=3, kill=0.2, kills=3), revive=make)
        assert sum(w.version[0] for w in found) == 3
        assert error(found, owner, answer) <= 1e-5


@pytest.mark.parametrize("name", ["energy", "gsd", "ignn"])
@pytest.mark.parametrize(
    ("sizes", "count"), [((1, 1, 4), 2), ((7, 3, 1), 4), ((5,), 9)],
    ids=["isolated", "disconnected", "more-workers-than-nodes"],
)  # fmt: skip
def test_unusual_graphs(name, sizes, count):
    problem, answer = case(name, sizes)
    owner = owners(sum(sizes), count, seed=3)
    found, _ = workers(problem, owner, count, tol=1e-6)
    assert run(found, Disorder(seed=0, delay=2))
    assert error(found, owner, answer) <= 1e-5


def test_a_restarted_worker_hears_embeddings_and_not_only_versions(tmp_path):
    problem, _ = case("gsd")
    owner = owners(problem.graph.num_nodes, 2)
    (a, b), make = workers(problem, owner, 2, folder=tmp_path)
    a.update()
    mail = a.outgoing(1)
    assert b.receive(0, mail)
    a.has_arrived(1, mail, b.version[0])
    b = make(1)  # it has forgotten what it heard
    short = a.outgoing(1)
    assert short.packet is None  # the first life has the embeddings
    assert not b.receive(0, short)
    a.has_arrived(1, short, None)
    assert a.owes(1)
    assert a.outgoing(1).packet is not None


def test_mail_to_an_earlier_life_does_not_count(tmp_path):
    problem, _ = case("gsd")
    owner = owners(problem.graph.num_nodes, 2)
    (a, b), make = workers(problem, owner, 2, folder=tmp_path)
    a.update()
    mail = a.outgoing(1)
    assert b.receive(0, mail)
    early = b.version[0]
    b = make(1)
    a.receive(1, b.outgoing(0))  # before the news that the mail has arrived
    a.has_arrived(1, mail, early)
    assert a.outgoing(1).packet is not None
