"""A part with its model: it builds the problem of the part, solves it, reads out, differentiates.

An executor makes one host for each part, in this process or in a process of its own, and calls its
methods by name on all parts (:class:`hogwild.cluster.worker.Executor`).
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hogwild.cluster.store import Store
from hogwild.cluster.work import Bound, Measure, Part, Work
from hogwild.cluster.worker import Worker
from hogwild.engines import engine_for
from hogwild.engines.base import TorchEngine
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.problems.pinned import pinned
from hogwild.solvers.adjoint import Adjoint
from hogwild.solvers.loop import Solver

Loss = Callable[[Tensor, Tensor], Tensor]
"""From predictions and targets of some nodes to the mean of their losses."""

RTOL = 1e-2
"""An adjoint is solved to this share of the residual that fresh halos leave."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every host needs to know.

    Attributes:
        graph: The graph of the only part, or the folder of all parts.
        model: The model, or its file.
        checkpoints: Folder of the checkpoints; ``None``: there are none.
        tol: Relative tolerance.
        device: The device of the computation.
    """

    graph: Inputs | Path
    model: ConvGNN | Path
    checkpoints: Path | None = None
    tol: float = 1e-6
    device: str = "cpu"


def convolution(model: ConvGNN) -> ImplicitConv:
    """The implicit layer of a model; :class:`AsynchronyError` if parts cannot solve for it."""
    conv = model.conv
    if not isinstance(conv, ImplicitConv):
        raise AsynchronyError(
            f"the model's convolution is {conv.label}; expected one implicit layer, such as "
            f"EnergyConv, GSDConv or IGNNConv: its answer does not depend on the order of updates"
        )
    return conv


class Host(Worker):
    """One part with its model, at work.

    Args:
        plan: What all hosts share.
        number: The part.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(number)
        self.plan = plan
        if isinstance(plan.model, Path):
            model: ConvGNN = torch.load(plan.model, map_location=plan.device, weights_only=False)
        else:
            model = copy.deepcopy(plan.model).to(plan.device)
        self.model = model.eval()
        self.conv = convolution(model)
        self.conv.solve_dtype = torch.float64  # the error bar is a residual in float64
        self.h: Tensor | None = None  # [R, k, N] the answer of the forward pass
        self.dual: Tensor | None = None  # [R, k, N] that of the adjoint
        self._grads: dict[str, Tensor] = {}  # of the readout
        if isinstance(plan.graph, Inputs):
            none = torch.empty(0, dtype=torch.long)
            n = plan.graph.num_nodes
            part = Part(torch.arange(n), none, none, n, plan.graph, {})
        else:
            store = Store.open(plan.graph)
            store.check(number)
            part = store.part(number)
        self.part = part.to(plan.device)
        given = self.part.inputs
        typed = given.to(next(model.parameters(), given.x).dtype)  # files may differ
        self.inputs = replace(typed, degrees=given.degrees, nodes=given.nodes)

    # -- the forward pass --------------------------------------------------------------------------

    def _built(self) -> Problem:
        """The problem on the local nodes, as the model builds it."""
        found = self.model.problem(self.inputs)
        assert isinstance(found, Problem)
        return found

    @torch.no_grad()
    def start(self, fresh: bool = False) -> None:
        """Begin the forward pass. ``fresh``: from zero, without its checkpoint."""
        folder = self.plan.checkpoints
        path = None if folder is None else folder / f"part-{self.number:05d}.npz"
        if fresh:
            self.h = None
            if path is not None:
                path.unlink(missing_ok=True)
        self.problem = self._built().detach()
        engine = engine_for(self.problem, self.conv.solver)
        self.begin(Work(self.part, self.plan.tol, self.h, engine=engine), path)

    def measure(self) -> Measure:
        """The measure for the error bar."""
        return self.doing.judged()

    # -- answers -----------------------------------------------------------------------------------

    @torch.no_grad()
    def answer(self) -> dict[str, npt.NDArray[Any]]:
        """Owned nodes [A], embeddings ``h`` [(R,) A, k] and, unless the readout pools, predictions
        [(R,) A, out]."""
        h, found = self._embeddings(self.doing.own), {}
        if self.model.readout.pool is None:
            found["prediction"] = self.model.read(h, self._first(self.part.owned)).cpu().numpy()
        return {"nodes": self.part.nodes.numpy(), "h": h.cpu().numpy(), **found}

    def write_answer(self, folder: Path) -> Path:
        """Write the answer into a file of this part."""
        file = io.BytesIO()
        np.savez(file, **self.answer())  # type: ignore[arg-type]
        return write_atomically(folder / f"part-{self.number:05d}.npz", file.getvalue())

    def _embeddings(self, own: Tensor) -> Tensor:
        """[R, k, A] as the user's [(R,) A, k]."""
        h = own.mT.to(self.inputs.x.dtype)
        return h if self.conv.replicas is not None else h[0]

    def _first(self, count: int) -> Inputs:
        """The first local nodes without edges, for the readout."""
        x = self.inputs.x
        return Inputs(x[..., :count, :], torch.zeros(2, 0, dtype=torch.long, device=x.device))

    # -- training ----------------------------------------------------------------------------------

    def adopt(self, parameters: dict[str, Tensor]) -> None:
        """Take new parameters. The embeddings stay where they are."""
        self.model.load_state_dict(parameters)
        if self.work is not None:
            self.h = self.work.h
        self.work = None

    def labelled(self, target: str, mask: str | None) -> int:
        """Number of owned nodes with a label."""
        return int(self._labels(target, mask, self.part.owned)[0].numel())

    def _labels(self, target: str, mask: str | None, count: int) -> tuple[Tensor, Tensor]:
        """Indices of those of the first local nodes that have a label, and their labels."""
        fields = self.inputs.nodes
        for name in (target, mask):
            if name is not None and name not in fields:
                raise ConfigError(
                    f"the graph has no field {name!r}; expected one of "
                    f"{', '.join(fields) or 'no fields at all'}"
                )
        at = torch.arange(count, device=self.inputs.x.device)
        if mask is not None:
            at = at[fields[mask][:count].bool()]
        return at, fields[target][at]

    def differentiate(
        self, loss: Loss, target: str, mask: str | None, total: int, tol: float
    ) -> float:
        """The part's share of the mean loss over all labelled nodes; prepares the adjoint and keeps
        the gradients of the readout."""
        self.h = self.doing.h
        value, _, found = self._shared(self.part.owned, loss, target, mask, total)
        self._grads = {f"readout.{name}": grad for name, grad in found.items()}
        # The adjoint is solved on the overlap, too, and needs the loss of its nodes there.
        grad = torch.zeros_like(self.h)
        free = self.part.free
        grad[..., :free] = self._shared(free, loss, target, mask, total)[1]
        with torch.no_grad():
            given = self.problem, self.h, grad, self.part, tol, self.dual, self.conv.solver
            self.begin(AdjointWork(*given))
        return value

    def _shared(
        self, count: int, loss: Loss, target: str, mask: str | None, total: int
    ) -> tuple[float, Tensor, dict[str, Tensor]]:
        """The share of the first local nodes in the loss, its gradient in their embeddings
        [R, k, count], and its gradients in the parameters of the readout."""
        assert self.h is not None
        h = self.h[..., :count].detach().requires_grad_()
        at, y = self._labels(target, mask, count)
        if not at.numel():
            return 0.0, torch.zeros_like(h), {}
        with torch.enable_grad():
            out = self.model.read(self._embeddings(h), self._first(count))
            share = loss(out[..., at, :], y) * (at.numel() / total)
            named = dict(self.model.readout.named_parameters())
            grads = torch.autograd.grad(share, [h, *named.values()], allow_unused=True)
        seed = grads[0] if grads[0] is not None else torch.zeros_like(h)
        of = {n: g for n, g in zip(named, grads[1:], strict=True) if g is not None}
        return float(share.detach()), seed.detach(), of

    def gradients(self) -> dict[str, npt.NDArray[Any]]:
        """The part's share of the gradients of all parameters, by name."""
        assert self.h is not None
        out, owned = dict(self._grads), self.part.owned
        self.dual = self.doing.h
        cotangent = torch.zeros_like(self.dual)
        cotangent[..., :owned] = -self.dual[..., :owned]
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            residual = self._built().residual(self.h)
            if residual.requires_grad:
                found = torch.autograd.grad(
                    residual, list(named.values()), cotangent, allow_unused=True
                )
                for name, grad in zip(named, found, strict=True):
                    if grad is not None:
                        out[name] = out[name] + grad if name in out else grad
        return {name: grad.detach().cpu().numpy() for name, grad in out.items()}


# -- the adjoint, which the parts solve by the same iteration -------------------------------------


class AdjointBound(Bound):
    r"""The limit of an adjoint :math:`(\partial g / \partial h)^\top \lambda = c`: of the energy
    :math:`\tfrac12 \lambda^\top H \lambda - c^\top \lambda`, or of a map without a modulus."""

    def __init__(self, problem: Problem, at: Tensor, c: Tensor, owned: int, tol: float) -> None:
        super().__init__(problem, owned, tol)
        self.c = c  # [R, k, N]
        if isinstance(problem, Objective):
            self.apply = problem.evaluate(at).hessian().apply
        else:
            assert isinstance(problem, FixedPoint)
            tangent = problem.linearise(at)
            self.apply = lambda v: -tangent.transpose(v)
            self.kind, self.weights, self.ones = "map", None, 1.0
            self.factor = torch.zeros(problem.replicas, dtype=torch.float64)

    def residual(self, h: Tensor) -> tuple[Tensor, Tensor]:
        graph, image = self.problem.graph, self.apply(h)
        scale = (graph.norm(image) + graph.norm(self.c)).amax(-1)
        return (image - self.c)[..., : self.owned], scale


class AdjointWork(Work):
    r"""A part that solves the adjoint :math:`(\partial g / \partial h)^\top \lambda = c` at the
    embeddings ``at`` for its halo: by the linear system of its nodes, as one process does."""

    def __init__(
        self,
        problem: Problem,
        at: Tensor,
        c: Tensor,
        part: Part,
        tol: float,
        dual: Tensor | None,
        solver: Solver,
    ) -> None:
        start = torch.zeros_like(c) if dual is None else dual
        super().__init__(part, tol, start, engine=TorchEngine(problem, solver, "a linear system"))
        self.at, self.bound = at, AdjointBound(problem, at, c, part.owned, tol)
        self.systems: dict[int, Callable[[Tensor, bool], Solution]] = {}  # by the nodes that move

    def _solved(self, free: int) -> Tensor:
        moves, bound = self.moves(free), self.bound
        assert isinstance(bound, AdjointBound)
        if free not in self.systems:
            problem = pinned(self.problem, moves, self.at)
            self.systems[free] = Adjoint(rtol=RTOL).at(problem, self.at)
        left = torch.where(moves, bound.c - bound.apply(self.h), 0.0)
        return self.h + torch.where(moves, self.systems[free](left, True).value, 0.0)
