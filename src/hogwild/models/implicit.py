"""The base class of all implicit layers: it solves a problem and attaches the implicit gradient."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hogwild.engines import Engine, engine_for
from hogwild.errors import (
    ON_FAILURE,
    ConfigError,
    DeviceError,
    DTypeError,
    FeatureError,
    InputError,
    require_one_of,
    require_positive,
)
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution, unreadable
from hogwild.models.base import Conv, Kind, keywords, refuse_unknown
from hogwild.models.validation import (
    first_parameter,
    large_features,
    opaque,
    refuse_transforms,
    studied,
)
from hogwild.ops import all_finite, as_field, precise
from hogwild.problems.base import Problem
from hogwild.solvers.anderson import Anderson
from hogwild.solvers.loop import Solver
from hogwild.solvers.newton import Newton


class Solving(TypedDict, total=False):
    """Arguments that every implicit layer passes on to :class:`ImplicitConv`."""

    replicas: int | None
    solver: Solver | None
    solve_dtype: torch.dtype | None
    on_failure: str
    validate: bool
    out_channels: int  # only where a layer is called: super().__init__() takes hidden_channels


class Checked(NamedTuple):
    """What a layer reads, checked and in the precision of the solve."""

    graph: Graph
    x: Tensor  # [1 or R, p, N] features
    heard: Tensor | None  # [1 or R, p, E] the senders' features as heard; None: those of x
    attr: Tensor | None  # [1, r, E] features of the edges
    weight: Tensor | None  # [E] weights of the edges


class ImplicitConv(Conv):
    """A layer whose embeddings solve a problem. Subclasses define :meth:`problem`.

    Args:
        in_channels: Width p of the node features.
        hidden_channels: Width k of the embeddings. ``out_channels`` means the same, as in PyG's
            layers.
        replicas: ``None``, or a number R of independent parameter sets that are solved side by
            side.
        solver: A :class:`~hogwild.solvers.Solver`. With ``None`` the layer uses
            :meth:`default_solver`.
        solve_dtype: Precision of the solve. With ``None`` it is the precision of the features, at
            least float32, and float64 where the model is simulated, certified or measured.
        on_failure: ``"raise"``, ``"warn"`` or ``"ignore"`` when a solve misses its tolerance.
        validate: Also check the *values* of the inputs (finite, in range, sorted). These checks
            synchronise with the device.

    Shapes:
        x [N, p] (or [R, N, p]), edge_index [2, E], batch [N], edge_attr [E, r] of layers that have
        an ``edge_dim``, edge_weight [E] → [N, k], or [R, N, k] with replicas.
    """

    hops: int = 2
    """How many hops away the residual of a node reads embeddings: 1 for maps and for energies of
    pairs of neighbours, 2 for one-hop energies. A part of a graph needs this many hops of the nodes
    around it."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        replicas: int | None = None,
        solver: Solver | None = None,
        solve_dtype: torch.dtype | None = torch.float64,
        on_failure: str = "raise",
        validate: bool = True,
        **unknown: object,
    ) -> None:
        super().__init__()
        refuse_unknown(type(self), unknown, keywords(type(self), Conv))
        if solver is not None and not isinstance(solver, Solver):
            raise ConfigError(
                f"solver={solver!r}; expected an instance such as hogwild.solvers.Newton(atol=1e-8)"
            )
        if solve_dtype not in (None, torch.float32, torch.float64):
            raise ConfigError(
                f"solve_dtype={solve_dtype!r}; expected torch.float64, torch.float32 or None (the "
                f"dtype of the parameters)"
            )
        self.in_channels = require_positive("in_channels", in_channels)
        self.hidden_channels = require_positive("hidden_channels", hidden_channels)
        self.replicas = None if replicas is None else require_positive("replicas", replicas)
        self.solver = self.default_solver() if solver is None else solver
        self.solve_dtype = solve_dtype
        require_one_of(ON_FAILURE, on_failure=on_failure)
        self.on_failure = on_failure
        self.validate = validate

    def default_solver(self) -> Solver:
        """The solver that the layer uses if the user gave none: Newton's method for energies,
        Anderson acceleration for fixed points."""
        return Newton() if self.kind is Kind.OPTIMISATION else Anderson()

    @abstractmethod
    def problem(self, inputs: Inputs) -> Problem:
        """The problem that these inputs pose, attached to the autograd graph."""

    @opaque
    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        inputs = self.accept(inputs)
        refuse_transforms(self, inputs)
        with self._precise(inputs):
            engine = engine_for(self.problem(inputs), self.solver)
            found = engine.solve(self._start(engine, inputs, h0))
            features = {"x": inputs.x, "edge_attr": inputs.edge_attr}
            found.check(self.on_failure, cause=lambda: large_features(**features))
            h = found.value
            if torch.is_grad_enabled():
                h = engine.attach(h, self.on_failure)
            h, one = h.mT.to(inputs.x.dtype), 0 if self.replicas is None else slice(None)
        return Solution(h[one], found.status[one], found.iterations[one], found.residual[one])

    def measured(
        self, h: Tensor, inputs: Inputs, measure: Callable[[Any, Tensor], Tensor]
    ) -> Tensor:
        """A function of the problem and of embeddings ``h`` [N, k] or [R, N, k] for every graph,
        [G] or [R, G]; ``measure`` gets them as [R, k, N]."""
        inputs = self.accept(inputs)
        refuse_transforms(self, inputs)
        with self._precise(inputs):
            problem = self.problem(inputs)
            h = self._embeddings("h", h, problem, self.precision(inputs.x))
            value = measure(problem, h)
        return value if self.replicas is not None else value[0]

    def require_asynchronous(self, inputs: Inputs) -> None:
        if self.kind is Kind.OPTIMISATION:
            Inputs.of(inputs).graph(validate=self.validate).require_reverse_links()

    def require_level(self) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError`, with the reason, unless every node can
        pose the problem itself while the features of its neighbours change, as they do above the
        first layer of a stack."""

    def solver_path(self, inputs: Inputs) -> list[str]:
        inputs = self.accept(inputs)
        with self._precise(inputs), torch.no_grad():
            return [engine_for(self.problem(inputs), self.solver).path]

    def _precise(self, inputs: Inputs) -> AbstractContextManager[object]:
        """A context without autocast."""
        like = inputs.x if isinstance(inputs.x, Tensor) else first_parameter(self, None)
        return precise(getattr(like, "device", torch.device("cpu")).type)

    def fields(self, inputs: Inputs) -> Checked:
        """Check the inputs; what :meth:`problem` is made of."""
        inputs = self.accept(inputs)
        graph, dtype, weight = self.graph(inputs), self.precision(inputs.x), inputs.edge_weight
        heard, attr = (
            None if t is None else as_field(t, dtype) for t in (inputs.heard, inputs.edge_attr)
        )
        weight = None if weight is None else weight.to(dtype)
        return Checked(graph, as_field(inputs.x, dtype), heard, attr, weight)

    def precision(self, x: Tensor) -> torch.dtype:
        """Precision of the solve."""
        dtype = self.solve_dtype or (torch.float64 if studied() else x.dtype)
        if dtype in (torch.float16, torch.bfloat16):
            return torch.float32
        if dtype not in (torch.float32, torch.float64):
            raise DTypeError(
                f"the solve would run in {dtype}; expected float32 or float64: build the model "
                f"with solve_dtype=torch.float64 (the default) or convert it with .float()"
            )
        return dtype

    def encode(self, encoder: nn.Module, x: Tensor) -> Tensor:
        """An MLP of the features of every node, in their precision: [1 or R, p, N] -> [R, k, N]."""
        rows = (x if x.size(0) > 1 else x[0]).mT
        if all(p.dtype == x.dtype for p in encoder.parameters()):
            out = encoder(rows)
        else:
            parameters = {name: p.to(x.dtype) for name, p in encoder.named_parameters()}
            out = functional_call(encoder, parameters, (rows,))
        out = out.mT.reshape(-1, self.hidden_channels, x.size(-1))
        return out.expand(self.replicas or 1, -1, -1)

    def _start(self, engine: Engine, inputs: Inputs, h0: Tensor | None) -> Tensor | None:
        """The starting point as [R, k, N] in the precision of the solve; ``None`` where the user
        gave none, and the engine knows its own."""
        if h0 is None and not engine.takes_all:
            return None
        dtype = self.precision(inputs.x)
        if h0 is None:  # the fields of a problem of the user's own may have another precision
            return engine.problem.start().detach().to(dtype)
        h0 = self._embeddings("h0", h0, engine.problem, dtype).detach()
        check = self.validate and not unreadable(h0)
        if check and not all_finite(h0):
            raise FeatureError("h0 holds NaN or infinite values; expected a finite starting point")
        return h0.contiguous()

    def _embeddings(self, name: str, h: Tensor, problem: Problem, dtype: torch.dtype) -> Tensor:
        """Check the user's embeddings [N, k] or [R, N, k] and return them as [R, k, N]."""
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

    def extra_repr(self) -> str:
        """What ``print(layer)`` shows: the sizes, and the options that are not the defaults."""
        own = inspect.signature(type(self)).parameters.values()
        usual = {p.name: p.default for p in own if p.kind is p.KEYWORD_ONLY} | {"replicas": None}
        usual.pop("hidden_channels", None)
        found = {name: getattr(self, name, value) for name, value in usual.items()}
        options = {name: getattr(value, "name", value) for name, value in found.items()}
        given = [f"{n}={value!r}" for n, value in options.items() if value != usual[n]]
        return ", ".join([f"{self.in_channels}, hidden_channels={self.hidden_channels}", *given])
