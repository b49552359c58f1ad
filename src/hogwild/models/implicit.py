"""The base class of all implicit layers, which solves a problem and attaches the implicit gradient;
and stacks of such layers."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
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
from hogwild.models.program import StackProblem, beside
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
        """What ``print(layer)`` shows: the sizes, and the options that are not the defaults, also
        those that the layer chose itself."""
        own = inspect.signature(type(self)).parameters.values()
        usual = {p.name: p.default for p in own if p.kind is p.KEYWORD_ONLY} | {"replicas": None}
        usual.pop("hidden_channels", None)
        found = {name: getattr(self, name, value) for name, value in usual.items()}
        options = {name: getattr(value, "name", value) for name, value in found.items()}
        given = [f"{n}={value!r}" for n, value in options.items() if value != usual[n]]
        return ", ".join([f"{self.in_channels}, hidden_channels={self.hidden_channels}", *given])


JUMPS = ("last", "cat")


class Stack(Conv):
    r"""A stack of implicit layers, used as one convolution: the solution of one layer is a feature
    of the next.

    .. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

    A stack runs asynchronously with packets between neighbours: each level follows the solution of
    the level below while that solution still changes (:mod:`hogwild.rules.levels`).

    Args:
        levels: The layers, the lowest first. Every layer above the first reads
            [features ‖ embeddings of the layer below], so its ``in_channels`` is p + k.
        jk: Jumping knowledge, as in PyG: the embeddings of the stack, which the readout reads.
            ``None`` or ``"last"``: those of the last layer. ``"cat"``: those of all layers, side by
            side.
    """

    def __init__(self, levels: Sequence[ImplicitConv], *, jk: str | None = None) -> None:
        super().__init__()
        if jk is not None:
            require_one_of(JUMPS, jk=jk)
        wrong = [type(level).__name__ for level in levels if not isinstance(level, ImplicitConv)]
        if wrong or not levels:
            raise ConfigError(
                f"levels holds {', '.join(wrong) or 'nothing'}; expected one or several implicit "
                f"layers, such as EnergyConv"
            )
        first = levels[0]
        if len({level.replicas for level in levels}) > 1:
            raise ConfigError(
                f"the layers have replicas={', '.join(str(x.replicas) for x in levels)}; expected "
                f"the same number for all of them"
            )
        for s, (below, level) in enumerate(pairwise(levels), 1):
            expected = first.in_channels + below.hidden_channels
            if level.in_channels != expected:
                raise ConfigError(
                    f"layer {s} has in_channels={level.in_channels}; expected {expected}: it reads "
                    f"the {first.in_channels} features and the {below.hidden_channels} channels of "
                    f"the layer below"
                )
        widths = [level.hidden_channels for level in levels]
        self.jk = None if jk == "last" else jk
        self.levels = nn.ModuleList(levels)
        self.kind, self.replicas, self.validate = first.kind, first.replicas, first.validate
        self.in_channels, self.edge_dim = first.in_channels, first.edge_dim
        self.hidden_channels = widths[-1] if self.jk is None else sum(widths)
        self.num_layers = len(levels)

    def extra_repr(self) -> str:
        jk = "" if self.jk is None else f", jk={self.jk!r}"
        return "[" + ", ".join(map(repr, self.convs)) + "]" + jk

    @property
    def convs(self) -> list[ImplicitConv]:
        """The layers, the lowest first."""
        return [level for level in self.levels if isinstance(level, ImplicitConv)]

    def reset_parameters(self) -> None:
        for conv in self.convs:
            conv.reset_parameters()

    def problem(self, inputs: Inputs) -> StackProblem:
        inputs = self.accept(inputs)
        first = self.convs[0].problem(inputs).detach()
        # Only the values of the features are checked. Embeddings may diverge during a run.
        unchecked = [copy.copy(conv) for conv in self.convs]
        for conv in unchecked:
            conv.validate = False
        return StackProblem(first, unchecked, inputs)

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The last level's embeddings, or with ``jk`` those of every level side by side
        (:meth:`Solution.of_levels`). Every solve starts at ``h0`` [(R,) N, k], or at its own
        columns of an ``h0`` [(R,) N, …] that has the embeddings of all levels side by side."""
        inputs, found = self.accept(inputs), list[Solution]()
        widths = [conv.hidden_channels for conv in self.convs]
        starts: Sequence[Tensor | None] = [h0] * len(widths)
        rows = getattr(inputs.x, "shape", ())[-2:-1]  # the layers raise the error of a wrong x
        whole = (*rows, sum(widths))
        if len(widths) > 1 and isinstance(h0, Tensor) and tuple(h0.shape[-2:]) == whole:
            starts = h0.split(widths, -1)
        for conv, start in zip(self.convs, starts, strict=True):
            x = beside(inputs.x, found[-1].value) if found else inputs.x
            found.append(conv.embed(replace(inputs, x=x), start))
        return Solution.of_levels(found, every=self.jk is not None)

    def solver_path(self, inputs: Inputs) -> list[str]:
        inputs = self.accept(inputs)
        found, x = list[str](), inputs.x
        for conv in self.convs:
            found += conv.solver_path(replace(inputs, x=x))
            below = inputs.x.new_zeros(*inputs.x.shape[:-1], conv.hidden_channels)
            x = beside(inputs.x, below)  # the path depends on the width, not on the values
        return found

    def require_asynchronous(self, inputs: Inputs) -> None:
        for s, conv in enumerate(self.convs):
            conv.require_asynchronous(inputs)
            if s:
                conv.require_level()
