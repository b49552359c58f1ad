"""Every engine of the list answers as torch does: solves, gradients, held nodes, updates and ticks.

A new engine in ``hogwild.engines.ENGINES`` is compared by this table without further work, on
problems of its kind (:data:`PROBLEMS`). An engine for a GPU runs on an emulated one where there is
none (:data:`EMULATED`), if it has one."""

import pytest
import torch
from emulated_gpu import EmulatedKernel
from emulated_large import EmulatedLargeKernel
from helpers import DOUBLE, on_torch
from kernel_cases import layer, odd_graph
from kernels.test_rules import ODD, RULES, follow, gap, pose, started

from hogwild import engines
from hogwild.asynchrony.schedule import Schedule
from hogwild.engines import ENGINES, engine_for, gpu, updates_for
from hogwild.engines.base import Updates
from hogwild.engines.eager import TorchEngine
from hogwild.engines.gpu import GpuEngine
from hogwild.engines.gpu_large import LargeGpuEngine
from hogwild.executors.simulation import Simulation
from hogwild.kernels.native import library
from hogwild.models import SoftEnergyConv
from hogwild.problems.energy import EnergyProblem
from hogwild.problems.soft import SoftProblem
from hogwild.solvers import TripleMomentum

pytestmark = pytest.mark.skipif(library() is None, reason="there is no compiled library")
EMULATED = {GpuEngine: EmulatedKernel, LargeGpuEngine: EmulatedLargeKernel}


def soft(**options):
    conv = SoftEnergyConv(3, solver=TripleMomentum(atol=1e-12), **options).double()
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(torch.randn_like(p))
    return conv


PROBLEMS = {
    EnergyProblem: {
        "edge": lambda: layer(1, 0.1, edge_dim=2),
        "heads": lambda: layer(2, 0.1, heads=2, concat=False, message="node", replicas=2),
    },
    SoftProblem: {
        "plain": lambda: soft(edge_dim=2),
        "heads": lambda: soft(heads=2, hidden_channels=6, replicas=2),
    },
}
"""Layers whose problems are of each kind."""
TABLE = [
    pytest.param(engine, make, id=f"{engine.__name__}-{name}")
    for engine in ENGINES
    for name, make in PROBLEMS[engine.kind].items()
]


@pytest.fixture
def only(monkeypatch, tmp_path_factory):
    """Let an engine solve whatever it can, and no other one."""

    def choose(engine):
        if engine.device == "cuda" and not torch.cuda.is_available():
            if engine not in EMULATED:
                pytest.skip("there is no GPU, and no emulation of this engine")
            engine = EMULATED[engine]
            engine.folder = tmp_path_factory.getbasetemp() / engine.__name__
            engine.folder.mkdir(exist_ok=True)
            monkeypatch.setattr(gpu, "most_shared", lambda device: 200_000)
            monkeypatch.setattr(gpu, "multiprocessors", lambda device: 100)
        always = {"fewest": 0, "is_fastest_for": staticmethod(lambda *_: True)}
        monkeypatch.setattr(engines, "ENGINES", (type(engine.__name__, (engine,), always),))
        return "cpu" if engine.device is None else engine.device

    return choose


def posed(engine, make, only):
    """The engine on a problem with loops and parallel edges, torch's, where solves begin, and what
    has gradients."""
    device, conv = only(engine), make()
    inputs = odd_graph(3, [25, 1, 40], 1.3, False, conv.edge_dim, weighted=True)
    inputs.x.requires_grad_()
    problem = conv.to(device).problem(inputs.to(device))
    one = engine_for(problem, conv.solver)
    assert issubclass(type(one), engine), one.path
    shape = (problem.replicas, problem.channels, inputs.num_nodes)
    start = torch.randn(shape, **DOUBLE).to(device)
    over = [inputs.x, *conv.parameters()]
    return one, TorchEngine(problem, conv.solver, "a test"), start, over


def same(one, two, start):
    here, there = (engine.solve(start) for engine in (one, two))
    assert here.converged.all()
    assert there.converged.all()
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)
    return there.value


def gradients(engine, over, h, wanted):
    """The gradients of a loss in features and parameters."""
    loss = (engine.attach(h, "raise") * wanted).sum()
    return torch.autograd.grad(loss, over, materialize_grads=True, retain_graph=True)


@pytest.mark.parametrize(("engine", "make"), TABLE)
def test_solutions_and_gradients(engine, make, only):
    one, two, start, over = posed(engine, make, only)
    assert one.path.startswith("compiled")
    same(one, two, None)
    h = same(one, two, start)
    wanted = torch.randn(h.shape, **DOUBLE).to(h)
    ended, _ = one.vjp(h, wanted)
    assert ended.converged.all()
    found, expected = (gradients(engine, over, h, wanted) for engine in (one, two))
    largest = max(float(g.abs().max()) for g in expected)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-8 * largest)
    ours, scale = one.gradient(start)
    at = two.problem.detach().evaluate(start)
    torch.testing.assert_close(ours, at.gradient, rtol=1e-11, atol=1e-10)
    torch.testing.assert_close(scale, at.scale)


@pytest.mark.parametrize(("engine", "make"), TABLE)
def test_held_nodes(engine, make, only):
    """They stay where a solve begins, and the others are solved for."""
    one, two, start, _ = posed(engine, make, only)
    held = torch.arange(start.size(-1), device=start.device) % 3 == 0
    one, two = one.holding(held), two.holding(held)
    h = same(one, two, start)
    torch.testing.assert_close(h[..., held], start[..., held])
    gradient, _ = one.gradient(start)
    assert not gradient[..., held].any()
    torch.testing.assert_close(gradient, two.gradient(start)[0], rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_updates_and_ticks(engine, rule, only):
    """Of engines that have them."""
    only(engine)
    problem, h = pose(ODD, 14, scale=0.3)
    made, _ = started(RULES[rule], problem, h)
    kernel = updates_for(made, problem.graph, h)
    if not isinstance(kernel, Updates):
        pytest.skip(f"{engine.__name__} has no updates of its own")
    tight = rule in ("constant", "certified")
    follow(RULES[rule], problem, h, 6, 1e-12, 1e-12 if tight else 1e-6)
    runs = [Simulation(RULES[rule](problem), Schedule(problem.graph), h.clone()) for _ in "12"]
    on_torch(runs[1])
    with torch.no_grad():
        for _ in range(20):
            for run in runs:
                run.advance()
    assert gap(runs[0].h, runs[1].h) <= (1e-12 if tight else 1e-6)
    for name in ("updates", "packets", "numbers"):
        assert torch.equal(*(getattr(run.tally, name) for run in runs)), name
