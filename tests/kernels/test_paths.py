"""How compiled solves end, and which solves are compiled: the statuses are those of torch."""

from dataclasses import fields, replace

import pytest
import torch
from helpers import DOUBLE, chain, star
from kernel_cases import (
    assert_alike,
    engine_of,
    layer,
    needs_library,
    odd_graph,
    on_torch,
)

from hogwild import Inputs, engines
from hogwild.cluster.work import Part, Work
from hogwild.engines import cpu, engine_for
from hogwild.engines.cpu import CpuEngine
from hogwild.engines.gpu_large import LargeGpuEngine
from hogwild.errors import ConvergenceError, GraphError
from hogwild.kernels.native import address, library
from hogwild.linalg.solution import Status
from hogwild.models import SoftEnergyConv
from hogwild.nn.activations import Activation
from hogwild.problems.energy import EnergyProblem
from hogwild.rules.balls import HeldSolver
from hogwild.solvers import Newton
from hogwild_node.activations import ACTIVATIONS

pytestmark = needs_library


# -- how solves end -----------------------------------------------------------------------------


def ended(conv, inputs):
    """(status, iterations) of every graph: compiled, and on torch."""
    conv.on_failure = "ignore"
    here = conv.embed(inputs)
    with on_torch():
        there = conv.embed(inputs)
    assert torch.equal(here.status, there.status)
    assert torch.equal(torch.isfinite(here.value), torch.isfinite(there.value))
    return here, there


def test_out_of_iterations():
    conv = layer(solver=Newton(atol=1e-11, max_iter=1))
    inputs = odd_graph(11, [6, 1, 9], 2.0)
    here, there = ended(conv, inputs)
    assert here.status.tolist() == [Status.MAX_ITERATIONS] * 3
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)
    torch.testing.assert_close(here.residual, there.residual, rtol=1e-6, atol=1e-12)
    conv.on_failure = "raise"
    with pytest.raises(ConvergenceError, match="ran out of iterations"):
        conv.embed(inputs)


def test_not_finite_on_one_graph_only():
    conv = layer(validate=False)
    inputs = odd_graph(12, [6, 5, 9], 2.0)
    inputs.x[7, 1] = float("nan")
    here, there = ended(conv, inputs)
    assert here.status.tolist() == [0, Status.NOT_FINITE, 0]
    assert torch.equal(here.iterations, there.iterations)
    inputs.x[7, 1] = float("inf")
    here, _ = ended(conv, inputs)
    assert here.status[1] == Status.NOT_FINITE


@pytest.mark.parametrize("tries", [1, 2])
def test_stalled_where_no_step_is_accepted(tries):
    conv = layer(3, 0.3, solver=Newton(max_backtracks=tries))
    inputs = odd_graph(7, [12, 5], 1.5, False)
    here, there = ended(conv, replace(inputs, x=10.0 * inputs.x))
    assert here.status.tolist() == [Status.STALLED] * 2
    assert torch.equal(here.iterations, there.iterations)
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)
    torch.testing.assert_close(here.residual, there.residual)


def test_a_tolerance_of_zero_ends():
    conv = layer(solver=Newton(atol=0.0, rtol=0.0, max_iter=50), hidden_channels=3)
    here, _ = ended(conv, odd_graph(13, [12, 9, 15], 2.0))
    assert float(here.residual.detach().max()) < 1e-13  # as close as rounding allows


def test_graphs_without_nodes_where_nothing_is_validated():
    conv = layer(validate=False)
    inputs = odd_graph(14, [5, 4], 1.5)
    hollow = replace(inputs, batch=inputs.batch * 2, batch_size=4)  # graphs 1 and 3 are empty
    here = conv.embed(hollow)
    assert here.status.tolist() == [0, 0, 0, 0]
    assert here.iterations[1::2].tolist() == [0, 0]
    assert torch.equal(here.value, conv.embed(inputs).value)


@pytest.mark.parametrize("edge", [[0, 9], [-1, 0]])
def test_edges_to_nowhere_are_refused_where_nothing_is_validated(edge):
    conv = layer(validate=False)
    edges = torch.cat([chain(9), torch.tensor([edge]).T], 1)
    with pytest.raises(GraphError, match="an edge names a node that is not there"):
        conv(torch.randn(9, 3, **DOUBLE), edges)


def test_unsorted_batches_are_refused_where_nothing_is_validated():
    conv = layer(validate=False)
    batch = torch.tensor([0, 1, 0])
    with pytest.raises(GraphError, match="batch is not sorted"):
        conv.embed(Inputs(torch.randn(3, 3, **DOUBLE), chain(1), batch=batch, batch_size=2))


def test_a_replica_that_is_not_finite_leaves_the_others_alone():
    """Also in gradients, on the same thread and in the same memory."""
    inputs = odd_graph(20, [9, 3, 17, 1, 5], 1.5, False)
    conv = layer(1, 0.1, replicas=3, validate=False, on_failure="ignore")
    parameters = list(conv.parameters())

    def gradients():
        h = conv.embed(inputs).value
        return h, torch.autograd.grad(h[1:].square().sum(), parameters)

    h, expected = gradients()
    with torch.no_grad():
        for p in parameters:
            p[0] = float("nan")
    broken, found = gradients()
    assert torch.equal(broken[1:], h[1:])
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine[1:], other[1:])


# -- which path a solve takes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": Newton(linear="cg")}, "Newton(linear='auto')"),
        ({"hidden_channels": 9, "widths": (4097,)}, "more layers, units or inputs"),
        ({"widths": (1,) * 12}, "more layers, units or inputs"),
        ({"hidden_channels": 200, "widths": (1,)}, "more layers, units or inputs"),
        ({"solve_dtype": torch.float32}, "float32"),
    ],
)
def test_what_stays_on_torch_says_why(options, words):
    conv = layer(**options)
    inputs = odd_graph(17, [3], 1.0)
    (path,) = conv.solver_path(inputs)
    assert path.startswith("torch: ")
    assert words in path
    if conv.hidden_channels < 9:  # others take seconds
        assert bool(torch.isfinite(conv.embed(inputs).value).all())


def test_custom_activations_stay_on_torch():
    known = ACTIVATIONS["softplus"]
    own = Activation(**{**vars(known), "name": "mine"})
    (path,) = layer(act=own).solver_path(odd_graph(17, [3], 1.0))
    assert path.startswith("torch: the activation 'mine'")


@pytest.mark.parametrize("threads", [1, 3])
def test_hubs_are_not_factorised(threads, monkeypatch):
    """A large star is one dense block, whose plan alone would take seconds: conjugate gradients."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    conv, inputs = layer(), Inputs(torch.randn(2000, 3, **DOUBLE), star(2000))
    with torch.no_grad():
        kernel = engine_of(conv, inputs)
    assert not kernel.direct
    assert kernel.plan.work == 1e300
    assert_alike(conv, inputs)


@pytest.mark.slow
def test_a_crew_of_threads_on_one_large_graph(monkeypatch):
    """Without small separators, and with enough edges for several threads."""
    rng = torch.Generator().manual_seed(0)
    edges = torch.randint(4000, (2, 11000), generator=rng)
    inputs = Inputs(torch.randn(4000, 3, **DOUBLE), torch.cat([edges, edges.flip(0)], 1))
    conv = layer()
    for threads in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        with torch.no_grad():
            assert not engine_of(conv, inputs).direct
        assert_alike(conv, inputs)


def test_activations_that_only_torch_knows_are_named(monkeypatch):
    own = Activation(**{**vars(ACTIVATIONS["softplus"]), "name": "third"})
    monkeypatch.setitem(cpu.ACTIVATIONS, "third", own)
    (path,) = layer(act=own).solver_path(odd_graph(17, [3], 1.0))
    assert path == "torch: the compiled library has no activation 'third'"


def test_compiled_activations_are_those_of_python():
    """Every entry of the table: g, g', g'', the majoriser, and the growth up to a distance."""
    a = torch.linspace(-40.0, 40.0, 4001, **DOUBLE)
    reach = torch.linspace(0.1, 90.0, 4001, **DOUBLE)[torch.randperm(4001)]
    reach[::7] = 0.0
    for code, act in enumerate(cpu.ACTIVATIONS.values()):
        found = torch.empty(5, 4001, **DOUBLE)
        at = [address(x) for x in (a, reach, found)]
        assert library().call("activation", code, 4001, *at) == (0, "")
        slope = act.slope(a)
        curves = act.curvature(a, slope), act.majoriser(a, slope), act.growth(a, slope, reach)
        expected = torch.stack([act.value(a), slope, *curves])
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11, msg=act.name)
    failed, why = library().call("activation", len(cpu.ACTIVATIONS), 4001, *at)
    assert (failed, why) == (1, "the activation is unknown")


class Tilted(EnergyProblem):
    """An energy with a formula of its own."""

    def evaluate(self, h):
        found = super().evaluate(h)
        found.__dict__["gradient"] = super().evaluate(h).gradient + 1.0
        found.__dict__["value"] = super().evaluate(h).value + self.graph.sum(h.sum(1))
        return found


def test_subclasses_of_energies_stay_on_torch():
    conv, inputs = layer(), odd_graph(17, [5], 1.0)
    problem = conv.problem(inputs).detach()
    parts = {f.name: getattr(problem, f.name) for f in fields(problem)}
    engine = engine_for(Tilted(**parts), conv.solver)
    assert engine.path == "torch: Tilted has no compiled solve"
    found = engine.solve(None)
    gradient = problem.evaluate(found.value).gradient
    torch.testing.assert_close(gradient, torch.full_like(gradient, -1.0), rtol=0, atol=1e-9)


def test_ill_conditioned_soft_energies_say_so():
    conv, inputs = SoftEnergyConv(3, condition=2e4).double(), odd_graph(17, [5], 1.0, False)
    (path,) = conv.solver_path(inputs)
    assert "the condition number 20000 is above 10000" in path


class Unloaded(LargeGpuEngine):
    """An engine for a GPU, without its kernels."""

    device = "cpu"
    fewest = 0

    def _load(self):
        """Nothing: there is no GPU."""

    @staticmethod
    def is_fastest_for(native, problem):
        return True


def test_engines_for_a_gpu_leave_gradients_and_held_nodes_to_torch(monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", (Unloaded,))
    monkeypatch.setattr(CpuEngine, "_call", None)  # what would read pointers of a GPU
    conv, inputs = layer(), odd_graph(17, [5], 1.5, False)
    problem = conv.problem(inputs).detach()
    engine, h = engine_for(problem, conv.solver), torch.randn(1, 2, 5, **DOUBLE)
    assert type(engine) is Unloaded
    assert torch.equal(engine.gradient(h)[0], problem.evaluate(h).gradient)
    nowhere = torch.zeros(0, dtype=torch.long)
    work = Work(Part(torch.arange(5), nowhere, nowhere, 5, inputs, {}), 1e-6, h, engine=engine)
    work.look()
    assert torch.equal(work.r, problem.evaluate(h).gradient)
    assert HeldSolver(problem).solver == Newton(linear="cg")


def test_two_backward_passes_through_one_problem():
    """As torch solves it; each solution is differentiated by itself."""
    conv, inputs = layer(), odd_graph(17, [5], 1.5, False)
    with on_torch():
        engine = engine_of(conv, inputs)
    h = engine.solve(None).value
    first, second = (
        torch.autograd.grad(engine.attach(h, "raise").sum(), conv.parameters(), allow_unused=True)
        for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert a is b is None or torch.equal(a, b)
