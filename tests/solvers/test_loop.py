"""The loop: per-graph stopping, freezing, shrinking and truthful reports."""

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import DOUBLE, batch_of, chain, complete, cycle, edges, tree

from hogwild import EnergyConv, Inputs, Solution
from hogwild.errors import (
    ConfigError,
    ConvergenceError,
    ConvergenceWarning,
)
from hogwild.solvers import LBFGS, Anderson, Newton, Picard, Status, loop, solve
from hogwild.testing import Affine, Quadratic, random_graph

OBJECTIVE = [
    Newton(),
    Newton(linear="cg"),
    LBFGS(),
    Picard(max_iter=100_000),
    Anderson(memory=8),
]
FIXED_POINT = [Picard(), Anderson()]
ALL = [(s, "objective") for s in OBJECTIVE] + [(s, "fixed-point") for s in FIXED_POINT]
NAMES = [f"{type(s).__name__}-{kind}" for s, kind in ALL]


def pose(kind, sizes=(1, 2, 5, 25), replicas=3):
    """Replicas of very different difficulty: the second starts near its answer."""
    make = Quadratic if kind == "objective" else Affine
    problem = make.random(random_graph(list(sizes)), replicas=replicas)
    if kind == "objective":  # better conditioned: gradient steps converge in fewer iterations
        problem.q += 0.5 * torch.eye(problem.channels, **DOUBLE)
    start = torch.zeros_like(problem.b)
    if replicas > 1:
        start[1] = problem.answer()[1] + 1e-7
    return problem, start


@pytest.fixture(params=["shrink", "keep"])
def shrink(request, monkeypatch):
    """Force dropping converged graphs (no batch is small) or keeping all of them; says which."""
    monkeypatch.setattr(loop, "SMALL", {"cpu": 0 if request.param == "shrink" else 1 << 40})
    monkeypatch.setattr(loop, "PRICE", {"cpu": float("inf")})
    return request.param == "shrink"


@pytest.mark.parametrize(("solver", "kind"), ALL, ids=NAMES)
def test_frozen_graphs_stay_bit_identical(solver, kind):
    """A step leaves the problems outside ``active`` exactly as they are."""
    problem, start = pose(kind)
    state = solver.init(problem, start)
    for _ in range(0 if isinstance(solver, Newton) else 2):  # Newton ends a quadratic in one
        state = solver.step(problem, state, torch.ones(3, 4, dtype=torch.bool))
    active = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)
    frozen = ~active[:, problem.graph.batch].unsqueeze(1).expand_as(start)
    before = {k: v.clone() for k, v in state.nodes.items()}
    for _ in range(5):
        state = solver.step(problem, state, active)
        assert torch.equal(state.nodes["h"][frozen], before["h"][frozen])
    assert bool((state.nodes["h"] != before["h"])[0, :, problem.graph.batch == 3].all())


@pytest.mark.parametrize(("solver", "kind"), ALL, ids=NAMES)
def test_shrinking_changes_nothing(solver, kind, shrink, monkeypatch):
    """Dropping converged replicas and graphs: the answers, iterations and residuals stay true."""
    problem, start = pose(kind)
    calls = []
    select = type(problem).select
    monkeypatch.setattr(
        type(problem),
        "select",
        lambda self, r, g: calls.append((r.numel(), g.numel())) or select(self, r, g),
    )
    found = solve(problem, solver, start)
    if shrink and not isinstance(solver, Newton):  # Newton ends all quadratics at once
        assert any(g < 4 for _, g in calls)
    if not shrink:
        assert all(g == 4 for _, g in calls)
    assert bool(found.converged.all())
    graph = problem.graph
    torch.testing.assert_close(
        graph.norm(problem.residual(found.value)), found.residual, rtol=1e-3, atol=1e-11
    )
    for r, g in ((0, 0), (1, 1), (2, 2), (0, 3), (1, 3), (2, 3)):  # all replicas, all graphs
        alone, nodes = select(problem, torch.tensor([r]), torch.tensor([g]))
        single = solve(alone, solver, start[r : r + 1, :, nodes])
        own = found.value[r : r + 1, :, nodes]
        torch.testing.assert_close(single.value, own, rtol=0, atol=1e-8)
        gap = abs(int(single.iterations) - int(found.iterations[r, g]))
        assert gap <= 1 + 0.1 * int(single.iterations)


def test_nonlinear_shrinking_equals_alone(shrink):
    """The same for an energy, whose select drops nodes, edges and features."""
    torch.manual_seed(0)
    parts = [(chain(n), n) for n in (1, 2, 5, 100)]
    edge_index, batch = batch_of(*parts)
    for options in ({}, {"heads": 2}, {"normalize": True}):
        conv = EnergyConv(3, replicas=3, solver=Newton(atol=1e-11), **options).double()
        x = torch.randn(108, 3, **DOUBLE)
        warm = conv(x, edge_index, None, batch).detach()
        cold = warm.clone()
        cold[0, 50:] = 0.0  # only the last graph of the first replica has work to do
        cold[2, :3] += 1.0
        found = conv.embed(Inputs(x, edge_index, None, batch), h0=cold)
        torch.testing.assert_close(found.value, warm, rtol=0, atol=1e-10)
        assert found.iterations[1].tolist() == [0, 0, 0, 0]
        assert int(found.iterations[0, 3]) > 0
        assert int(found.iterations[0, 0]) == 0


@pytest.mark.parametrize("options", [{}, {"message": "node"}, {"heads": 2}], ids=str)
def test_sizes_in_one_batch_equal_alone(options):
    """Graphs of 1, 2, 5 and 100 nodes in one batch, to 1e-10."""
    torch.manual_seed(0)
    parts = [(edges(), 1), (chain(2), 2), (complete(5), 5), (tree(100), 100)]
    edge_index, batch = batch_of(*parts)
    conv = EnergyConv(3, solver=Newton(atol=1e-12), **options).double()
    x = torch.randn(108, 3, **DOUBLE)
    together = conv.embed(Inputs(x, edge_index, None, batch))
    at = 0
    for g, (own, n) in enumerate(parts):
        alone = conv.embed(Inputs(x[at : at + n], own))
        gap = (alone.value - together.value[at : at + n]).detach().abs().max()
        assert float(gap) <= 1e-10
        assert abs(int(alone.iterations[0]) - int(together.iterations[g])) <= 1
        at += n


# -- reports --------------------------------------------------------------------------------------


def hopeless(on_failure="raise", solver=None, **options):
    torch.manual_seed(0)
    solver = LBFGS(max_iter=2) if solver is None else solver
    conv = EnergyConv(3, solver=solver, on_failure=on_failure, **options).double()
    edge_index, batch = batch_of((edges(), 1), (cycle(6), 6))
    return conv, (torch.randn(7, 3, **DOUBLE), edge_index, None, batch)


def test_error_says_where_what_and_why():
    """Graph, replica, residual, iterations and advice are all in the message."""
    conv, inputs = hopeless(replicas=2)
    with pytest.raises(ConvergenceError) as caught:
        conv(*inputs)
    message = str(caught.value)
    for word in (
        "forward solve",
        "4 of 4",
        "graph 1 of replica 0",
        "residual",
        "after 2 iterations",
        "raise max_iter",
        "on_failure=",
    ):
        assert word in message
    conv, inputs = hopeless()
    with pytest.raises(ConvergenceError) as caught:
        conv(*inputs)
    assert "graph 1: residual" in str(caught.value)
    assert "replica" not in str(caught.value)


def test_long_reports_are_cut():
    conv, inputs = hopeless(replicas=9)
    with pytest.raises(ConvergenceError, match="and 13 more") as caught:
        conv(*inputs)
    assert str(caught.value).count("residual") <= 6


def test_failure_can_warn_or_be_ignored(recwarn):
    """Both return the last iterate and its true diagnostics; one of them says so."""
    conv, inputs = hopeless("warn")
    with pytest.warns(ConvergenceWarning, match="graph 1: residual"):
        warned = conv.embed(Inputs(*inputs))
    recwarn.clear()
    conv, inputs = hopeless("ignore")
    quiet = conv.embed(Inputs(*inputs))
    assert not recwarn.list
    assert torch.equal(warned.value, quiet.value)
    assert quiet.status.tolist() == [Status.MAX_ITERATIONS] * 2
    assert quiet.iterations.tolist() == [2, 2]
    h = quiet.value.detach().requires_grad_()
    (g,) = torch.autograd.grad(conv.energy(h, Inputs(*inputs)).sum(), h)
    torch.testing.assert_close(g[1:].abs().max(), quiet.residual[1])


def test_max_iter_is_exact():
    """Given just enough iterations it converges; given one less it does not."""
    conv, inputs = hopeless("ignore", Newton())
    enough = int(conv.embed(Inputs(*inputs)).iterations.max())
    conv.solver = Newton(max_iter=enough)
    assert bool(conv.embed(Inputs(*inputs)).converged.all())
    conv.solver = Newton(max_iter=enough - 1)
    found = conv.embed(Inputs(*inputs))
    assert int(found.iterations.max()) == enough - 1
    assert Status.MAX_ITERATIONS in found.status.tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "solver", [Newton(), Newton(linear="cg"), LBFGS(), Picard(max_iter=100_000)]
)
def test_non_finite_parameters(solver, bad):
    """NaN or infinite parameters are NOT_FINITE, with the advice that belongs to it."""
    conv, inputs = hopeless("raise", solver)
    with torch.no_grad():
        conv.update_nets[0].feature_bias[0].fill_(bad)
    with pytest.raises(ConvergenceError, match="NaN or infinity"):
        conv(*inputs)
    conv.on_failure = "ignore"
    found = conv.embed(Inputs(*inputs))
    assert found.status.tolist() == [Status.NOT_FINITE] * 2


@pytest.mark.parametrize(
    "solver",
    [Newton(), Newton(linear="cg"), LBFGS(), Picard(max_iter=100_000), Anderson()],
    ids=repr,
)
def test_nan_in_one_graph_does_not_touch_the_others(solver):
    """Only the graph with NaN features fails."""
    only_the_second_fails(cycle, (5, 6, 7, 8), beta=0.5, solver=replace(solver, atol=1e-9))


def only_the_second_fails(family, sizes, **options):
    torch.manual_seed(0)
    edge_index, batch = batch_of(*[(family(n), n) for n in sizes])
    conv = EnergyConv(3, validate=False, on_failure="ignore", **options).double()
    x = torch.randn(sum(sizes), 3, **DOUBLE)
    clean = conv.embed(Inputs(x, edge_index, None, batch))
    assert bool(clean.converged.all())
    x[sizes[0] + 2] = float("nan")  # in the second graph
    found = conv.embed(Inputs(x, edge_index, None, batch))
    assert found.status.tolist() == [0, Status.NOT_FINITE, 0, 0]
    healthy = batch != 1
    torch.testing.assert_close(found.value[healthy], clean.value[healthy], rtol=0, atol=1e-6)


def test_nan_in_one_replica_does_not_touch_the_others():
    conv, inputs = hopeless("ignore", Newton(), replicas=3)
    clean = conv(*inputs)
    with torch.no_grad():
        conv.update_nets[0].feature_bias[0][1] = float("nan")
    found = conv.embed(Inputs(*inputs))
    assert found.status.tolist() == [[0, 0], [3, 3], [0, 0]]
    torch.testing.assert_close(found.value[[0, 2]], clean[[0, 2]], rtol=0, atol=1e-9)


def test_impossible_tolerance_is_reported_as_such():
    """Below rounding a solve stalls or runs out of iterations; it never claims convergence."""
    conv, inputs = hopeless("ignore", Newton(atol=0.0, rtol=0.0, max_iter=60))
    with torch.no_grad():
        for p in conv.parameters():
            p.mul_(3.0)
    found = conv.embed(Inputs(*inputs))
    failed = found.residual > 0
    assert bool((found.status[failed] != Status.CONVERGED).all())
    assert bool(failed.any())
    assert float(found.residual.max()) < 1e-8


@dataclass(frozen=True, kw_only=True)
class Sulking(Picard):
    """Gradient descent that declares the first graph stalled after its first step."""

    def step(self, problem, state, active):
        out = super().step(problem, state, active)
        if bool(active[:, 0].any()) and problem.graph.num_graphs == 2:
            out.graphs["stalled"] = torch.tensor([[True, False]])
        return out


def test_a_stalled_graph_stays_stalled():
    """It is not thawed while its batch mates go on."""
    problem = Quadratic.random(random_graph([5, 5]))
    found = solve(problem, Sulking(), torch.zeros_like(problem.b))
    assert found.status.tolist() == [[Status.STALLED, Status.CONVERGED]]
    assert int(found.iterations[0, 0]) == 1
    assert int(found.iterations[0, 1]) > 10


def test_unknown_on_failure():
    with pytest.raises(ConfigError, match=r"'explode'.*raise.*warn.*ignore"):
        EnergyConv(3, on_failure="explode")


def test_every_status_has_advice():
    for status in Status:
        assert len(status.advice) > 10


def test_tolerances_by_dtype():
    """Defaults 1e-8 absolute and 1e-10 relative in float64, 2e-6 relative in float32; explicit ones
    win, and an absolute one alone means itself."""
    assert Newton().tolerances(torch.float64) == (1e-8, 1e-10)
    assert Newton(atol=1e-12).tolerances(torch.float64) == (1e-12, 0.0)
    assert Newton().tolerances(torch.float32) == (0.0, 2e-6)
    assert Newton(atol=1e-3, rtol=1e-2).tolerances(torch.float32) == (1e-3, 1e-2)


@pytest.mark.parametrize(
    "solver",
    [
        Newton(linear="cg"),
        LBFGS(),
        LBFGS(memory=3),
        Anderson(max_iter=5000),
        Picard(max_iter=100_000),
    ],
    ids=repr,
)
def test_every_solver_reaches_newtons_answer(solver):
    """The minimiser is unique: how it is reached does not matter."""
    torch.manual_seed(0)
    edge_index, batch = batch_of((edges(), 1), (chain(2), 2), (cycle(6), 6))
    conv = EnergyConv(3, beta=2.0, replicas=2).double()
    x = torch.randn(9, 3, **DOUBLE)
    expected = conv(x, edge_index, None, batch)
    conv.solver = solver
    found = conv.embed(Inputs(x, edge_index, None, batch))
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("given", [0, "3"])
@pytest.mark.parametrize("make", [LBFGS, Anderson])
def test_memory_must_be_positive(make, given):
    with pytest.raises(ConfigError, match=f"memory={given!r}; expected an integer of at least 1"):
        make(memory=given)


@pytest.mark.parametrize("given", [-1.0, float("nan"), "1e-8", True])
@pytest.mark.parametrize("name", ["atol", "rtol"])
def test_tolerances_must_be_numbers(name, given):
    with pytest.raises(ConfigError, match=f"{name}={given!r}; expected a nonnegative number"):
        Newton(**{name: given})


@pytest.mark.parametrize("make", [Newton, LBFGS])
def test_max_backtracks_must_be_positive(make):
    """A line search without a single trial is refused when it is asked for."""
    with pytest.raises(ConfigError, match="max_backtracks=0"):
        make(max_backtracks=0)


def test_line_search_survives_a_far_start():
    """Damped Newton converges from anywhere."""
    conv, inputs = hopeless("raise", Newton())
    expected = conv(*inputs)
    for far in (1e2, 1e4):
        h0 = far * torch.randn(7, 2, **DOUBLE)
        torch.testing.assert_close(conv(*inputs, h0=h0), expected, rtol=0, atol=1e-6)


def test_stragglers_are_cut_out_of_small_batches(monkeypatch):
    """Once computing frozen graphs along has cost what cutting costs, and not before."""
    problem, start = pose("objective", sizes=(2, 2, 2, 12), replicas=1)
    widths = []
    evaluate = Quadratic.evaluate
    monkeypatch.setattr(
        Quadratic,
        "evaluate",
        lambda self, h: widths.append(h.size(-1)) or evaluate(self, h),
    )
    found = solve(problem, Picard(max_iter=100_000, atol=1e-8), start)
    first, *_, few, many = sorted(found.iterations[0].tolist())
    assert many > few + 20  # one graph goes on alone
    assert set(widths[: first + 8]) == {18}
    assert widths[few + 20] == 12
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, problem.answer(), rtol=0, atol=1e-6)
    widths.clear()
    solve(problem, Picard(max_iter=100_000, atol=1e-8), problem.answer() + 1e-9)
    assert set(widths) == {18}


@pytest.mark.parametrize("cause", ["", "x has entries up to 1e+06"])
def test_a_known_cause_comes_first_and_rounding_is_not_guessed(cause):
    """A residual of 54 on features of that size is no rounding error."""
    status = torch.tensor([int(Status.STALLED), int(Status.MAX_ITERATIONS)])
    found = Solution(
        torch.zeros(2, 1), status, torch.tensor([30, 100]), torch.tensor([54.0, 101.0])
    )
    with pytest.raises(ConvergenceError) as caught:
        found.check(cause=lambda: cause)
    text = str(caught.value)
    assert ("rounding" in text) == (not cause)
    assert text.index(cause) <= text.index("no step decreased the residual any further")
    assert "raise max_iter" in text


def test_what_is_unknown_is_not_told():
    """The compiled adjoint counts neither iterations nor residuals."""
    found = Solution(torch.zeros(2, 1), torch.tensor([1]), torch.tensor([-1]), torch.zeros(1))
    with pytest.raises(ConvergenceError) as caught:
        found.check()
    assert "\n  graph 0\n" in str(caught.value)


def test_float32_fixed_point_solvers_measure_the_gradient():
    """Relative to the terms of the gradient, not to the embeddings."""
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    conv = EnergyConv(3, beta=0.2, solve_dtype=None, solver=Picard(max_iter=200_000, rtol=1e-5))
    exact = EnergyConv(3, beta=0.2)
    exact.load_state_dict(conv.state_dict())
    gap = (conv(x, cycle(4)) - exact(x, cycle(4))).abs().max() / exact(x, cycle(4)).abs().max()
    assert float(gap.detach()) < 1e-3
