r"""Implicit graph neural networks: embeddings that are the fixed point of a contraction.

`Implicit Graph Neural Networks <https://arxiv.org/abs/2009.06211>`_ (Gu, Chang, Zhu, Sojoudi &
El Ghaoui, NeurIPS 2020), as in the appendix of the Hogwild paper:

.. math::
    H = \phi(W H \tilde A + g(X)), \qquad
    h_i = \phi\Bigl(\sum_j \tilde A_{ij} W h_j + g(x_i)\Bigr).

With :math:`\lambda_{pf}(\tilde A) \le 1`, :math:`\|W\|_\infty \le \kappa < 1` and a nonexpansive
:math:`\phi` this is a contraction with modulus κ in a weighted maximum norm over nodes, which is
what asynchronous convergence needs (the theorem is in :mod:`hogwild.models.contraction`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from hogwild.errors import ConfigError, ProjectionWarning
from hogwild.graph.inputs import Inputs
from hogwild.models.contraction import Contraction, ContractionConv
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import Solving
from hogwild.nn.mlp import MLP
from hogwild.nn.nonexpansive import Nonexpansive, resolve
from hogwild.solvers.loop import Solver
from hogwild.solvers.semismooth import SemismoothNewton

CONSTRAINTS = ("parametrise", "project")


class IGNNProblem(Contraction):
    r"""IGNN's fixed point; :meth:`modulus` is at most :math:`\|W\|_\infty \le \kappa`."""


def onto_ball(weight: Tensor, radius: float) -> Tensor:
    r"""The nearest matrix [..., k, k] whose rows have :math:`\|w\|_1 \le` ``radius``.

    Exact (Duchi et al., ICML 2008): a row outside the ball is soft-thresholded by the θ at which
    it meets the sphere, found by sorting its entries.
    """
    size, order = weight.abs(), torch.arange(1, weight.size(-1) + 1, device=weight.device)
    falling = size.sort(dim=-1, descending=True).values
    thresholds = (falling.cumsum(-1) - radius) / order
    count = (falling > thresholds).sum(-1, keepdim=True).clamp_min(1)
    theta = thresholds.gather(-1, count - 1).clamp_min(0.0)
    return torch.sign(weight) * (size - theta).clamp_min(0.0)


class IGNNConv(ContractionConv):
    r"""The fixed point :math:`h_i = \phi(\sum_j \tilde A_{ij} W h_j + g(x_i))`.

    Args:
        in_channels: Width p of the node features.
        hidden_channels: Width k of the embeddings.
        widths: Hidden widths of the MLP g; the paper's (16, 16, 16).
        kappa: Bound κ on :math:`\|W\|_\infty`, 0 < κ < 1.
        act: :math:`\phi`: ``"relu"``, as published, ``"leaky_relu"``, ``"tanh"``, ``"identity"``
            or any :class:`~hogwild.nn.Nonexpansive`. Two ReLUs a node are few: on the chains and
            counting tasks a third of the models switched both off on every node within a hundred
            epochs and never learned again; none did with ``"leaky_relu"``.
        normalize: :math:`\tilde A = (D+I)^{-1/2} (A+I) (D+I)^{-1/2}`, as in IGNN's own experiments
            (and as GCN and GSDGNN use it in the paper, which leaves IGNN's :math:`\tilde A` open);
            its :math:`\lambda_{pf}` is one on every graph, so that κ means the same everywhere and
            nodes need nothing but their neighbours' degrees. ``False``:
            :math:`\tilde A = A / \lambda_{pf}(A)`, scaled graph by graph with the power method
            (kept with the graph where there are no edge weights, run in every call where there
            are).
        constraint: How W stays inside. ``"parametrise"``: rows
            :math:`w = \kappa\, v / (1 + \|v\|_1^4)^{1/4}` of a free matrix V, inside for every V,
            nearly V where it is short and nearly on the sphere where it is long. ``"project"``:
            the parameter is W itself; call :meth:`project_` after each optimiser step, as the
            published code does (the forward pass does it otherwise, with a warning).
        kwargs: Additional arguments of :class:`~hogwild.models.ImplicitConv`: ``replicas``,
            ``solver`` (:class:`~hogwild.solvers.SemismoothNewton` by default), ``solve_dtype``,
            ``on_failure``, ``validate``.

    Shapes:
        x [N, p] (or [R, N, p]), edge_index [2, E], batch [N], edge_weight [E]
        → [N, k], or [R, N, k] with replicas.

    Conventions:
        ``edge_weight`` is nonnegative and enters A (and so the degrees, or :math:`\lambda_{pf}`).
        Self-loops and multi-edges are ordinary edges, each counted. On a directed graph node i
        hears the sources of the edges into it; nothing has to travel against the edges.
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
                f"update is no contraction"
            )
        if constraint not in CONSTRAINTS:
            raise ConfigError(f"constraint={constraint!r}; expected one of {CONSTRAINTS}")
        self.kappa, self.act = float(kappa), resolve(act)
        self.normalize, self.constraint = normalize, constraint
        self.encoder = MLP(in_channels, (*widths, hidden_channels), replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        bound = 1.0 / math.sqrt(self.hidden_channels)
        self.weight.uniform_(-bound, bound)
        if self.constraint == "project":
            self.project_(warn=False)
        self.encoder.reset_parameters()

    @property
    def matrix(self) -> Tensor:
        r"""W, [k, k] or [R, k, k]."""
        return self._matrix(self.weight)

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.constraint == "project":
            return weight
        length = weight.abs().sum(-1, keepdim=True)
        return self.kappa * weight / torch.hypot(torch.ones_like(length), length**2).sqrt()

    @torch.no_grad()
    def project_(self, *, warn: bool = True) -> Tensor:
        r"""Project W onto :math:`\|W\|_\infty \le \kappa`, exactly and on its device.

        Returns:
            How far :math:`\|W\|_\infty` exceeded κ, [] or [R].
        """
        if self.constraint != "project":
            return self.weight.new_zeros(self.weight.shape[:-2])
        excess = (self.weight.abs().sum(-1).amax(-1) - self.kappa).clamp_min(0.0)
        # What rounding leaves outside was projected before.
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

    def problem(self, inputs: Inputs) -> IGNNProblem:
        """The fixed point of these inputs, attached to the autograd graph."""
        inputs = Inputs.of(inputs)
        graph, a = self._pose(inputs, self.normalize)
        if self.constraint == "project":
            self.project_()
        k = self.hidden_channels
        matrix = self._matrix(self.weight.to(a.edge.dtype)).view(-1, k, k)
        return IGNNProblem(graph, a, matrix, self._encode(self.encoder, inputs.x), self.act)

    def _distinctions(self) -> dict[str, object]:
        return {"kappa": self.kappa, "act": self.act.name, "constraint": self.constraint}


class IGNN(ImplicitGNN):
    r"""An implicit GNN: one or several :class:`IGNNConv` and the paper's readout.

    Args:
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        num_layers: Number of layers; each reads the features and the solution of the layer below.
        pool: ``None`` predicts for every node, ``"mean"`` for every graph.
        readout: Hidden widths of the readout MLPs.
        kwargs: Everything else goes to every :class:`IGNNConv`: ``hidden_channels``, ``widths``,
            ``kappa``, ``act``, ``replicas``, ….

    Shapes:
        as :class:`IGNNConv`, → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out].
    """

    layer = IGNNConv

    def project_(self, *, warn: bool = True) -> None:
        """:meth:`IGNNConv.project_` of every layer."""
        for conv in self.modules():
            if isinstance(conv, IGNNConv):
                conv.project_(warn=warn)
