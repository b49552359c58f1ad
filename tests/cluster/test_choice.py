"""Which work the parts do: chosen by the cost of the whole convergence."""

import math

import torch
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.cluster import Disorder, infer
from hogwild.cluster.choice import Trial, run_auto
from hogwild.cluster.engine import Engine
from hogwild.cluster.worker import Status


def status(unrest, updates):
    return Status(0, (0, updates), {}, unrest, unrest, updates, 0)


def test_a_chain_is_solved():
    """A trial on one part alone would choose gradient steps here."""
    torch.manual_seed(0)
    model = EnergyGNN(2, out_channels=1).double()
    ends = torch.arange(59)
    edge_index = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    data = Data(x=torch.randn(60, 2, dtype=torch.float64), edge_index=edge_index)
    run = infer(model, data, 2, disorder=Disorder())
    assert (run.work, run.converged) == ("solve", True)
    assert list(run.trial) == ["solve"]
    assert max(run.updates) <= 12


def test_large_features_settle():
    torch.manual_seed(0)
    model = EnergyGNN(2, out_channels=1).double()
    ends = torch.arange(39)
    edge_index = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    data = Data(x=30.0 * torch.randn(40, 2, dtype=torch.float64), edge_index=edge_index)
    run = infer(model, data, 3, work="solve", disorder=Disorder(seed=2, delay=2))
    assert run.converged
    with torch.no_grad():
        exact = model.embed(data).value
    assert float((run.h - exact).norm() / exact.norm()) <= 1e-5


def test_the_end_is_extrapolated():
    trial = Trial(lambda seconds, statuses: None)
    assert trial(1.0, [status(1e6, 1)])
    assert trial(2.0, [status(1e5, 2)])
    assert math.isclose(trial.left, 5.0)
    assert not trial(3.0, [status(0.999e5, 6)])  # hardly any progress
    assert trial(4.0, [status(10.0, 7)])  # the end is near
    trial = Trial(lambda seconds, statuses: None, judge=2.0)
    assert trial(1.0, [status(1e6, 1)])
    assert not trial(2.0, [status(1e6, 2)])
    assert trial.left == math.inf
    assert Trial(lambda seconds, statuses: False)(0.0, [status(1e6, 1)]) is False


class Scripted(Engine):
    """Hosts that settle only with one kind of work; each look takes a fixed time."""

    def __init__(self, good):
        self.count, self.good, self.kind, self.calls = 2, good, "", []

    def call(self, method, *args):
        self.calls.append((method, *args))
        if method == "start":
            self.kind = args[0]
        return [["solve", "messages", "gradient"]] * 2

    def one(self, number, method, *args):
        raise NotImplementedError

    def iterate(self, watch=None, seconds=None):
        decay = 10.0 if self.kind == self.good else 1.0001
        for tick in range(1, 1000):
            unrest = 1e6 * decay**-tick
            if watch(0.05 * tick, [status(unrest, tick)]) is False:
                return False
            if unrest <= 1.0:
                return True
        return False


def test_steps_are_chosen_where_solves_do_not_end():
    found = run_auto(Scripted("gradient"), lambda seconds, statuses: None, None)
    assert (found.work, found.done) == ("gradient", True)
    assert "predicted to settle first" in found.reason
    quick = Scripted("solve")
    found = run_auto(quick, lambda seconds, statuses: None, None)
    assert (found.work, found.done, list(found.trial)) == ("solve", True, ["solve"])
    assert quick.calls == [("start", "solve")]
