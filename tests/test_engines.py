"""Every engine of the list answers as torch does: solves, gradients, held nodes, updates and ticks.

A new engine in ``hogwild.engines.ENGINES`` is compared by this table without further work, on
problems of its kind (:data:`PROBLEMS`). An engine for a GPU runs on an emulated one where there is
none (:data:`EMULATED`), if it has one."""

import pytest
import torch
from emulated_gpu import EmulatedKernel
from emulated_large import EmulatedLargeKernel
from helpers import DOUBLE, on_torch
from kernel_cases import NAMED, assert_alike, engine_of, layer, odd_graph
from kernels.test_rules import ODD, RULES, follow, gap, pose, started

from hogwild import engines
from hogwild.asynchrony.schedule import Schedule
from hogwild.engines import ENGINES, gpu, updates_for
from hogwild.engines.base import TorchEngine, Updates
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
    EnergyProblem: (lambda **options: layer(1, 0.1, **options), NAMED),
    SoftProblem: (soft, {
        "edge": {"edge_dim": 2}, "heads": {"heads": 2, "hidden_channels": 6, "replicas": 2},
    }),
}  # fmt: skip
"""Layers whose problems are of each kind, and their options."""
SLOW = {"marks": pytest.mark.slow}
TABLE = [
    pytest.param(engine, name, id=f"{engine.__name__}-{name}",
                 **SLOW if engine in EMULATED and name not in ("edge", "node") else {})
    for engine in ENGINES
    for name in PROBLEMS[engine.kind][1]
]  # fmt: skip


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


def built(engine, name, only):
    """A layer for this engine, and graphs with loops, parallel edges and weights."""
    device, (make, options) = only(engine), PROBLEMS[engine.kind]
    conv = make(**options[name])
    inputs = odd_graph(3, [25, 1, 40], 1.3, False, conv.edge_dim, weighted=True)
    return conv.to(device), inputs.to(device)


@pytest.mark.parametrize(("engine", "name"), TABLE)
def test_solutions_and_gradients(engine, name, only):
    """Several packs of eight rows, several fronts, more edges than a block has threads."""
    conv, inputs = built(engine, name, only)
    assert_alike(conv, inputs)
    one = engine_of(conv, inputs)
    assert issubclass(type(one), engine), one.path
    h = one.solve(None).value
    ended, found = one.vjp(h, torch.ones_like(h))
    assert ended.converged.all()
    assert len(found) == len(one.problem.sources)
    gradient, scale = one.gradient(h + 1.0)
    at = one.problem.detach().evaluate(h + 1.0)
    torch.testing.assert_close(gradient, at.gradient, rtol=1e-11, atol=1e-10)
    torch.testing.assert_close(scale, at.scale)


@pytest.mark.parametrize(("engine", "name"), TABLE)
def test_held_nodes(engine, name, only):
    """They stay where a solve begins, and the others are solved for."""
    conv, inputs = built(engine, name, only)
    engine = engine_of(conv, inputs)
    start = torch.randn(engine.solve(None).value.shape, **DOUBLE).to(inputs.x)
    held = torch.arange(start.size(-1), device=start.device) % 3 == 0
    one = engine.holding(held)
    two = TorchEngine(engine.problem, conv.solver, "a test", held)
    here, there = one.solve(start), two.solve(start)
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)
    assert torch.equal(here.status, there.status)
    torch.testing.assert_close(here.value[..., held], start[..., held])
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
