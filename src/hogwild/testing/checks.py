"""Conformance tests for solvers and models, the library's and your own.

.. code-block:: python

    from hogwild.testing import check_model, check_solver


    def test_my_solver():
        check_solver(MySolver(), kind="objective")


    def test_my_model():
        check_model(lambda **kw: MyModel(3, 2, **kw))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hogwild import Inputs
from hogwild.errors import ConfigError, UnsupportedError
from hogwild.graph import Graph
from hogwild.linalg.solution import Status
from hogwild.models.base import GraphModule, Kind
from hogwild.solvers.loop import Solver, solve
from hogwild.testing.problems import Affine, Quadratic, random_graph

SIZES = [1, 2, 5, 100]


def check_solver(solver: Solver, *, kind: str, device: str = "cpu", rtol: float = 1e-6) -> None:
    """Assert that a solver finds known answers on every graph and reports correct diagnostics.

    Args:
        solver: The solver under test. Its tolerances must be tight enough for ``rtol``, and for a
            difference of at most 1e-10 between a graph alone and the same graph in a batch.
        kind: ``"objective"`` (the solver minimises) or ``"fixed-point"``.
        device: The device of the test.
        rtol: Allowed relative error of the answer.
    """
    graph = random_graph(SIZES, device=device)
    make: Callable[..., Any] = Quadratic.random if kind == "objective" else Affine.random
    problem = make(graph, replicas=3)
    answer = problem.answer()
    found = solve(problem, solver, torch.zeros_like(answer))

    # The solver converges to the answer and reports it.
    assert bool(found.converged.all()), found._diagnosis("solve")
    error = graph.norm(found.value - answer) / graph.norm(answer)
    assert float(error.max()) <= rtol, f"relative error {float(error.max()):.2e} > {rtol:.0e}"
    reported = graph.norm(problem.residual(found.value))
    assert torch.allclose(reported, found.residual, rtol=1e-3, atol=1e-12), "wrong residual"

    # The answer of a graph does not depend on the other graphs of its batch or on other replicas.
    for g in range(graph.num_graphs):
        for r in range(problem.replicas):
            alone, nodes = problem.select(
                torch.tensor([r], device=device), torch.tensor([g], device=device)
            )
            start = torch.zeros_like(answer[r : r + 1, :, nodes])
            single = solve(alone, solver, start)
            gap = (single.value - found.value[r : r + 1][..., nodes]).abs().max()
            assert float(gap) <= 1e-10, f"graph {g} alone differs by {float(gap):.2e} from in batch"
            # Rounding may change the number of iterations a little.
            more = int(found.iterations[r, g]) - int(single.iterations)
            assert abs(more) <= 3 + 0.1 * int(single.iterations), "iterations depend on the batch"

    # A solver that starts at the answer stays there. Without iterations it reports failure.
    warm = solve(problem, solver, found.value)
    assert int(warm.iterations.max()) == 0, "a converged start was iterated on"
    assert torch.equal(warm.value, found.value), "a converged start was moved"
    changes: dict[str, Any] = {"max_iter": 0}
    impatient = solve(problem, replace(solver, **changes), torch.zeros_like(answer))
    assert bool((impatient.status == Status.MAX_ITERATIONS).all()), "non-convergence was hidden"

    # NaN in one graph stays in that graph and is reported.
    broken = make(graph, replicas=3)
    broken.b[0, 0, 0] = float("nan")
    sick = solve(broken, solver, torch.zeros_like(answer))
    assert int(sick.status[0, 0]) == Status.NOT_FINITE, "NaN was not reported"
    assert bool(sick.converged[1:].all() & sick.converged[0, 1:].all()), "NaN spread"


def check_model(
    make: Callable[..., GraphModule],
    *,
    in_channels: int = 3,
    edge_dim: int | None = None,
    device: str = "cpu",
    graph: Graph | None = None,
) -> None:
    """Assert the properties that every model must have.

    * A graph in a batch has the same answer as the graph alone.
    * A permutation of the nodes permutes the answer.
    * A warm start does not change the answer (explicit models take no start).
    * Gradients equal finite differences, and so do second derivatives, unless the model refuses
      them (:class:`~hogwild.errors.UnsupportedError`).
    * The model works under ``no_grad`` and ``inference_mode``, after ``deepcopy``, and after its
      ``state_dict`` is saved and loaded.
    * R replicas equal R separate models.
    * The constructor raises errors that name bad options.

    Args:
        make: Builds the model (:class:`~hogwild.models.Model`) or the layer
            (:class:`~hogwild.models.Conv`); called as ``make()``, ``make(replicas=3)`` and with bad
            options.
        in_channels: Width of the node features.
        edge_dim: Width of the edge features.
        device: The device of the test.
        graph: The graphs of the test; random graphs by default.
    """
    torch.manual_seed(0)
    model = make().to(device, torch.float64)
    graph = random_graph([1, 2, 5, 12], device=device) if graph is None else graph
    n, e = graph.num_nodes, graph.num_edges
    options: dict[str, Any] = {"dtype": torch.float64, "device": device}
    x = torch.randn(n, in_channels, **options)
    edge_attr = None if edge_dim is None else torch.randn(e, edge_dim, **options)
    edge_index = torch.stack([graph.src, graph.dst])
    batch = graph.batch
    inputs = (x, edge_index, edge_attr, batch)

    out = model(*inputs)
    found = model.embed(Inputs(*inputs))
    assert bool(found.converged.all()), "did not converge"
    assert out.dtype == torch.float64
    assert found.status.shape == (graph.num_graphs,)

    # A graph alone equals the graph in its batch.
    for g in range(graph.num_graphs):
        sub, nodes, edges = graph.select(torch.tensor([g], device=device))
        attr = None if edge_attr is None else edge_attr[edges]
        single = model(x[nodes], torch.stack([sub.src, sub.dst]), attr)
        whole = out[g : g + 1] if out.size(0) == graph.num_graphs != n else out[nodes]
        assert torch.allclose(single, whole, rtol=0, atol=1e-9), f"graph {g} depends on its batch"

    # The answer does not depend on the order of nodes and edges.
    perm = torch.argsort(batch * n + torch.randint(n, (n,), device=device), stable=True)
    inverse = torch.argsort(perm)
    shuffle = torch.randperm(e, device=device)
    attr = None if edge_attr is None else edge_attr[shuffle]
    moved = model.embed(Inputs(x[perm], inverse[edge_index][:, shuffle], attr, batch))
    assert torch.allclose(moved.value, found.value[perm], rtol=0, atol=1e-7), "not equivariant"

    # The answer does not depend on the starting point, the gradient mode, or copying.
    if model.kind != Kind.EXPLICIT:
        far = model(*inputs, h0=torch.randn_like(found.value) * 3.0)
        assert torch.allclose(far, out, rtol=0, atol=1e-6), "the answer depends on the start"
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.allclose(model(*inputs), out, rtol=0, atol=1e-9), f"differs under {mode}"
    assert torch.allclose(copy.deepcopy(model)(*inputs), out, rtol=0, atol=1e-9), "deepcopy differs"
    fresh = make().to(device, torch.float64)
    fresh.load_state_dict(model.state_dict())
    assert torch.allclose(fresh(*inputs), out, rtol=0, atol=1e-9), "state_dict round trip differs"

    _check_gradients(model, Inputs(*inputs))
    _check_second_derivatives(model, Inputs(*inputs))
    _check_replicas(make, inputs, device)
    _check_options(make)


BAD_OPTIONS: tuple[tuple[str, object], ...] = (
    ("replicas", 0),
    ("replicas", 1.5),
    ("hidden_channels", 0),
    ("hidden_channels", 2.5),
    ("solver", "newton"),
    ("solve_dtype", torch.int64),
    ("on_failure", "explode"),
)
"""Common options of constructors, each with an invalid value."""


def _check_options(make: Callable[..., GraphModule]) -> None:
    """Check that bad options raise errors that name them, and that unknown options raise errors."""
    for name, value in BAD_OPTIONS:
        text = _refusal(make, **{name: value})
        assert text is None or f"{name}={value!r}" in text, (
            f"the error does not name {name}: {text}"
        )
    assert _refusal(make, no_such_option=1) is None, "an unknown option was ignored"


def _refusal(make: Callable[..., GraphModule], **options: Any) -> str | None:
    """The text of the error; ``None`` if there is no such option, or ``make`` sets it itself."""
    try:
        make(**options)
    except ConfigError as error:
        return str(error)
    except TypeError:
        return None
    return "no error at all"


def _leaves(model: GraphModule, inputs: Inputs) -> tuple[dict[str, Tensor], Inputs]:
    """What has gradients, by name: parameters and features; and the inputs with these features."""
    leaves: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    given = {"x": inputs.x, "edge_attr": inputs.edge_attr}
    new: dict[str, Any] = {n: t.clone().requires_grad_() for n, t in given.items() if t is not None}
    return leaves | new, replace(inputs, **new)


@torch.no_grad()
def _slope(
    value: Callable[[], Tensor], leaves: Sequence[Tensor], along: Sequence[Tensor], step: float
) -> float:
    """The central difference of a function of the leaves in one direction."""

    def at(shift: float) -> float:
        for leaf, direction in zip(leaves, along, strict=True):
            leaf.add_(direction, alpha=shift)
        with torch.enable_grad():
            return float(value())

    found = (at(step) - at(-2 * step)) / (2 * step)
    for leaf, direction in zip(leaves, along, strict=True):
        leaf.add_(direction, alpha=step)
    return found


def _check_gradients(model: GraphModule, inputs: Inputs) -> None:
    """Compare directional derivatives of a random loss with central differences."""
    leaves, given = _leaves(model, inputs)
    weight = torch.randn_like(model.predict(given))

    def loss() -> Tensor:
        return (weight * model.predict(given)).sum()

    grads = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        assert grad is not None, f"no gradient reaches {name}"
        direction = torch.randn_like(leaf)
        # A small step rarely crosses the kink of a ReLU. A solve has a tolerance and needs a larger
        # step.
        step = 1e-7 if model.kind == Kind.EXPLICIT else 1e-5
        numeric, exact = _slope(loss, [leaf], [direction], step), float((grad * direction).sum())
        assert abs(numeric - exact) <= 1e-4 * max(1.0, abs(numeric), abs(exact)), (
            f"gradient of {name}: {exact:.8g}, finite differences {numeric:.8g}"
        )


def _check_second_derivatives(model: GraphModule, inputs: Inputs) -> None:
    """Compare the second derivative of a random loss in two random directions with a central
    difference of gradients."""
    named, given = _leaves(model, inputs)
    leaves = list(named.values())
    one, two = ([torch.randn_like(leaf) for leaf in leaves] for _ in range(2))
    weight = torch.randn_like(model.predict(given))

    def slope(recorded: bool = False) -> Tensor:
        """The derivative in the first direction."""
        loss = (weight * model.predict(given).tanh()).sum()
        grads = torch.autograd.grad(loss, leaves, create_graph=recorded)
        return torch.stack([(g * u).sum() for g, u in zip(grads, one, strict=True)]).sum()

    try:
        grads = torch.autograd.grad(slope(True), leaves, materialize_grads=True)
    except UnsupportedError:
        return
    exact = float(torch.stack([(g * u).sum() for g, u in zip(grads, two, strict=True)]).sum())
    found: list[float] = []
    for step in (1e-5, 1e-6, 1e-7):  # shorter: fewer kinks of a ReLU lie between; but more rounding
        found.append(_slope(slope, leaves, two, step))
        if abs(found[-1] - exact) <= 1e-3 * max(1.0, abs(exact)):
            return
    raise AssertionError(f"second derivative: {exact:.8g}, differences of gradients {found}")


def _check_replicas(make: Callable[..., GraphModule], inputs: tuple[Any, ...], device: str) -> None:
    """Check that R replicas equal R separate models."""
    ensemble = make(replicas=3).to(device, torch.float64)
    together = ensemble(*inputs)
    for r in range(3):
        single = make().to(device, torch.float64)
        single.load_state_dict({k: v[r] for k, v in ensemble.state_dict().items()})
        gap = (single(*inputs) - together[r]).detach().abs().max()
        assert float(gap) <= 1e-9, f"replica {r} differs by {float(gap):.2e} from the model alone"
