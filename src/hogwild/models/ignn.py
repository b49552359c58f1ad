r"""Implicit graph neural networks (IGNN): embeddings at the fixed point of a contraction.

`Implicit Graph Neural Networks <https://arxiv.org/abs/2009.06211>`_ (Gu, Chang, Zhu, Sojoudi &
El Ghaoui, NeurIPS 2020), as in the appendix of the Hogwild paper:

.. math::
    H = \phi(W H \tilde A + g(X)), \qquad
    h_i = \phi\Bigl(\sum_j \tilde A_{ij} W h_j + g(x_i)\Bigr).

With :math:`\lambda_{pf}(\tilde A) \le 1`, :math:`\|W\|_\infty \le \kappa < 1` and a nonexpansive
:math:`\phi` this is a contraction with modulus κ in a weighted maximum norm over nodes, and
therefore converges asynchronously (the theorem is in :mod:`hogwild.models.contraction`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from hogwild.errors import ConfigError, ProjectionWarning, require_one_of, require_widths
from hogwild.graph.inputs import Inputs
from hogwild.models.contraction import Contraction, ContractionConv
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import Solving
from hogwild.nn.mlp import MLP
from hogwild.nn.nonexpansive import Nonexpansive, resolve
from hogwild.solvers.loop import Solver
from hogwild.solvers.semismooth import SemismoothNewton

CONSTRAINTS = ("parametrise", "project")


def onto_ball(weight: Tensor, radius: float) -> Tensor:
    r"""The nearest matrix [..., k, k] whose rows have :math:`\|w\|_1 \le` ``radius``.

    The projection is exact (Duchi et al., ICML 2008): a row outside the ball is soft-thresholded
    by the θ at which it reaches the sphere. Sorting the entries gives θ.
    """
    size, order = weight.abs(), torch.arange(1, weight.size(-1) + 1, device=weight.device)
    falling = size.sort(dim=-1, descending=True).values
    thresholds = (falling.cumsum(-1) - radius) / order
    count = (falling > thresholds).sum(-1, keepdim=True).clamp_min(1)
    theta = thresholds.gather(-1, count - 1).clamp_min(0.0)
    return torch.sign(weight) * (size - theta).clamp_min(0.0)


class IGNNConv(ContractionConv):
    r"""A layer with the fixed point
    :math:`h_i = \phi(\sum_j \tilde A_{ij} W h_j + g(x_i))`.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is
    :class:`~hogwild.solvers.SemismoothNewton`.

    Args:
        widths: Hidden widths of the MLP g; the paper uses (16, 16, 16).
        kappa: Bound κ on :math:`\|W\|_\infty`, 0 < κ < 1.
        act: :math:`\phi`: ``"relu"`` (the paper's), ``"leaky_relu"``, ``"tanh"``, ``"identity"``
            or any :class:`~hogwild.nn.Nonexpansive`. With ``"relu"`` and k = 2, a third of the
            models on the chains and counting tasks had only zero activations after a hundred epochs
            and stopped learning. This never happened with ``"leaky_relu"``.
        normalize: Use :math:`\tilde A = (D+I)^{-1/2} (A+I) (D+I)^{-1/2}`, as in IGNN's own
            experiments. (The Hogwild paper does not specify :math:`\tilde A` for IGNN.) Its
            :math:`\lambda_{pf}` is one on every graph, so κ has the same meaning on all graphs, and
            nodes only need their neighbours' degrees. With ``False``,
            :math:`\tilde A = A / \lambda_{pf}(A)`, by the power method on every graph. Without edge
            weights the result is cached on the graph.
        constraint: How :math:`\|W\|_\infty \le \kappa` is enforced. With ``"parametrise"`` the rows
            of W are :math:`w = \kappa\, v / (1 + \|v\|_1^4)^{1/4}`, which satisfies the bound for
            every row v of the parameter. With ``"project"`` the parameter is W itself: call
            :meth:`project_` after each optimiser step, as the published code does. Otherwise the
            forward pass projects W and warns.

    Conventions:
        ``edge_weight`` is nonnegative and holds the entries of A, also for the degrees and
        :math:`\lambda_{pf}`. Self-loops are ordinary edges, and each of several parallel edges
        counts. On a directed graph node i hears the senders of the edges into it, and the graph
        needs no reverse links.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        widths: Sequence[int] = (16, 16, 16),
        kappa: float = 0.95,
        act: str | Nonexpansive = "relu",
        normalize: bool = True,
        constraint: str = "parametrise",
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        if not 0 < kappa < 1:
            raise ConfigError(
                f"kappa={kappa!r}; expected a number between 0 and 1, both excluded: with 1 the "
                f"map is not a contraction"
            )
        require_one_of(CONSTRAINTS, constraint=constraint)
        self.kappa, self.act = float(kappa), resolve(act)
        self.normalize, self.constraint = normalize, constraint
        widths = (*require_widths("widths", widths), hidden_channels)
        self.encoder = MLP(in_channels, widths, replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        bound = 1.0 / math.sqrt(self.hidden_channels)
        self.weight.uniform_(-bound, bound)
        if self.constraint == "project":
            self.project_(warn=False)
        self.encoder.reset_parameters()

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.constraint == "project":
            return weight
        length = weight.abs().sum(-1, keepdim=True)
        return self.kappa * weight / torch.hypot(torch.ones_like(length), length**2).sqrt()

    @torch.no_grad()
    def project_(self, *, warn: bool = True) -> Tensor:
        r"""Project W onto :math:`\|W\|_\infty \le \kappa`.

        Returns:
            How far :math:`\|W\|_\infty` exceeded κ, [] or [R].
        """
        if self.constraint != "project":
            return self.weight.new_zeros(self.weight.shape[:-2])
        excess = (self.weight.abs().sum(-1).amax(-1) - self.kappa).clamp_min(0.0)
        # An excess of rounding size comes from an earlier projection.
        excess = torch.where(excess > 8 * torch.finfo(excess.dtype).eps, excess, 0.0)
        if warn:
            if not bool(excess.any()):
                return excess
            warnings.warn(
                f"‖W‖∞ exceeded kappa={self.kappa} by {float(excess.max()):.3g} and W was projected"
                f" back; call project_(warn=False) after each optimiser step, or use "
                f"constraint='parametrise'",
                ProjectionWarning,
                stacklevel=3,
            )
        outside = (excess > 0)[..., None, None]
        self.weight.copy_(torch.where(outside, onto_ball(self.weight, self.kappa), self.weight))
        return excess

    def default_solver(self) -> Solver:
        return SemismoothNewton()

    def problem(self, inputs: Inputs) -> Contraction:
        """The fixed point of these inputs, attached to the autograd graph."""
        inputs = self.accept(inputs)
        graph, a = self._pose(inputs, self.normalize)
        if self.constraint == "project":
            self.project_()
        matrix, g = self._solve_matrix(a.edge.dtype), self._encode(self.encoder, inputs.x)
        return Contraction(graph, a, matrix, g, self.act)

    def _distinctions(self) -> dict[str, object]:
        return {"kappa": self.kappa, "act": self.act.name, "constraint": self.constraint}


class IGNN(ImplicitGNN):
    """An implicit GNN: one or several :class:`IGNNConv` and the paper's readout. The arguments are
    those of :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`IGNNConv`."""

    layer = IGNNConv

    def project_(self, *, warn: bool = True) -> None:
        """Project the matrix of every layer: :meth:`IGNNConv.project_`."""
        for conv in self.modules():
            if isinstance(conv, IGNNConv):
                conv.project_(warn=warn)
