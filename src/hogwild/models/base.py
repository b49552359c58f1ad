"""What every implicit model shares: solve, attach the implicit gradient, check the input."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data.data import BaseData

from hogwild.errors import (
    ConfigError,
    DeviceError,
    DTypeError,
    FeatureError,
    GraphError,
    InputError,
    check_on_failure,
    require_positive,
)
from hogwild.graph import Graph
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Problem
from hogwild.solvers.adjoint import differentiable
from hogwild.solvers.loop import Solver, solve

F = TypeVar("F", bound=Callable[..., object])


def opaque(method: F) -> F:
    """A method that ``torch.compile`` calls as it is. A solve decides by looking at numbers, graph
    by graph: traced, it falls into dozens of pieces that take minutes to compile."""
    found: F = torch.compiler.disable(method, reason="a solve decides by looking at numbers")
    return found


class Kind(enum.StrEnum):
    """The paper's taxonomy of GNNs, by what defines the embeddings."""

    EXPLICIT = "explicit"
    """A fixed number of layers."""
    FIXED_POINT = "fixed-point"
    """The fixed point of an update."""
    OPTIMISATION = "optimisation-based"
    """The minimiser of an energy."""


class Reader(nn.Module):
    """What reads graphs with features of known widths, and checks them first."""

    in_channels: int
    edge_dim: int | None = None
    """Width of the edge features; ``None``: none are read."""
    replicas: int | None
    validate: bool

    def _graph(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        batch: Tensor | None,
        edge_weight: Tensor | None,
        batch_size: int | None,
    ) -> Graph:
        """The graph, once the input is found to be good."""
        parameter = next(self.parameters())
        check_features(
            x,
            edge_index,
            edge_attr,
            edge_weight,
            in_channels=self.in_channels,
            edge_dim=self.edge_dim,
            replicas=self.replicas,
            dtype=parameter.dtype,
            device=parameter.device,
            validate=self.validate,
        )
        return Graph.of(edge_index, x.size(-2), batch, batch_size, validate=self.validate)


class ImplicitConv(Reader):
    """A layer whose embeddings solve a problem: a subclass says which, in :meth:`problem`."""

    kind: Kind

    def __init__(
        self,
        hidden_channels: int,
        *,
        replicas: int | None,
        solver: Solver,
        solve_dtype: torch.dtype | None,
        on_failure: str,
        validate: bool,
    ) -> None:
        super().__init__()
        if not isinstance(solver, Solver):
            raise ConfigError(
                f"solver={solver!r}; expected an instance such as hogwild.Newton(atol=1e-8)"
            )
        if solve_dtype not in (None, torch.float32, torch.float64):
            raise ConfigError(
                f"solve_dtype={solve_dtype!r}; expected torch.float64, torch.float32 or None (that "
                f"of the parameters)"
            )
        self.hidden_channels = require_positive("hidden_channels", hidden_channels)
        self.replicas = None if replicas is None else require_positive("replicas", replicas)
        self.solver = solver
        self.solve_dtype = solve_dtype
        self.on_failure = check_on_failure(on_failure)
        self.validate = validate

    @abstractmethod
    def problem(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        batch_size: int | None = None,
        heard: Tensor | None = None,
    ) -> Problem:
        """The problem these inputs pose, attached to the autograd graph.

        Args:
            heard: The senders' features as the receiver of every edge last heard them, [E, p] or
                [R, E, p]; by default they are those of ``x``. In a stack features move, and nodes
                hear of it late.
        """

    @opaque
    def embed(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        h0: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Solution:
        """Solve for the embeddings; differentiable, with per-graph diagnostics.

        ``torch.compile`` calls the solve as it is and compiles what comes before and after it.

        Args:
            h0: Starting point, e.g. the embeddings of the previous epoch; zero by default. The
                answer does not depend on it (no gradient flows into it), the number of iterations
                does.
        """
        device = next(self.parameters()).device.type
        with torch.autocast(device, enabled=False):  # a solve in bfloat16 solves nothing
            attached = self.problem(
                x, edge_index, edge_attr, batch, edge_weight=edge_weight, batch_size=batch_size
            )
            dtype = self._dtype(x)
            with torch.no_grad():
                problem = attached.detach()
                start = self._start(problem, h0, dtype, x.device)
                found = solve(problem, self.solver, start)
            h = found.value
            found.check(self.on_failure, cause=lambda: large_features(x=x, edge_attr=edge_attr))
            if torch.is_grad_enabled():
                h = differentiable(attached, h, self.solver.adjoint, self.on_failure)
            return self._report(replace(found, value=h.mT.to(x.dtype)))

    def require_asynchronous(self, edge_index: Tensor, num_nodes: int) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError`, with the reason, unless every node could
        run this model by talking to its neighbours alone."""

    def _dtype(self, x: Tensor) -> torch.dtype:
        """Precision of the solve."""
        dtype = self.solve_dtype or x.dtype
        if dtype not in (torch.float32, torch.float64):
            raise DTypeError(
                f"the solve would run in {dtype}; expected float32 or float64: build the model "
                f"with solve_dtype=torch.float64 (the default) or convert it with .float()"
            )
        return dtype

    def _report(self, found: Solution) -> Solution:
        """The solution as the user sees it: without a replica dimension where there is none."""
        if self.replicas is not None:
            return found
        return Solution(found.value[0], found.status[0], found.iterations[0], found.residual[0])

    def _start(
        self, problem: Problem, h0: Tensor | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        if h0 is None:
            return problem.start().to(dtype)
        h0 = self._embeddings("h0", h0, problem, dtype).detach()
        if self.validate and not bool(torch.isfinite(h0).all()):
            raise FeatureError("h0 holds NaN or infinite values; expected a finite starting point")
        return h0.contiguous()

    def _embeddings(self, name: str, h: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
        """Embeddings given by the user, [N, k] or [R, N, k], as the solver's [R, k, N]."""
        n, k = problem.graph.num_nodes, self.hidden_channels
        allowed = [(n, k)] if self.replicas is None else [(n, k), (self.replicas, n, k)]
        if not isinstance(h, Tensor):
            raise InputError(f"{name} is a {type(h).__name__}; expected a torch.Tensor")
        if tuple(h.shape) not in allowed:
            shapes = " or ".join(str(list(shape)) for shape in allowed)
            raise FeatureError(f"{name} has shape {tuple(h.shape)}; expected {shapes}")
        if not h.is_floating_point():
            raise DTypeError(f"{name} has dtype {h.dtype}; expected floating-point embeddings")
        if h.device != problem.graph.src.device:
            raise DeviceError(
                f"{name} is on {h.device} and the graph on {problem.graph.src.device}; expected "
                f"one device"
            )
        return h.to(dtype).mT.expand(problem.replicas, k, n)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | None = None,  # missing: refused with what is expected
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        h0: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """The embeddings, [N, k] or [R, N, k]."""
        return self.embed(
            x,
            edge_index,  # type: ignore[arg-type]
            edge_attr,
            batch,
            edge_weight=edge_weight,
            h0=h0,
            batch_size=batch_size,
        ).value


LARGE = 50.0
"""Absolute value from which a feature counts as large: hardly any standardised one reaches it."""


def large_features(**features: Tensor | None) -> str:
    """Which of these features are so large that a solve may fail for it, in a line; or ``""``."""
    sizes = {k: float(v.abs().max()) for k, v in features.items() if v is not None and v.numel()}
    found = [f"{name} has entries up to {size:.4g}" for name, size in sizes.items() if size > LARGE]
    if not found:
        return ""
    return (
        f"{' and '.join(found)} in absolute value. Features of such a scale make the problem "
        f"nearly piecewise linear, and the solver passes its kinks one by one. Standardise the "
        f"features: call model.standardize(data) before training (hogwild.train does)"
    )


def uncompiled(model: object) -> object:
    """The module that ``torch.compile`` was given, which shares all parameters; anything else as it
    is. A compiled module hides the class of the model, and the calls inside it."""
    return model._modules.get("_orig_mod", model) if isinstance(model, nn.Module) else model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode; afterwards each of its parts is in the mode it was in."""
    mode = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in mode.items():
            module.training = training


def refuse_batch(edge_attr: object) -> None:
    """Raise where a batch vector was given in the place of edge features, as PyG's own models have
    it."""
    if isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and edge_attr.dtype == torch.long:
        raise DTypeError(
            f"edge_attr is a vector of {edge_attr.numel()} integers; did you mean batch=...? (the "
            f"third positional argument is edge_attr) Expected floating-point edge features"
        )


def check_features(
    x: Tensor | None,
    edge_index: Tensor | None,
    edge_attr: Tensor | None,
    edge_weight: Tensor | None,
    *,
    in_channels: int,
    edge_dim: int | None,
    replicas: int | None,
    dtype: torch.dtype,
    device: torch.device,
    validate: bool,
) -> None:
    """Raise on anything a model cannot use; value checks (they read the device) if ``validate``."""
    given = (
        ("x", x),
        ("edge_index", edge_index),
        ("edge_attr", edge_attr),
        ("edge_weight", edge_weight),
    )
    unknown: object = x
    if isinstance(unknown, BaseData):
        raise InputError(
            f"the model was called with a {type(unknown).__name__}; expected its tensors: "
            f"model(data.x, data.edge_index, data.edge_attr, data.batch), without what there is "
            f"not"
        )
    if x is None or edge_index is None:
        missing = "x" if x is None else "edge_index"
        raise InputError(
            f"{missing} is missing; expected model(x, edge_index): features [num_nodes, "
            f"{in_channels}] and edges [2, num_edges], which a graph without edges has, too: "
            f"torch.empty(2, 0, dtype=torch.long)"
        )
    for name, t in given:
        if t is not None and (not isinstance(t, Tensor) or t.layout != torch.strided):
            kind = t.layout if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"{name} is a {kind}; expected a dense torch.Tensor")
    if edge_index.dim() != 2:
        raise GraphError(f"edge_index has shape {tuple(edge_index.shape)}; expected [2, num_edges]")
    refuse_batch(edge_attr)
    for name, t in (("x", x), ("edge_attr", edge_attr), ("edge_weight", edge_weight)):
        if t is None:
            continue
        if t.dtype != dtype:
            raise DTypeError(
                f"{name} has dtype {t.dtype} and the model's parameters {dtype}; expected one "
                f"dtype: use {name}.to({dtype}), or model.to({t.dtype})"
                if t.is_floating_point()
                else f"{name} has dtype {t.dtype}; expected floating-point features of {dtype}"
            )
    for name, t in given:
        if t is not None and t.device != device:
            raise DeviceError(
                f"{name} is on {t.device} and the model on {device}; expected one device: move "
                f"the data or the model with .to(...)"
            )
    lead = () if replicas is None else (replicas,)
    if (
        x.dim() not in (2, 2 + len(lead))
        or x.size(-1) != in_channels
        or (x.dim() == 3 and x.size(0) != replicas)
    ):
        shapes = f"[num_nodes, {in_channels}]"
        if replicas is not None:
            shapes += f" or [{replicas}, num_nodes, {in_channels}]"
        raise FeatureError(f"x has shape {tuple(x.shape)}; expected {shapes}")
    num_edges = edge_index.size(-1)
    if edge_dim is None and edge_attr is not None:
        if edge_attr.dim() == 1:
            raise FeatureError(
                f"edge_attr of shape {tuple(edge_attr.shape)} was given to a model built without "
                f"edge features; did you mean edge_weight=...? (the third positional argument is "
                f"edge_attr)"
            )
        raise FeatureError(
            f"edge_attr of shape {tuple(edge_attr.shape)} was given to a model built without edge "
            f"features; build it with edge_dim={edge_attr.size(-1)} or leave edge_attr out"
        )
    if edge_dim is not None and edge_attr is None:
        raise FeatureError(
            f"edge_attr is missing: the model was built with edge_dim={edge_dim} and expects "
            f"edge_attr [{num_edges}, {edge_dim}]"
        )
    if edge_attr is not None and tuple(edge_attr.shape) != (num_edges, edge_dim):
        raise FeatureError(
            f"edge_attr has shape {tuple(edge_attr.shape)}; expected [{num_edges}, {edge_dim}], "
            f"one row for each column of edge_index"
        )
    if edge_weight is not None and tuple(edge_weight.shape) != (num_edges,):
        raise GraphError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected [{num_edges}], one weight "
            f"for each column of edge_index"
        )
    if not validate:
        return
    for name, t in (("x", x), ("edge_attr", edge_attr), ("edge_weight", edge_weight)):
        if t is not None and t.numel() and not bool(torch.isfinite(t).all()):
            bad = (~torch.isfinite(t)).nonzero()
            raise FeatureError(
                f"{name} holds {len(bad)} values that are NaN or infinite (first at "
                f"{tuple(bad[0].tolist())}); expected finite numbers: impute or drop them"
            )
    if edge_weight is not None and edge_weight.numel() and bool((edge_weight < 0).any()):
        at = int((edge_weight < 0).nonzero()[0, 0])
        raise GraphError(
            f"edge_weight[{at}] is {float(edge_weight[at]):.4g}; expected nonnegative weights: a "
            f"negative one would cost an energy its convexity and a fixed point its contraction"
        )
