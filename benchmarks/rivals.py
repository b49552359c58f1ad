r"""The paper's recipe in eager PyTorch: the rival of the closed-form solver.

The energy is an ordinary forward pass, and automatic differentiation computes everything else.

1. *Forward* (appendix E): L-BFGS with 10 pairs and at most 50 iterations, warm started, until the
   gradient's 2-norm over the whole batch of graphs is at most 1e-5. Steps are halved until they
   decrease the energy enough. The trial step 1 is evaluated with its gradient, since it is nearly
   always taken.
2. *Adjoint* (appendix C): conjugate gradients to a relative residual of 1e-5, the default of
   ``jax.scipy.sparse.linalg.cg``. Hessian–vector products are a second backward pass through the
   gradient's graph, which is built once.
3. *Parameters*: a backward pass through the same graph.

Replicas are a leading dimension. Each replica has its own step lengths and its own stopping test,
and the loops end when all replicas are done. Values that depend on features alone are computed once
per training step. The node index is the last dimension, where gathers and segment sums are fastest
on a CPU. Parameters are those of an :class:`hogwild.EnergyGNN` (defaults: edge-wise messages, one
round, no heads), read from its state dict.

``python benchmarks/rivals.py --check`` compares energies, embeddings and parameter gradients of
this recipe, of :mod:`rivals_jax` and of hogwild, with all tolerances tightened.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from tasks import Task, chains, coordinates, counting, rgg, sums
from torch import Tensor, nn

from hogwild import EnergyGNN, Inputs
from hogwild.linalg.capture import Replay
from hogwild.solvers import Newton, Solution, Solver
from hogwild.training.recorded import gradients_of

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


class EagerRecipe:
    """The recipe on one task; see the module's documentation."""

    def __init__(self, task: Task, recipe: Recipe | None = None) -> None:
        self.task, self.recipe = task, recipe or Recipe()
        self.nodes, self.edges = len(task.x), task.edge_index.size(1)
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
        return u.sum((-2, -1)) + 0.5 * self.recipe.beta * h.square().sum((-2, -1))

    def readout(self, p: Parameters, h: Tensor) -> Tensor:
        """[R, k, N] -> [R, N, out]."""
        depth = sum(name.startswith("readout.node.weight.") for name in p)
        for i in range(depth):
            weight, bias = p[f"readout.node.weight.{i}"], p[f"readout.node.bias.{i}"]
            h = torch.baddbmm(bias.unsqueeze(-1), weight, h)
            h = F.leaky_relu(h, SLOPE) if i < depth - 1 else h
        return h.mT

    # -- forward ----------------------------------------------------------------------------------

    def value_and_gradient(self, f: Features, h: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            value = self.energy(f, h)
            (gradient,) = torch.autograd.grad(value.sum(), h)
        return value.detach(), gradient

    @torch.no_grad()
    def solve(self, f: Features, h: Tensor) -> tuple[Tensor, int, bool]:
        """L-BFGS from ``h`` [R, k, N]: the iterate, iterations, and whether a replica missed its
        tolerance."""
        value, g = self.value_and_gradient(f, h)
        pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # (s, y, 1 / sᵀy), newest last
        norm = _dot(g, g).sqrt()
        gamma = 1.0 / norm.clamp_min(1.0)  # the first step has length one at most
        active = norm > self.recipe.tolerance
        iterations = 0
        while iterations < self.recipe.max_iter and bool(active.any()):
            d, alphas = -g, []
            for s, y, rho in reversed(pairs):
                alphas.append(rho * _dot(s, d))
                d = d - alphas[-1] * y
            d = gamma * d
            for (s, y, rho), alpha in zip(pairs, reversed(alphas), strict=True):
                d = d + (alpha - rho * _dot(y, d)) * s
            slope = 1e-4 * _dot(g, d)
            slack = value + 8.0 * torch.finfo(h.dtype).eps * (value.abs() + 1.0)
            t = active.to(h.dtype)
            for _ in range(self.recipe.max_halvings):
                new = torch.addcmul(h, t, d)
                new_value, new_g = self.value_and_gradient(f, new)
                reject = active & ~(new_value <= slack + (t * slope)[:, 0, 0])[:, None, None]
                if not bool(reject.any()):
                    break
                t = torch.where(reject, 0.5 * t, t)
            s, y = new - h, new_g - g
            sy, yy = _dot(s, y), _dot(y, y)
            good = sy > 0.0
            pairs.append((s, y, torch.where(good, 1.0 / sy, 0.0)))
            del pairs[: -self.recipe.memory]
            gamma = torch.where(good, sy / yy, gamma)
            h, value, g = new, new_value, new_g
            active = _dot(g, g).sqrt() > self.recipe.tolerance
            iterations += 1
        return h, iterations, bool(active.any())

    # -- adjoint ----------------------------------------------------------------------------------

    def adjoint(self, gradient: Tensor, h: Tensor, rhs: Tensor) -> tuple[Tensor, int]:
        """CG for H λ = rhs. A backward pass through ``gradient``'s graph at ``h`` applies H."""
        x, r, p = torch.zeros_like(rhs), rhs, rhs
        rr = _dot(r, r)
        limit = self.recipe.cg_tolerance**2 * rr
        active = rr > limit
        iterations = 0
        while iterations < self.recipe.cg_max_iter and bool(active.any()):
            (hp,) = torch.autograd.grad(gradient, h, p, retain_graph=True)
            alpha = torch.where(active, rr / _dot(p, hp), 0.0)
            x, r = torch.addcmul(x, alpha, p), torch.addcmul(r, alpha, hp, value=-1.0)
            new = _dot(r, r)
            p = torch.addcmul(r, torch.where(active, new / rr, 0.0), p)
            rr, iterations = new, iterations + 1
            active = rr > limit
        return x, iterations

    # -- the training step ------------------------------------------------------------------------

    def step(self, p: Parameters, h0: Tensor) -> Outcome:
        """Forward solve, adjoint and parameter gradients, from ``h0`` [R, k, N]."""
        features = self.features(p)
        fixed = Features(*([_detached(y) for y in net] for net in vars(features).values()))
        h, iterations, missed = self.solve(fixed, h0)
        h = h.requires_grad_()
        names = [name for name in p if name.startswith("readout")]
        loss = self.task.loss(self.readout(p, h)).sum()
        rhs, *outer = torch.autograd.grad(loss, [h, *(p[name] for name in names)])
        energy = self.energy(features, h).sum()
        (gradient,) = torch.autograd.grad(energy, h, create_graph=True)
        dual, adjoint_iterations = self.adjoint(gradient, h, rhs)
        inner_names = [name for name in p if name not in names]
        inner = torch.autograd.grad(
            gradient, [p[name] for name in inner_names], -dual, allow_unused=True
        )
        gradients = {
            name: torch.zeros_like(p[name]) if g is None else g
            for name, g in zip([*names, *inner_names], [*outer, *inner], strict=True)
        }
        return Outcome(h.detach().mT, gradients, iterations, adjoint_iterations, missed)

    def load(self, parameters: Parameters, h0: Tensor) -> Callable[[], Callable[[], Outcome]]:
        leaves = {name: t.detach().clone().requires_grad_() for name, t in parameters.items()}
        start = h0.mT.contiguous()

        def step() -> Callable[[], Outcome]:
            outcome = self.step(leaves, start)
            return lambda: outcome

        return step


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product of each replica: [R, k, N] twice -> [R, 1, 1]."""
    return (x * y).sum((-2, -1), keepdim=True)


def _detached(layer: Layer) -> Layer:
    parts: dict[str, Any] = {n: None if t is None else t.detach() for n, t in vars(layer).items()}
    return Layer(**parts)


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


# -- check ----------------------------------------------------------------------------------------


def _error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-300))


def check(device: str = "cpu") -> None:
    """Compare energies, embeddings and gradients on small problems; raise where they differ."""
    recipes: dict[str, Callable[[Task, Recipe], Contender]] = {}
    if importlib.util.find_spec("jax") is not None:
        from rivals_jax import JaxRecipe, jax_device

        if jax_device(device) is not None:
            recipes["jax"] = JaxRecipe
    if not recipes:
        print(f"no jax for {device} here: checking the eager recipe only")
    tight = Recipe(tolerance=1e-10, max_iter=5000, cg_tolerance=1e-12)
    problems = {
        "chains": chains(20),
        "counting": counting(8),
        "sums": sums(4, 10),
        "coordinates": coordinates(4),
        "rgg": rgg(300),
    }
    for name, problem in problems.items():
        task = problem.to(device)
        model = build(task, 3, Newton(atol=1e-12))
        parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        h0 = torch.randn(3, len(task.x), 2, dtype=torch.float64, device=device)
        eager = EagerRecipe(task, tight)
        contenders: dict[str, Contender] = {"eager": eager}
        contenders |= {label: make(task, tight) for label, make in recipes.items()}
        graph = (task.x, task.edge_index, task.edge_attr, task.batch)
        truth = model.energy(h0, Inputs(*graph)).detach().sum(-1)
        energies = eager.energy(eager.features(parameters), h0.mT)
        expected = Hogwild(task, model).load(parameters, h0)()()
        print(f"{name}: energies differ by {_error(energies, truth):.1e} (relative)")
        assert _error(energies, truth) < 1e-12
        for label, contender in contenders.items():
            found = contender.load(parameters, h0)()()
            flat = {
                side: torch.cat([o.gradients[n].flatten() for n in parameters])
                for side, o in (("found", found), ("expected", expected))
            }
            apart = _error(found.h, expected.h), _error(flat["found"], flat["expected"])
            print(f"  {label}: embeddings by {apart[0]:.1e}, parameter gradients by {apart[1]:.1e}")
            assert max(apart) < 1e-6, (name, label, apart)
            assert not found.missed, (name, label)
    print("all contenders agree")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare all contenders' results")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.device)
    else:
        parser.print_help()
