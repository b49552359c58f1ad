"""Soft energies in compiled code, in rows on torch, in the kernel of a GPU (emulated on a CPU, and
itself where there is one), and by Newton's method: one answer."""

import ctypes

import emulated_gpu
import pytest
import torch
from helpers import ODD, ODD_NODES, batch_of, chain, complete, cycle, star
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import Inputs
from hogwild.engines import engine_for, soft_gpu
from hogwild.engines import soft as rows_module
from hogwild.engines.soft import SoftEngine, SoftRows, chebyshev_steps, momentum_steps
from hogwild.kernels.build import SOURCE
from hogwild.kernels.native import library
from hogwild.linalg.krylov import System, cg
from hogwild.models import SoftEnergyConv
from hogwild.problems import soft
from hogwild.solvers import Newton, TripleMomentum, solve
from hogwild.training.recorded import Replay
from hogwild_node.tree import arrays

compiled = pytest.mark.skipif(library() is None, reason="there is no compiled library")


def problem_on(edge_index, n, batch=None, dtype=torch.float64, spread=1.0, device="cpu", **options):
    """A problem with random features, edge weights and parameters."""
    conv = SoftEnergyConv(3, **{"hidden_channels": 5} | options).to(dtype)
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(torch.randn_like(p), alpha=spread)
    weight = torch.rand(edge_index.size(1), dtype=dtype)
    attr = None
    if conv.edge_dim is not None:
        attr = torch.randn(edge_index.size(1), conv.edge_dim, dtype=dtype)
    x = torch.randn(n, 3, dtype=dtype)
    conv, (x, edge_index, attr, batch, weight) = (
        conv.to(device),
        [None if t is None else t.to(device) for t in (x, edge_index, attr, batch, weight)],
    )
    problem = conv.problem(Inputs(x, edge_index, attr, batch, edge_weight=weight)).detach()
    k = conv.hidden_channels
    own = min(3, k)  # node-local terms, which the layer may be without
    inner = torch.linalg.qr(torch.randn(k, own, dtype=dtype))[0].mT.to(device)
    inner = inner.expand(problem.replicas, -1, -1)
    most = problem.local.steepest.amax(1, keepdim=True).expand(-1, own, 1)
    local = problem.local
    fields = {name: getattr(local, name) for name in local.__dataclass_fields__}
    offset = torch.randn(problem.replicas, own, n, dtype=dtype)
    fields |= {
        "inner": inner.contiguous(), "offset": offset.to(device),
        "inner_low": 0.0 * most, "inner_high": 0.1 * most,
    }  # fmt: skip
    return soft.SoftProblem(problem.graph, type(local)(**fields), 1.1 * conv.condition)


def solved(problem, solver=None):
    """The answer of the engine for soft energies."""
    return engine_for(problem, solver or TripleMomentum()).solve(None)


GRAPHS = {
    "one": (torch.zeros(2, 0, dtype=torch.long), 1, None),
    "odd": (ODD, ODD_NODES, None),
    "star": (star(40), 40, None),
    "batch": (*(lambda e, b: (e, b.numel(), b))(*batch_of((chain(9), 9), (complete(6), 6))),),
}
OPTIONS = [
    {},
    {"replicas": 2},
    {"edge_dim": 2, "width": 20},
    {"hidden_channels": 5, "condition": 900.0},
]


ROWS = [*OPTIONS, {"width": 6, "heads": 3, "replicas": 2}]


@compiled
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "replicas", "wide", "stiff"])
def test_answers_agree(name, options):
    """Compiled steps, steps on torch and Newton's method; on every graph as many steps as alone."""
    problem = problem_on(*GRAPHS[name], **options)
    exact = solve(problem, Newton(atol=1e-11), problem.start())
    found = solved(problem, TripleMomentum(atol=1e-10))
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, exact.value, rtol=0, atol=1e-9)
    slow = solve(problem, TripleMomentum(atol=1e-10), problem.start())
    torch.testing.assert_close(slow.value, found.value, rtol=0, atol=1e-9)
    assert bool((slow.iterations - found.iterations).abs().le(1).all())


@compiled
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "replicas", "wide", "stiff"])
def test_adjoints_agree(name, options):
    """Compiled conjugate gradients solve with the Hessian, as those of torch do."""
    problem = problem_on(*GRAPHS[name], **options)
    h = torch.randn_like(problem.start())
    hessian, b = problem.evaluate(h).hessian(), torch.randn_like(h)
    found = SoftEngine(problem, TripleMomentum(adjoint_rtol=1e-12)).dual(h, b)
    assert bool(found.converged.all())
    other = cg(System(hessian.apply, b, problem.graph, 1e-13)).value
    torch.testing.assert_close(found.value, other, rtol=0, atol=1e-10)


@compiled
def test_adjoints_of_tiny_gradients():
    """In float32 the square of a gradient such as 1e-24 is zero; its adjoint is not."""
    edges, batch = batch_of((cycle(7), 7), (chain(9), 9))
    problem = problem_on(edges, 16, batch, dtype=torch.float32)
    h, engine = problem.start(), SoftEngine(problem, TripleMomentum())
    b = torch.randn_like(h)
    small = b * torch.where(batch == 0, 1e-24, 1.0)
    found = engine.dual(h, small)
    assert bool(found.converged.all())
    expected = engine.dual(h, b).value * torch.where(batch == 0, 1e-24, 1.0)
    torch.testing.assert_close(found.value * 1e24, expected * 1e24, rtol=1e-4, atol=1e-4)


LAUNCH = soft_gpu._launch
LAUNCHER = """
extern "C" void run_soft(int blocks, double* shared, int room, Soft* p) {
    emulate_grid(0, 0, blocks, HOG_THREADS, shared, room, [=] { hog_soft(*p); });
}
extern "C" void run_soft_cotangents(int blocks, double* shared, int room, Soft* p,
                                    const Real* lifted, Cotangents* to) {
    emulate_grid(0, 0, blocks, HOG_THREADS, shared, room,
                 [=] { hog_soft_cotangents(*p, lifted, *to); });
}
"""


@pytest.fixture(
    params=["torch", "emulated", "emulated, B held", pytest.param("cuda", marks=pytest.mark.cuda)]
)
def device(request, monkeypatch, tmp_path_factory):
    """Where :class:`SoftRows` take steps, and the device for that."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if request.param == "torch":
        return "cpu"
    monkeypatch.setattr(soft_gpu, "fused", lambda rows, *_: True)  # torch must not take over
    if request.param == "cuda":
        return "cuda"
    folder = tmp_path_factory.getbasetemp() / "emulated_soft"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(soft_gpu, "THREADS", 64)
    most = 1 << 20 if "held" in request.param else 0
    monkeypatch.setattr(soft_gpu, "most_shared", lambda device: most)

    def launch(name, rows, blocks, shared, *arguments):
        kind = soft_gpu.prelude(rows.anchor.dtype)
        text = kind + (SOURCE.parent / "soft.cu").read_text() + LAUNCHER
        room = torch.full((3 * shared // 8,), torch.nan, dtype=torch.float64)
        run = getattr(emulated_gpu.compiled(text, folder), name.replace("hog_", "run_"))
        at = ctypes.c_void_p(room.data_ptr())
        run(min(blocks, 3), at, shared // 8, *emulated_gpu.arguments_of(arguments))

    monkeypatch.setattr(soft_gpu, "_launch", launch)
    return "cpu"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", ROWS, ids=["plain", "replicas", "wide", "stiff", "heads"])
def test_rows_take_as_many_steps_as_the_condition_needs(name, options, device, dtype):
    """What a GPU does: a number of steps that is known beforehand, for any parameters."""
    problem = problem_on(*GRAPHS[name], dtype=dtype, device=device, **options)
    rows, graph, double = SoftRows(problem), problem.graph, dtype == torch.float64
    h = torch.randn_like(problem.start())
    torch.testing.assert_close(rows.gradient(h.mT).mT, problem.evaluate(h).gradient)
    for rtol in (1e-5, 1e-9) if double else (1e-5,):
        y, gradient, count = rows.steps(problem.start().mT, rtol)
        assert count == momentum_steps(problem.condition, rtol)
        at = problem.evaluate(y.mT)
        rounding = (1e-13 if double else 2e-6) * float(at.scale.max())
        torch.testing.assert_close(gradient.mT, at.gradient, rtol=0, atol=rounding)
        assert bool((graph.norm(at.gradient) <= rtol * at.scale).all())
        b = torch.randn_like(y)
        x, left, count = rows.chebyshev(y, b, rtol)
        assert count == chebyshev_steps(problem.condition, rtol)
        product = at.hessian().apply(x.mT)
        rounding = (1e-12 if double else 1e-5) * problem.condition
        torch.testing.assert_close(left, b - product.mT, rtol=0, atol=rounding)
        norm, right, size = (graph.dot(v.mT, v.mT).sqrt() for v in (left, b, x))
        rounding = rows_module.ROUNDING * torch.finfo(dtype).eps * problem.lipschitz() * size
        assert bool((norm <= rtol * right + rounding).all())


@pytest.mark.cuda
def test_a_cuda_graph_records_all_steps():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    problem = problem_on(cycle(300), 300, dtype=torch.float32, hidden_channels=64, device="cuda")
    rows, b = SoftRows(problem), torch.randn(1, 300, 64, device="cuda")
    assert soft_gpu.fused(rows, b)

    def body():
        y, gradient, _ = rows.steps(problem.start().mT, 1e-5)
        return y, gradient, rows.chebyshev(y, b, 1e-5)[0]

    replay = Replay(body, b.device, body)
    for found, expected in zip(replay(), body(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("wrong", ["idle", "off"])
def test_a_wrong_kernel_is_never_called_converged(wrong, monkeypatch):
    """Torch computes the residual: of a kernel that writes nothing, and of one a bit off."""
    problem = problem_on(ODD, ODD_NODES, dtype=torch.float32)
    rows, graph, h = SoftRows(problem), problem.graph, problem.start()
    exact = rows.steps(h.mT, 1e-6)[0], rows.chebyshev(h.mT, h.mT, 1e-5)[0]

    def run(rows, steps, along, inside, anchor, state):
        if wrong == "off":
            y, x, _ = state
            (x if anchor is None else y).copy_(exact[anchor is None] * 1.001)

    monkeypatch.setattr(soft_gpu, "fused", lambda rows, *_: True)
    monkeypatch.setattr(soft_gpu, "run", run)
    y, gradient, _ = rows.steps(h.mT, 1e-6)
    assert bool((graph.norm(gradient.mT) > 1e-6 * problem.size_of(y.mT)).all())
    x, left, _ = rows.chebyshev(h.mT, h.mT, 1e-5)
    norm, right, size = (graph.dot(v, v).sqrt() for v in (left.mT, h, x.mT))
    rounding = rows_module.ROUNDING * torch.finfo(h.dtype).eps * problem.lipschitz()
    assert bool((norm > 1e-5 * right + rounding * size).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_trusted_where_they_agree(device, dtype, monkeypatch):
    """Before its first use the kernel of gradients is compared with torch."""
    if soft_gpu._launch is LAUNCH and device == "cpu":
        pytest.skip("there is no kernel")
    where = torch.empty(0, device=device).device
    assert soft_gpu.deviation(dtype, where) < (1e-12 if dtype == torch.float64 else 1e-5)
    monkeypatch.setattr(soft_gpu, "_launch", lambda *given: None)
    soft_gpu.trusted.cache_clear()
    with pytest.warns(UserWarning, match="computed by torch"):
        assert not soft_gpu.trusted(dtype, where)
    soft_gpu.trusted.cache_clear()


@pytest.mark.cuda
def test_absolute_tolerances_on_a_gpu():
    """No number of steps is known for an absolute tolerance: solves go step by step."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    problem = problem_on(ODD, ODD_NODES, device="cuda")
    found = solved(problem, TripleMomentum(atol=1e-10))
    assert bool(found.converged.all())


@compiled
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(1.01, 9000), st.sampled_from([1, 2, 16, 33, 200]))
def test_single_precision_arrives(seed, condition, k):
    """In float32 the default tolerance is above the rounding of all widths and conditions."""
    torch.manual_seed(seed)
    single = problem_on(
        cycle(30), 30, dtype=torch.float32, spread=0.3, hidden_channels=k, condition=condition,
    )  # fmt: skip
    double = single.map(torch.Tensor.double)
    found = solved(single)
    assert bool(found.converged.all())
    h = found.value.double()
    residual = double.graph.norm(double.evaluate(h).gradient)
    assert bool((residual <= 1.5e-6 * double.size_of(h)).all())


@compiled
def test_threads_change_no_bit():
    """Threads that share a large graph, and threads that take small ones in turn."""
    torch.manual_seed(0)
    n, count = 3000, torch.get_num_threads()
    src = torch.randint(0, n, (9000,))
    large = torch.stack([src, (src + torch.randint(1, 40, (9000,))) % n])
    edges, batch = batch_of(*[(cycle(7), 7)] * 20)
    for args in ((large, n, None), (edges, batch.numel(), batch)):
        problem = problem_on(*args, hidden_channels=16)
        found = []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                engine = SoftEngine(problem, TripleMomentum(adjoint_rtol=1e-9))
                h = engine.solve(None).value
                found.append((h, engine.dual(h, h)))
        finally:
            torch.set_num_threads(count)
        for value, dual in found[1:]:
            assert torch.equal(value, found[0][0])
            torch.testing.assert_close(dual.value, found[0][1].value, rtol=0, atol=1e-7)


@compiled
def test_not_finite():
    """A graph with NaN has no answer; the graph beside it has its own."""
    edges, batch = batch_of((chain(4), 4), (chain(4), 4))
    problem = problem_on(edges, 8, batch)
    alone = solved(problem)
    problem.local.anchor[..., 1] = torch.nan
    found = solved(problem)
    assert found.converged.tolist() == [[False, True]]
    assert torch.equal(found.value[..., 4:], alone.value[..., 4:])


@compiled
def test_beyond_moderate_conditions_newton_solves():
    """One problem, two engines, one answer: the condition number decides which one solves."""
    problem = problem_on(chain(20), 20, condition=5e3)
    few = solved(problem, TripleMomentum(most=1e3, atol=1e-11))
    many = solved(problem, TripleMomentum(atol=1e-11))
    assert int(few.iterations) < 30 < int(many.iterations)
    torch.testing.assert_close(few.value, many.value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", ROWS, ids=["plain", "replicas", "wide", "stiff", "heads"])
def test_cotangents(name, options, scaled, device, monkeypatch):
    """The closed form agrees with autograd in every field of the energy; scales and weights of
    edges may be constants."""
    problem = problem_on(*GRAPHS[name], device=device, **options)
    attached = problem.map(lambda x: x.clone().requires_grad_())
    if not scaled:
        for x in (attached.local.here, attached.local.there, attached.local.weight):
            x.requires_grad_(False)
    h, dual = torch.randn_like(problem.start()), torch.randn_like(problem.start())
    tensors = [x for x, _ in arrays(attached)]
    wanted = [x for x in tensors if x.requires_grad]
    residual = attached.residual(h)
    expected = torch.autograd.grad(residual, wanted, dual, materialize_grads=True)
    for native in (None, library()) if device == "cpu" else (None,):
        monkeypatch.setattr(rows_module, "library", lambda native=native: native)
        fields = SoftRows(attached).cotangents(h.mT.contiguous(), dual.mT.contiguous())
        every = [x for x, _ in arrays(fields)]
        assert len(every) == 13
        found = [x for x, of in zip(every, tensors, strict=True) if of.requires_grad]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
