r"""Training on one graph in parts: the exact gradient, without barriers.

A training step has four stages, each on all parts:

1. The parts solve for the embeddings (:mod:`hogwild.cluster.inference`), from those of the last
   step.
2. Every part reads out its labelled nodes. The loss is the mean over all labelled nodes, and a part
   knows its share.
3. The parts solve the adjoint by the same iteration: the system
   :math:`(\partial g / \partial h)^\top \lambda = \partial L / \partial h` has the structure of the
   problem (:class:`hogwild.cluster.host.AdjointWork`).
4. Every part computes :math:`-\lambda_p^\top \partial g_p / \partial \theta` with autograd. The sum
   over the parts is the gradient of the loss, as one process would compute it.

Mini-batches of subgraphs have a bias, since their nodes lack neighbours. This gradient has none.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.cluster.host import Loss
from hogwild.cluster.setup import Place, Source, prepared
from hogwild.errors import ConfigError, ConvergenceError
from hogwild.nn.norm import BatchNorm

ADJOINT = 1e-2
"""The tolerance of the adjoint, relative to that of the embeddings. Nothing bounds the error of the
adjoint of a map, so that its residual is made smaller."""


def _differs(part: nn.Module) -> bool:
    """Whether a module computes something else in every part of a graph."""
    return part.training and bool(getattr(part, "dropout", 0.0) or isinstance(part, BatchNorm))


class Trainer:
    """A model and a graph in parts, to train. A context manager.

    Call it like a closure of a PyTorch optimiser: it computes the loss and the gradients of all
    parameters of the model, which must be the one given here::

        with Trainer(model, data, workers=2, loss=cross_entropy, mask="train_mask") as closure:
            optimiser = torch.optim.Adam(model.parameters())
            for _ in range(100):
                closure()
                optimiser.step()

    ``model``, ``graph`` and ``workers`` are as in :func:`hogwild.cluster.infer`.

    Args:
        loss: From predictions [n, out] and targets [n, ...] to the *mean* of the losses.
        target: Name of the targets in the graph.
        mask: Name of the mask of labelled nodes; ``None``: all nodes.
        tol: Relative error at which the embeddings are settled.
        place: ``folder``, ``partition``, ``address``, ``cpus``, ``gpus``, ``restarts``,
            ``disorder`` and ``seed``, as in :func:`hogwild.cluster.infer`.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Source,
        workers: int | None = None,
        *,
        loss: Loss,
        target: str = "y",
        mask: str | None = None,
        tol: float = 1e-6,
        **place: Any,
    ) -> None:
        self.loss, self.target, self.mask, self.tol = loss, target, mask, tol
        with contextlib.ExitStack() as stack:
            # The adjoint reads what listeners hear, two hops away.
            setup = stack.enter_context(prepared(model, graph, workers, Place(**place), hops=2))
            self.model = setup.model
            if any(_differs(part) for part in self.model.modules()):
                raise ConfigError(
                    "the model has dropout or a BatchNorm and is in training mode, in which every "
                    "part of the graph draws and averages for itself; expected model.eval(), in "
                    "which gradients flow as well"
                )
            if self.model.readout.pool is not None:
                raise ConfigError(
                    "the readout pools the nodes of a graph; expected a model that predicts for "
                    "every node (pool=None)"
                )
            self.executor = stack.enter_context(setup.executor(tol))
            self.labelled = sum(self.executor.call("labelled", target, mask))
            if not self.labelled:
                raise ConfigError(f"mask={mask!r} selects no node; expected labelled nodes")
            self._open = stack.pop_all()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers."""
        self._open.close()

    def __call__(self) -> Tensor:
        """The loss; sets the gradients of the model's parameters."""
        value, grads = self.executor.patiently(self._step)
        for name, parameter in self.model.named_parameters():
            parameter.grad = grads[name].to(parameter) if name in grads else None
        return torch.tensor(value, dtype=next(self.model.parameters()).dtype)

    def _step(self) -> tuple[float, dict[str, Tensor]]:
        executor = self.executor
        state = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        executor.call("adopt", state)
        executor.call("start")
        self._require(executor.iterate(), "embeddings")
        # Parts that overlap round the loss at the same nodes differently.
        eps = torch.finfo(next(self.model.parameters()).dtype).eps
        tol = max(ADJOINT * self.tol, 4.0 * eps)
        given = self.loss, self.target, self.mask, self.labelled, tol
        value = math.fsum(executor.call("differentiate", *given))
        self._require(executor.iterate(), "adjoint")
        grads: dict[str, Tensor] = {}
        for part in executor.call("gradients"):
            for name, grad in part.items():
                found = torch.from_numpy(np.array(grad))
                grads[name] = grads[name] + found if name in grads else found
        if not math.isfinite(value):
            raise ConvergenceError(
                f"the loss is {value}; expected a finite number: look at the targets and the loss"
            )
        return value, grads

    def _require(self, done: bool, what: str) -> None:
        if not done:
            raise ConvergenceError(f"the parts did not settle for the {what}")
