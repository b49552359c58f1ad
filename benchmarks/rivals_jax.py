r"""The paper's recipe in JAX: the recipe of :mod:`rivals`, compiled as one function.

Both loops are ``lax.while_loop``, and the history is a ring buffer. Hessian–vector products are the
gradient's linearisation, made once per training step by ``jax.linearize``. This is cheaper than a
``jvp`` of the gradient in every iteration, which would repeat the primal pass. Segment sums know
that receivers are sorted. Everything is float64. The first call of a shape compiles and is never
timed. The limit on the iterations is an argument, so that :meth:`JaxRecipe.limited` shares the
compiled function.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # share the GPU with torch

import jax
import jax.numpy as jnp
import torch
from jax import Array, lax
from rivals import SLOPE, Outcome, Parameters, Recipe
from tasks import EPSILON, Task
from torch import Tensor

jax.config.update("jax_enable_x64", True)

Pytree = Any


def jax_device(name: str) -> jax.Device | None:
    """JAX's device for torch's ``"cpu"`` or ``"cuda"``, or ``None`` where JAX cannot reach it."""
    try:
        return jax.devices("cpu" if name == "cpu" else "gpu")[0]
    except RuntimeError:
        return None


@jax.custom_jvp
def softplus(a: Array) -> Array:
    """log(1 + eᵃ) with a sigmoid for its slope: up to 40 % faster in float64 than jax.nn's."""
    return jnp.maximum(a, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(a)))


softplus.defjvps(lambda tangent, value, a: tangent * jax.nn.sigmoid(a))


def prepare(p: dict[str, Array], net: str, x: Array, monotone: int) -> Pytree:
    """Fill features ``x`` [1, p, n] into a PICNN, nondecreasing in its first inputs."""
    layers = []
    u, depth = x, sum(name.startswith(f"{net}.wy.") for name in p)
    for i in range(depth):
        wy, wz = p[f"{net}.wy.{i}"], p.get(f"{net}.wz.{i - 1}")
        width, d = wy.shape[-2:]
        both = p[f"{net}.feature_weight.{i}"] @ u + p[f"{net}.feature_bias.{i}"][..., None]
        sizes = [width if i < depth - 1 else 0, 0 if wz is None else wz.shape[-1], d]
        u, gz, gy, bias = jnp.split(both, [sum(sizes[: j + 1]) for j in range(3)], 1)
        u = jnp.where(u > 0.0, u, SLOPE * u)
        if monotone:
            wy = jnp.concatenate([softplus(wy[..., :monotone]), wy[..., monotone:]], -1)
            gy = jnp.concatenate([softplus(gy[:, :monotone]), gy[:, monotone:]], 1)
        gates = None if wz is None else (softplus(wz), softplus(gz))
        layers.append((wy, gy, bias, gates))
    return layers


def picnn(layers: Pytree, y: Array) -> Array:
    """Value at the convex inputs ``y`` [R, d, n]."""
    z = y
    for i, (wy, gy, bias, gates) in enumerate(layers):
        a = bias + wy @ (gy * y)
        if gates is not None:
            a = a + gates[0] @ (gates[1] * z)
        z = softplus(a) if i < len(layers) - 1 else a
    return z


def dot(x: Array, y: Array) -> Array:
    """Inner product of each replica: [R, k, N] twice -> [R, 1, 1]."""
    return (x * y).sum((-2, -1), keepdims=True)


class JaxRecipe:
    """The recipe on one task; see the module's documentation."""

    def __init__(self, task: Task, recipe: Recipe | None = None) -> None:
        self.recipe, self.kind, self.torch_device = recipe or Recipe(), task.kind, task.x.device
        device = jax_device(self.torch_device.type)
        if device is None:
            raise RuntimeError(f"JAX has no device for {self.torch_device}")
        self.device = device
        self.nodes = len(task.x)
        src, dst = task.edge_index
        ends = [task.x[dst], task.x[src]] + ([] if task.edge_attr is None else [task.edge_attr])
        constants = {
            "src": src.int(),
            "dst": dst.int(),
            "x": task.x.T[None],
            "x_edge": torch.cat(ends, -1).T[None],
            "target": task.target if task.pairs is not None else task.target.T,
        }
        if task.pairs is not None:
            constants["pairs"] = task.pairs.int()
        self.constants = {name: self._put(t) for name, t in constants.items()}
        self.constants["max_iter"] = self._limit(self.recipe.max_iter)
        self._step = jax.jit(self.step)

    def _limit(self, max_iter: int) -> Array:
        return jax.device_put(jnp.asarray(max_iter), self.device)

    def limited(self, max_iter: int) -> JaxRecipe:
        """The same recipe with another limit on its forward iterations; nothing is recompiled."""
        twin = copy.copy(self)
        twin.constants = self.constants | {"max_iter": self._limit(max_iter)}
        return twin

    def _put(self, t: Tensor) -> Array:
        return jax.device_put(t.detach().cpu().contiguous().numpy(), self.device)

    def _get(self, a: Array) -> Tensor:
        return torch.from_numpy(jax.device_get(a).copy()).to(self.torch_device)

    # -- the energy and the loss ------------------------------------------------------------------

    def features(self, p: dict[str, Array], c: dict[str, Array]) -> Pytree:
        channels = p["conv.message_nets.0.wy.2"].shape[-2]
        return (
            prepare(p, "conv.message_nets.0", c["x_edge"], 0),
            prepare(p, "conv.loop_nets.0", c["x"], 0),
            prepare(p, "conv.update_nets.0", c["x"], channels),
        )

    def energy(self, features: Pytree, h: Array, c: dict[str, Array]) -> Array:
        """Energy of each replica over all graphs: [R, k, N] -> [R]."""
        message, loop, update = features
        at = partial(h.at[..., c["dst"]].get, indices_are_sorted=True, mode="promise_in_bounds")
        receivers, senders = at(), h.at[..., c["src"]].get(mode="promise_in_bounds")
        y = jnp.stack([receivers, senders], 2)  # channel by channel, both ends
        m = picnn(message, y.reshape(len(h), -1, y.shape[-1]))
        into = picnn(loop, h).at[..., c["dst"]]
        m = into.add(m, indices_are_sorted=True, mode="promise_in_bounds")
        u = picnn(update, jnp.concatenate([m, h], 1))
        return u.sum((-2, -1)) + 0.5 * self.recipe.beta * (h * h).sum((-2, -1))

    def loss(self, p: dict[str, Array], h: Array, c: dict[str, Array]) -> Array:
        """The replicas' losses, summed."""
        depth = sum(name.startswith("readout.node.weight.") for name in p)
        for i in range(depth):
            h = p[f"readout.node.weight.{i}"] @ h + p[f"readout.node.bias.{i}"][..., None]
            h = jnp.where(h > 0.0, h, SLOPE * h) if i < depth - 1 else h
        if self.kind == "pairs":
            gap = h[..., c["pairs"][0]] - h[..., c["pairs"][1]]
            losses = (jnp.sqrt((gap * gap).sum(1) + EPSILON) - c["target"]) ** 2
        elif self.kind == "classification":
            losses = softplus(h) - h * c["target"]
        else:
            losses = (h - c["target"]) ** 2
        return losses.reshape(len(h), -1).mean(-1).sum()

    # -- forward ----------------------------------------------------------------------------------

    def solve(self, features: Pytree, h: Array, c: dict[str, Array]) -> tuple[Array, Array, Array]:
        """L-BFGS from ``h`` [R, k, N]: the iterate, iterations, and whether a replica missed its
        tolerance."""
        recipe, memory = self.recipe, self.recipe.memory

        def evaluate(h: Array) -> tuple[Array, Array]:
            value, pullback = jax.vjp(lambda h: self.energy(features, h, c), h)
            return value[:, None, None], pullback(jnp.ones_like(value))[0]

        def unfinished(g: Array) -> Array:
            return dot(g, g) > recipe.tolerance**2

        def more(state: Pytree) -> Array:
            return (state["i"] < c["max_iter"]) & unfinished(state["g"]).any()

        def iterate(state: Pytree) -> Pytree:
            h, value, g, i = state["h"], state["value"], state["g"], state["i"]
            active = unfinished(g)
            d, alphas = -g, []
            slots = [(i - 1 - j) % memory for j in range(memory)]  # newest first; empty: ρ = 0
            for slot in slots:
                alphas.append(state["rho"][slot] * dot(state["s"][slot], d))
                d = d - alphas[-1] * state["y"][slot]
            d = state["gamma"] * d
            for slot, alpha in zip(slots[::-1], alphas[::-1], strict=True):
                d = d + (alpha - state["rho"][slot] * dot(state["y"][slot], d)) * state["s"][slot]
            slope = 1e-4 * dot(g, d)
            slack = value + 8.0 * jnp.finfo(h.dtype).eps * (jnp.abs(value) + 1.0)

            def rejected(trial: Pytree) -> Array:
                t, new_value, _, _ = trial
                return active & ~(new_value <= slack + t * slope)

            def shorter(trial: Pytree) -> Pytree:
                t = jnp.where(rejected(trial), 0.5 * trial[0], trial[0])
                return t, *evaluate(h + t * d), trial[3] + 1

            t = active.astype(h.dtype)
            t, new_value, new_g, _ = lax.while_loop(
                lambda trial: rejected(trial).any() & (trial[3] < recipe.max_halvings),
                shorter,
                (t, *evaluate(h + t * d), 1),
            )
            s, y = t * d, new_g - g
            sy = dot(s, y)
            good = sy > 0.0
            slot = i % memory
            return {
                "h": h + s,
                "value": new_value,
                "g": new_g,
                "s": state["s"].at[slot].set(s),
                "y": state["y"].at[slot].set(y),
                "rho": state["rho"].at[slot].set(jnp.where(good, 1.0 / sy, 0.0)),
                "gamma": jnp.where(good, sy / dot(y, y), state["gamma"]),
                "i": i + 1,
            }

        value, g = evaluate(h)
        history = jnp.zeros((memory, *h.shape))
        state: Pytree = {
            "h": h,
            "value": value,
            "g": g,
            "s": history,
            "y": history,
            "rho": jnp.zeros((memory, len(h), 1, 1)),
            "gamma": 1.0 / jnp.maximum(jnp.sqrt(dot(g, g)), 1.0),  # length one at most
            "i": 0,
        }
        state = lax.while_loop(more, iterate, state)
        return state["h"], state["i"], unfinished(state["g"]).any()

    # -- adjoint ----------------------------------------------------------------------------------

    def adjoint(self, apply: Callable[[Array], Array], rhs: Array) -> tuple[Array, Array]:
        """CG for H λ = rhs, every replica to its own tolerance."""
        limit = self.recipe.cg_tolerance**2 * dot(rhs, rhs)

        def more(state: Pytree) -> Array:
            return (state[3] > limit).any() & (state[4] < self.recipe.cg_max_iter)

        def iterate(state: Pytree) -> Pytree:
            x, r, p, rr, i = state
            active = rr > limit
            hp = apply(p)
            alpha = jnp.where(active, rr / dot(p, hp), 0.0)
            r = r - alpha * hp
            new = dot(r, r)
            p = r + jnp.where(active, new / rr, 0.0) * p
            return x + alpha * state[2], r, p, new, i + 1

        start: Pytree = (jnp.zeros_like(rhs), rhs, rhs, dot(rhs, rhs), 0)
        x, _, _, _, iterations = lax.while_loop(more, iterate, start)
        return x, iterations

    # -- the training step ------------------------------------------------------------------------

    def step(self, p: dict[str, Array], h0: Array, c: dict[str, Array]) -> Pytree:
        """Forward solve, adjoint and parameter gradients, from ``h0`` [R, k, N]."""

        def gradient(p: dict[str, Array], h: Array) -> Array:
            features = self.features(p, c)
            return jax.grad(lambda h: self.energy(features, h, c).sum())(h)

        features = self.features(p, c)
        h, iterations, missed = self.solve(features, h0, c)
        outer, rhs = jax.grad(self.loss, (0, 1))(p, h, c)
        at_features = jax.grad(lambda h: self.energy(features, h, c).sum())
        _, apply = jax.linearize(at_features, h)
        dual, adjoint_iterations = self.adjoint(apply, rhs)
        _, pullback = jax.vjp(lambda p: gradient(p, h), p)
        inner = pullback(-dual)[0]
        return h, jax.tree.map(jnp.add, outer, inner), iterations, adjoint_iterations, missed

    def load(self, parameters: Parameters, h0: Tensor) -> Callable[[], Callable[[], Outcome]]:
        leaves = {name: self._put(t) for name, t in parameters.items()}
        start = self._put(h0.mT)

        def step() -> Callable[[], Outcome]:
            h, gradients, *rest = jax.block_until_ready(self._step(leaves, start, self.constants))

            def outcome() -> Outcome:
                iterations, adjoint_iterations, missed = rest
                return Outcome(
                    self._get(h).mT,
                    {name: self._get(g) for name, g in gradients.items()},
                    int(iterations),
                    int(adjoint_iterations),
                    bool(missed),
                )

            return outcome

        return step
