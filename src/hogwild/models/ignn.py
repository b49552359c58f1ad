r"""IGNN and EIGNN: fixed points of the contraction in :mod:`hogwild.models.contraction`.

IGNN, `Implicit Graph Neural Networks <https://arxiv.org/abs/2009.06211>`_ (Gu, Chang, Zhu, Sojoudi
& El Ghaoui, NeurIPS 2020), as in the appendix of the Hogwild paper:

.. math::
    H = \phi(W H \tilde A + g(X)), \qquad
    h_i = \phi\Bigl(\sum_j \tilde A_{ij} W h_j + g(x_i)\Bigr), \qquad
    \|W\|_\infty \le \kappa < 1 .

EIGNN, `EIGNN: Efficient Infinite-Depth Graph Neural Networks <https://arxiv.org/abs/2202.10720>`_
(Liu, Kawaguchi, Hooi, Wang & Xiao, NeurIPS 2021), where S is :math:`\tilde A`:

.. math::
    Z = \gamma\, g(F)\, Z S + f(X), \qquad g(F) = \frac{F^\top F}{\|F^\top F\|_F + \epsilon}, \qquad
    h_i = \gamma \sum_j S_{ij}\, g(F) h_j + f(x_i) .

With the eigendecompositions :math:`S = Q_S \Lambda_S Q_S^\top` and
:math:`g(F) = Q_F \Lambda_F Q_F^\top`,

.. math::
    Z = Q_F \bigl[G \circ (Q_F^\top f(X)\, Q_S)\bigr] Q_S^\top, \qquad
    G_{ab} = \frac{1}{1 - \gamma\, (\Lambda_F)_a (\Lambda_S)_b} .

The Hogwild paper leaves EIGNN out of its comparison, because the closed form uses global
information. But the fixed point is also that of a one-hop map, which contracts with modulus
:math:`\gamma \|g(F)\|_2 \le \gamma < 1` in the norm :math:`\max_i \|h_i\|_2 / \sqrt{d_i}`: the
model can be trained in closed form and run asynchronously. The published model has as many channels
as features, :math:`f(X) = X`. Any other width gets an affine encoder f.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, require_one_of, require_widths
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Kind
from hogwild.models.contraction import Contraction, Spectrum, adjacency, spectrum_of
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.nn.mlp import MLP
from hogwild.nn.nonexpansive import Nonexpansive, resolve
from hogwild.solvers.anderson import Picard
from hogwild.solvers.loop import Solver
from hogwild.solvers.semismooth import SemismoothNewton

METHODS = ("closed", "iterate")
EPSILON = 1e-12


class ContractionConv(ImplicitConv):
    """The base class of layers whose problem is a :class:`Contraction`."""

    kind = Kind.FIXED_POINT
    hops = 1

    def __init__(self, in_channels: int, hidden_channels: int, **kwargs: Unpack[Solving]) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        lead = () if self.replicas is None else (self.replicas,)
        self.weight = nn.Parameter(torch.empty(*lead, hidden_channels, hidden_channels))

    @property
    def matrix(self) -> Tensor:
        """The matrix W of the contraction, [k, k] or [R, k, k]."""
        return self._matrix(self.weight)

    @abstractmethod
    def _matrix(self, weight: Tensor) -> Tensor:
        """W as a function of the parameter."""

    def _pose(
        self,
        inputs: Inputs,
        encoder: nn.Module | None,
        act: Nonexpansive,
        *,
        euclidean: bool = False,
        closed: bool = False,
    ) -> Contraction:
        """The fixed point of these inputs, attached to the autograd graph."""
        inputs = self.accept(inputs)
        graph, dtype, given = self.graph(inputs), self.precision(inputs.x), inputs.edge_weight
        a, k, spectrum = adjacency(graph, given, dtype), self.hidden_channels, None
        if closed:
            spectrum = spectrum_of(graph, dtype) if given is None else Spectrum.of(graph, a)
        matrix = self._matrix(self.weight.to(dtype)).view(-1, k, k)
        b = self._encode(encoder, inputs.x)
        return Contraction(graph, a, matrix, b, act, euclidean, spectrum)


def _below_one(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise ConfigError(
            f"{name}={value!r}; expected a number between 0 and 1, both excluded: with 1 the map "
            f"is not a contraction"
        )
    return float(value)


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

    Conventions:
        ``edge_weight`` is nonnegative and holds the entries of A, also for the degrees. Self-loops
        are ordinary edges, and each of several parallel edges counts. On a directed graph node i
        hears the senders of the edges into it, and the graph needs no reverse links.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        widths: Sequence[int] = (16, 16, 16),
        kappa: float = 0.95,
        act: str | Nonexpansive = "relu",
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        self.kappa, self.act = _below_one("kappa", kappa), resolve(act)
        widths = (*require_widths("widths", widths), hidden_channels)
        self.encoder = MLP(in_channels, widths, replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        bound = 1.0 / math.sqrt(self.hidden_channels)
        self.weight.uniform_(-bound, bound)
        self.encoder.reset_parameters()

    def _matrix(self, weight: Tensor) -> Tensor:
        # Rows w = κ v / (1 + ‖v‖₁⁴)^¼ have ‖w‖₁ ≤ κ for every v.
        length = weight.abs().sum(-1, keepdim=True)
        return self.kappa * weight / torch.hypot(torch.ones_like(length), length**2).sqrt()

    def default_solver(self) -> Solver:
        return SemismoothNewton()

    def problem(self, inputs: Inputs) -> Contraction:
        """The fixed point of these inputs, attached to the autograd graph."""
        return self._pose(inputs, self.encoder, self.act)

    def _distinctions(self) -> dict[str, object]:
        return {"kappa": self.kappa, "act": self.act.name}


class IGNN(ImplicitGNN):
    """An implicit GNN: one or several :class:`IGNNConv` and the paper's readout. The arguments are
    those of :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`IGNNConv`."""

    layer = IGNNConv


class EIGNNConv(ContractionConv):
    r"""A layer with the fixed point
    :math:`h_i = \gamma \sum_j S_{ij}\, g(F) h_j + f(x_i)`.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. If both widths are equal there is no encoder, f(X) = X. A
    solver is only for ``"iterate"``, by default :class:`~hogwild.solvers.Picard`.

    Args:
        gamma: γ, 0 < γ < 1. The paper uses 0.8 and also allows 1, which is not a contraction.
        method: ``"closed"`` uses an eigendecomposition, which is exact, for undirected graphs of
            at most 5,000 nodes. Without edge weights the decomposition is cached on the graph.
            ``"iterate"`` iterates the map and takes any graph.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        gamma: float = 0.8,
        method: str = "closed",
        **kwargs: Unpack[Solving],
    ) -> None:
        require_one_of(METHODS, method=method)
        if method == "closed" and kwargs.get("solver") is not None:
            raise ConfigError(
                f"solver={kwargs['solver']!r} was given, but method='closed' needs no solver; "
                f"leave it out or use method='iterate'"
            )
        self.method = method
        super().__init__(in_channels, hidden_channels, **kwargs)
        self.gamma = _below_one("gamma", gamma)
        self.encoder: MLP | None = None
        if in_channels != hidden_channels:
            self.encoder = MLP(in_channels, (hidden_channels,), replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        bound = (3.0 / self.hidden_channels) ** 0.5  # Glorot's, for a square matrix
        self.weight.uniform_(-bound, bound)
        if self.encoder is not None:
            self.encoder.reset_parameters()

    def _matrix(self, weight: Tensor) -> Tensor:
        r""":math:`\gamma\, g(F)`."""
        square = weight.mT @ weight
        norm = torch.linalg.matrix_norm(square, keepdim=True)
        return self.gamma * square / (norm + EPSILON)

    def default_solver(self) -> Solver:
        return SemismoothNewton() if self.method == "closed" else Picard()  # one exact Newton step

    def problem(self, inputs: Inputs) -> Contraction:
        """The fixed point of these inputs, attached to the autograd graph."""
        closed = self.method == "closed"
        return self._pose(inputs, self.encoder, resolve("identity"), euclidean=True, closed=closed)

    def _distinctions(self) -> dict[str, object]:
        return {"gamma": self.gamma, "method": self.method}


class EIGNN(ImplicitGNN):
    """EIGNN: one or several :class:`EIGNNConv` and the paper's readout. The arguments are those of
    :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`EIGNNConv`."""

    layer = EIGNNConv
