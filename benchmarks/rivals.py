r"""What the benchmark of a training step compares: the paper's recipe, and hogwild behind the same
interface.

The recipe (compiled by JAX, :mod:`rivals_jax`):

1. *Forward* (appendix E): L-BFGS with 10 pairs and at most 50 iterations, warm started, until the
   gradient's 2-norm over the whole batch of graphs is at most 1e-5. Steps are halved until they
   decrease the energy enough.
2. *Adjoint* (appendix C): conjugate gradients to a relative residual of 1e-5, the default of
   ``jax.scipy.sparse.linalg.cg``.
3. *Parameters*: a backward pass through the gradient's graph.

:class:`ForwardEnergy` is the energy as an ordinary forward pass in torch, which judges the results
of all contenders. Replicas are a leading dimension; the node index is the last one, where gathers
and segment sums are fastest on a CPU. Parameters are those of an :class:`hogwild.EnergyGNN`
(defaults: edge-wise messages, one round, no heads), read from its state dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from tasks import Task
from torch import Tensor, nn

from hogwild import EnergyGNN, Inputs
from hogwild.solvers import Solution, Solver
from hogwild.training.recorded import Replay, gradients_of

Parameters = Mapping[str, Tensor]
SLOPE = 0.1
"""Slope of the leaky ReLUs, on the features' path of a PICNN and in the readout."""


@dataclass(frozen=True)
class Recipe:
    """The paper's settings."""

    tolerance: float = 1e-5  # on the 2-norm of the energy's gradient
    max_iter: int = 50
    memory: int = 10
    max_halvings: int = 30
    cg_tolerance: float = 1e-5  # relative
    cg_max_iter: int = 10_000
    beta: float = 0.04


@dataclass
class Outcome:
    """The results of one training step."""

    h: Tensor  # [R, N, k]
    gradients: Parameters  # of the summed losses
    iterations: int  # of the forward solve: the slowest replica's
    adjoint_iterations: int | None
    missed: bool  # whether any replica missed its own tolerance


class Contender(Protocol):
    """One implementation of the training step on one task."""

    def load(self, parameters: Parameters, h0: Tensor) -> Callable[[], Callable[[], Outcome]]:
        """Prepare the training step at these parameters from the warm start ``h0`` [R, N, k].
        Calling the result does the work (timed); calling what that returns converts the results
        (not timed)."""


# -- the energy, by a forward pass ----------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A PICNN layer with its features filled in (names as in the paper's appendix B)."""

    wy: Tensor  # [R, w', d]
    gy: Tensor  # [R, d, n]
    bias: Tensor  # [R, w', n]
    wz: Tensor | None  # [R, w', w], nonnegative
    gz: Tensor | None  # [R, w, n], nonnegative


def prepare(p: Parameters, net: str, x: Tensor, monotone: int) -> list[Layer]:
    """Fill features ``x`` [R or 1, p, n] into a PICNN, nondecreasing in its first inputs."""
    layers: list[Layer] = []
    u, depth = x, sum(name.startswith(f"{net}.wy.") for name in p)
    for i in range(depth):
        wy, wz = p[f"{net}.wy.{i}"], p[f"{net}.wz.{i - 1}"] if i else None
        width, d = wy.shape[-2:]
        affine = p[f"{net}.feature_weight.{i}"] @ u + p[f"{net}.feature_bias.{i}"].unsqueeze(-1)
        sizes = [width if i < depth - 1 else 0, 0 if wz is None else wz.size(-1), d, width]
        u, gz, gy, bias = affine.split(sizes, -2)
        u = F.leaky_relu(u, SLOPE)
        if monotone:
            wy = torch.cat([F.softplus(wy[..., :monotone]), wy[..., monotone:]], -1)
            gy = torch.cat([F.softplus(gy[:, :monotone]), gy[:, monotone:]], 1)
        if wz is None:
            layers.append(Layer(wy, gy, bias, None, None))
        else:
            layers.append(Layer(wy, gy, bias, F.softplus(wz), F.softplus(gz)))
    return layers


def picnn(layers: list[Layer], y: Tensor) -> Tensor:
    """Value at the convex inputs ``y`` [R, d, n]."""
    z = y
    for i, layer in enumerate(layers):
        a = torch.baddbmm(layer.bias, layer.wy, layer.gy * y)
        if layer.wz is not None and layer.gz is not None:
            a = torch.baddbmm(a, layer.wz, layer.gz * z)
        z = F.softplus(a, threshold=40.0) if i < len(layers) - 1 else a
    return z


@dataclass(frozen=True)
class Features:
    """All three PICNNs with their features filled in."""

    message: list[Layer]
    loop: list[Layer]
    update: list[Layer]


class ForwardEnergy:
    """The energy of one task, by a forward pass."""

    def __init__(self, task: Task) -> None:
        self.edges = task.edge_index.size(1)
        src, dst = task.edge_index
        self.dst, self.ends = dst, torch.cat([dst, src])
        self.x = task.x.T.unsqueeze(0)  # [1, p, N]
        ends = [task.x[dst], task.x[src]] + ([] if task.edge_attr is None else [task.edge_attr])
        self.x_edge = torch.cat(ends, -1).T.contiguous().unsqueeze(0)  # [1, 2p + r, E]

    def features(self, p: Parameters) -> Features:
        channels = p["conv.message_nets.0.wy.2"].size(-2)
        return Features(
            prepare(p, "conv.message_nets.0", self.x_edge, 0),
            prepare(p, "conv.loop_nets.0", self.x, 0),
            prepare(p, "conv.update_nets.0", self.x, channels),
        )

    def energy(self, f: Features, h: Tensor) -> Tensor:
        """Energy of each replica over all graphs: [R, k, N] -> [R]."""
        y = h.gather(-1, self.ends.expand(*h.shape[:-1], -1)).view(len(h), -1, self.edges)
        message = picnn(f.message, y)
        m = picnn(f.loop, h).scatter_add(-1, self.dst.expand_as(message), message)
        u = picnn(f.update, torch.cat([m, h], 1))
        return u.sum((-2, -1)) + 0.5 * Recipe.beta * h.square().sum((-2, -1))

    def value_and_gradient(self, f: Features, h: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            value = self.energy(f, h)
            (gradient,) = torch.autograd.grad(value.sum(), h)
        return value.detach(), gradient


# -- hogwild behind the same interface ------------------------------------------------------------


@torch.no_grad()
def set_parameters(model: nn.Module, values: Parameters) -> None:
    """Overwrite all parameters of a model; the model's buffers stay."""
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])


class TrainingStep:
    """Forward solve, adjoint and parameter gradients, as ``hogwild.train`` makes them: compiled
    solves on a GPU are recorded as one CUDA graph at the first call with a starting point."""

    def __init__(self, task: Task, model: EnergyGNN) -> None:
        self.task, self.model, self.device = task, model, task.x.device
        compiled = model.solver_path(inputs_of(task))[0].startswith("compiled")
        self.recordable = self.device.type == "cuda" and compiled
        self.replay: Replay | None = None
        self.own = list(model.parameters())  # finding them takes longer than clearing gradients

    def __call__(self, h0: Tensor | None) -> tuple[Solution, Tensor]:
        """The solution and the losses [R]; the gradients are in ``.grad``."""
        if h0 is None or not self.recordable:
            for parameter in self.own:
                parameter.grad = None
            return training_step(self.model, self.task, h0)
        if self.replay is None:
            self.h0 = h0.clone()
            self.replay = Replay(self._body, self.device, self._body)
        self.h0.copy_(h0)
        h, status, iterations, residual, losses, *gradients = self.replay()
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        found = Solution(h.clone(), status, iterations, residual)
        _ = found.failed  # read after every step, as in hogwild.train
        return found, losses

    def _body(self) -> tuple[Tensor, ...]:
        def total() -> tuple[Tensor, tuple[Solution, Tensor]]:
            found, losses = predicted(self.model, self.task, self.h0)
            return losses.sum(), (found, losses.detach())

        gradients, (found, losses) = gradients_of(self.model, total)
        pairs = zip(self.model.parameters(), gradients, strict=True)
        every = [torch.zeros_like(p) if g is None else g for p, g in pairs]
        h = found.value.detach()
        return h, found.status, found.iterations, found.residual, losses, *every


class Hogwild:
    """hogwild's training step with its default solver."""

    def __init__(self, task: Task, model: EnergyGNN) -> None:
        self.model, self.make = model, TrainingStep(task, model)

    def load(self, parameters: Parameters, h0: Tensor) -> Callable[[], Callable[[], Outcome]]:
        set_parameters(self.model, parameters)

        def step() -> Callable[[], Outcome]:
            found, _ = self.make(h0)

            def outcome() -> Outcome:
                gradients = {
                    name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                    for name, p in self.model.named_parameters()
                }
                iterations, missed = int(found.iterations.max()), not bool(found.converged.all())
                return Outcome(found.value.detach(), gradients, iterations, None, missed)

            return outcome

        return step


def inputs_of(task: Task) -> Inputs:
    return Inputs(task.x, task.edge_index, task.edge_attr, task.batch)


def predicted(model: EnergyGNN, task: Task, h0: Tensor | None) -> tuple[Solution, Tensor]:
    """The solution and the losses [R]."""
    found = model.embed(inputs_of(task), h0=h0)
    return found, task.loss(model.readout(found.value, task.batch))


def training_step(model: EnergyGNN, task: Task, h0: Tensor | None) -> tuple[Solution, Tensor]:
    """Forward solve, adjoint and parameter gradients; returns the solution and losses [R]."""
    found, losses = predicted(model, task, h0)
    losses.sum().backward()
    return found, losses.detach()


def build(task: Task, replicas: int, solver: Solver | None = None, seed: int = 0) -> EnergyGNN:
    """A fresh float64 model for this task. Failures do not raise; the caller counts them."""
    torch.manual_seed(seed)
    model = EnergyGNN(
        task.x.size(-1),
        out_channels=task.out_channels,
        edge_dim=task.edge_dim,
        replicas=replicas,
        solver=solver,
        on_failure="ignore",
    )
    return model.double().to(task.x.device)
