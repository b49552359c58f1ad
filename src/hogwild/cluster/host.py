"""A part with its model: it builds the problem of the part, solves it, reads out, differentiates.

An executor makes one host for each part, in this process or in a process of its own, and calls its
methods by name on all parts (:class:`hogwild.cluster.engine.Engine`).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hogwild.cluster.adjoint import adjoint_of
from hogwild.cluster.bound import Measure
from hogwild.cluster.store import Store, tensor
from hogwild.cluster.work import Links, Nothing, Solve, Steps, Work
from hogwild.cluster.worker import Worker
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs
from hogwild.kernels.energy import EnergyKernel
from hogwild.kernels.native import library
from hogwild.models.gnn import ConvGNN
from hogwild.models.ignn import EIGNNConv
from hogwild.models.implicit import ImplicitConv
from hogwild.problems.base import Objective, Problem
from hogwild.solvers import Newton, SemismoothNewton

Loss = Callable[[Tensor, Tensor], Tensor]
"""From predictions and targets of some nodes to the mean of their losses."""


LARGE = 100_000
"""Edges of a part from which no factorisation is planned where compiled code solves it."""
KINDS = ("solve", "messages", "gradient", "fixed-point")
"""All kinds of work."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every host needs to know.

    Attributes:
        store: Folder of the graph.
        model: File of the model (:func:`save_model`).
        checkpoints: Folder of the checkpoints; ``None``: there are none.
        tol: Relative tolerance.
        hops: Hops of the rest of the graph that a part holds.
        overlap: Most rings of other parts' nodes for which a part solves, too; ``None``: all that
            the store has.
        device: The device of the computation.
        threads: Threads of torch in each process of its own.
    """

    store: Path
    model: Path
    checkpoints: Path | None = None
    tol: float = 1e-6
    hops: int = 2
    overlap: int | None = None
    device: str = "cpu"
    threads: int = 1


def save_model(model: ConvGNN, path: Path) -> Path:
    """Write a model for all hosts."""
    file = io.BytesIO()
    torch.save(model, file)
    return write_atomically(path, file.getvalue())


def convolution(model: ConvGNN) -> ImplicitConv:
    """The implicit layer of a model; :class:`AsynchronyError` if parts cannot solve for it."""
    conv = model.conv
    if not isinstance(conv, ImplicitConv):
        raise AsynchronyError(
            f"the model's convolution is {conv.label}; expected one implicit layer, such as "
            f"EnergyConv, GSDConv or IGNNConv: its answer does not depend on the order of updates"
        )
    if getattr(conv, "rounds", 1) > 1:
        raise AsynchronyError(
            f"the energy has rounds={getattr(conv, 'rounds', 1)}, and parts exchange the nodes two "
            f"hops away; expected rounds=1"
        )
    return conv


class Host:
    """One part with its model.

    Args:
        plan: What all hosts share.
        number: The part.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        model: ConvGNN = torch.load(plan.model, map_location=plan.device, weights_only=False)
        self.model = model.eval()
        self.conv = convolution(model)
        self.conv.solve_dtype = torch.float64  # the error bar is a residual in float64
        if isinstance(self.conv, EIGNNConv):  # its closed form needs the whole graph
            self.conv.method, self.conv.solver = "iterate", SemismoothNewton()
        self.store = Store.open(plan.store)
        self.worker: Worker | None = None
        self.h: Tensor | None = None  # [R, k, N] the answer of the forward pass
        self.dual: Tensor | None = None  # [R, k, N] that of the adjoint
        self._grads: dict[str, Tensor] = {}  # of the readout
        self.store.check(number)
        self._read("solve")

    def _read(self, work: str) -> None:
        """Read the part from the disk, as a kind of work needs it. Steps of a node's rule need one
        hop and no overlap."""
        solves = work == "solve"
        hops, overlap = (self.plan.hops, self.plan.overlap) if solves else (1, 0)
        part = self.store.part(self.number, hops, overlap)
        self.solves, self.part, self.owned = solves, part, part.num_owned
        move = self.plan.device
        as_index = {q: tensor(nodes).long().to(move) for q, nodes in part.sends.items()}
        self.links = Links(
            self.owned,
            part.num_free,
            as_index,
            {q: tensor(nodes).long().to(move) for q, nodes in part.receives.items()},
            tensor(part.edges).long().to(move),
        )
        self.inputs = self._typed(part.inputs().to(move)) if part.num_local else None
        self._problem: Problem | None = None

    def _typed(self, inputs: Inputs) -> Inputs:
        """Features in the dtype of the model; files may have another one."""
        like = next(self.model.parameters(), inputs.x)

        def typed(x: Tensor) -> Tensor:
            return x.to(like.dtype) if x.is_floating_point() else x

        attr, weight = inputs.edge_attr, inputs.edge_weight
        return replace(
            inputs,
            x=typed(inputs.x),
            edge_attr=None if attr is None else typed(attr),
            edge_weight=None if weight is None else typed(weight),
        )

    # -- the forward pass --------------------------------------------------------------------------

    @property
    def problem(self) -> Problem:
        """The problem on the local nodes, detached from autograd."""
        if self._problem is None:
            with torch.no_grad():
                self._problem = self._attached().detach()
        return self._problem

    def _attached(self) -> Problem:
        """The problem on the local nodes, as the model builds it."""
        solver = self.conv.solver
        if self._is_large and solver.compiles:  # no analysis of a matrix that nobody needs
            self.conv.solver = replace(solver, linear="cg")
        try:
            found = self.model.problem(self._inputs)
        finally:
            self.conv.solver = solver
        assert isinstance(found, Problem)
        return found

    @property
    def _is_large(self) -> bool:
        """Whether compiled code solves the part without a factorisation."""
        return self._inputs.edge_index.size(1) >= LARGE and library() is not None

    @torch.no_grad()
    def _compiled(self) -> EnergyKernel | None:
        """The problem for the compiled library, where that solves it on a CPU: on a GPU all nodes
        move (``kernels/source/energy.h``)."""
        if self.problem.recipe is None or self._inputs.x.device.type != "cpu":
            return None
        kernel = self.problem.kernel()
        return None if isinstance(kernel, str) else kernel

    @property
    def _inputs(self) -> Inputs:
        assert self.inputs is not None, "a part without nodes"
        return self.inputs

    def start(self, work: str = "solve", fresh: bool = False) -> None:
        """Make the worker of the forward pass. ``fresh``: without its checkpoint."""
        if self.solves != (work == "solve"):
            self._read(work)
        self.worker = None
        path = self._checkpoint
        if fresh and path is not None:
            path.unlink(missing_ok=True)
        warm = self.h if self.h is not None and self.h.size(-1) == self.part.num_local else None
        self.worker = Worker(self.number, self._work(work, warm), path)

    @property
    def _checkpoint(self) -> Path | None:
        folder = self.plan.checkpoints
        return None if folder is None else folder / f"part-{self.number:05d}.npz"

    def _work(self, name: str, h: Tensor | None = None) -> Work:
        if not self.owned:
            like = torch.zeros(0, dtype=torch.float64)
            return Nothing(self.conv.replicas or 1, self.conv.hidden_channels, like)
        problem, tol = self.problem, self.plan.tol
        if name == "solve":
            solver = self.conv.solver
            return Solve(problem, self.links, tol, h, solver=solver, kernel=self._compiled())
        return Steps(problem, self.links, tol, h, rule=name)

    def forget(self) -> None:
        """Forget the embeddings, so that the next start is from zero."""
        self.h, self.dual, self.worker = None, None, None

    def reads(self) -> list[int]:
        """The parts that this part reads."""
        return self._worker.reads

    @property
    def _worker(self) -> Worker:
        assert self.worker is not None, "start() comes first"
        return self.worker

    def look(self) -> None:
        """Read what came in and measure, without an update."""
        self._worker.look()

    def measure(self) -> Measure | None:
        """The measure for the error bar; ``None`` for a part without nodes."""
        return self._worker.work.judged()

    def save(self) -> None:
        """Write the checkpoint."""
        self._worker.save()

    # -- answers -----------------------------------------------------------------------------------

    @torch.no_grad()
    def answer(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Owned nodes [A], embeddings [(R,) A, k] and predictions [(R,) A, out]; no predictions if
        the readout pools."""
        h = self._embeddings(self._worker.work.own)
        read = None
        if self.model.readout.pool is None and self.owned:
            read = self.model.read(h, self._first(self.owned)).cpu().numpy()
        elif self.model.readout.pool is None:
            shape = (*h.shape[:-1], self.model.out_channels)
            read = np.zeros(shape, dtype=h.cpu().numpy().dtype)
        return np.array(self.part.nodes), h.cpu().numpy(), read

    def write_answer(self, folder: Path) -> Path:
        """Write nodes, embeddings and predictions into a file of this part."""
        nodes, h, read = self.answer()
        file = io.BytesIO()
        arrays: dict[str, Any] = {"nodes": nodes, "h": h} | (
            {} if read is None else {"prediction": read}
        )
        np.savez(file, **arrays)
        return write_atomically(folder / f"part-{self.number:05d}.npz", file.getvalue())

    def _embeddings(self, own: Tensor) -> Tensor:
        """[R, k, A] as the user's [(R,) A, k]."""
        like = next(self.model.parameters())
        h = own.mT.to(like.dtype if self.inputs is None else self.inputs.x.dtype)
        return h if self.conv.replicas is not None else h[0]

    def _first(self, count: int) -> Inputs:
        """The first local nodes without edges, for the readout."""
        x = self._inputs.x
        return Inputs(x[..., :count, :], torch.zeros(2, 0, dtype=torch.long, device=x.device))

    # -- training ----------------------------------------------------------------------------------

    def pose(self, parameters: dict[str, Tensor]) -> None:
        """Take new parameters. The embeddings stay where they are."""
        self.model.load_state_dict(parameters)
        if self.worker is not None and self.owned:
            self.h = self.worker.work.h
        self._problem, self.worker = None, None

    def labelled(self, target: str, mask: str | None) -> int:
        """Number of owned nodes with a label."""
        return int(self._labels(target, mask, self.owned)[0].numel()) if self.owned else 0

    def _labels(self, target: str, mask: str | None, count: int) -> tuple[Tensor, Tensor]:
        """Indices of those of the first local nodes that have a label, and their labels."""
        fields = self._inputs.nodes
        for name in (target, mask):
            if name is not None and name not in fields:
                raise ConfigError(
                    f"the graph has no field {name!r}; expected one of "
                    f"{', '.join(fields) or 'no fields at all'}"
                )
        at = torch.arange(count, device=self._inputs.x.device)
        if mask is not None:
            at = at[fields[mask][:count].bool()]
        return at, fields[target][at]

    def differentiate(
        self, loss: Loss, target: str, mask: str | None, total: int, tol: float
    ) -> float:
        """The part's share of the mean loss over all labelled nodes; prepares the adjoint and keeps
        the gradients of the readout."""
        if not self.owned:
            self._grads, self.worker = {}, Worker(self.number, self._work("solve"))
            return 0.0
        self.h = self._worker.work.h
        value, _, found = self._shared(self.owned, loss, target, mask, total)
        self._grads = {f"readout.{name}": grad for name, grad in found.items()}
        # The adjoint is solved on the overlap, too, and needs the loss of its nodes there.
        grad = torch.zeros_like(self.h)
        grad[..., : self.links.free] = self._shared(self.links.free, loss, target, mask, total)[1]
        with torch.no_grad():
            problem = adjoint_of(self.problem, self.h, grad)
        solver = Newton() if isinstance(problem, Objective) else SemismoothNewton()
        work = Solve(problem, self.links, tol, self.dual, solver=solver)
        self.worker = Worker(self.number, work)
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
        out = dict(self._grads)
        if self.owned:
            dual = self._worker.work.h
            self.dual = dual
            sign = -1.0 if isinstance(self.problem, Objective) else 1.0
            cotangent = torch.zeros_like(dual)
            cotangent[..., : self.owned] = sign * dual[..., : self.owned]
            assert self.h is not None
            with torch.enable_grad():
                residual = self._attached().residual(self.h)
                named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
                if residual.requires_grad:
                    found = torch.autograd.grad(
                        residual, list(named.values()), cotangent, allow_unused=True
                    )
                    for name, grad in zip(named, found, strict=True):
                        if grad is not None:
                            out[name] = out[name] + grad if name in out else grad
        return {name: grad.detach().cpu().numpy() for name, grad in out.items()}
