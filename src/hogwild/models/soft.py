r"""Soft energies: a condition number that is chosen before training and holds everywhere.

.. math::
    H^* = \arg\min_H \sum_i \tfrac\beta2 \|h_i - g(x_i)\|^2 + \sum_{j \to i} w_{ij}\,
        \mathbf 1^\top \psi\bigl(s_{ij} W h_i + t_{ij} V h_j + c(x_i, x_j, e_{ij})\bigr),

with an *anchor* :math:`g`, an MLP, affine biases :math:`c`, and in every channel a convex
function with :math:`0 \le \psi_a'' \le v_a` (:mod:`hogwild_node.soft`). Features reach the
embedding directly, and messages correct it. The energy is a sum over nodes and edges: two
neighbours of a node are not coupled.

**Condition number.** Let :math:`\|W\|, \|V\| \le 1` (spectral norms) and :math:`v_a \le v`. For any
direction u the edges add at most

.. math::
    v \sum_{j \to i} w_{ij} \|s_{ij} W u_i + t_{ij} V u_j\|^2
    \le 2 v \sum_{j \to i} w_{ij} \bigl(s_{ij}^2 \|u_i\|^2 + t_{ij}^2 \|u_j\|^2\bigr)
    \le 4 v \sum_i \|u_i\|^2

to :math:`u^\top \nabla^2 E\, u`, and at least zero. The last step needs
:math:`\sum_{j \to i} w_{ij} s_{ij}^2 + \sum_{i \to j} w_{ji} t_{ji}^2 \le 2` at every node i. Both
scalings grant it, with :math:`d_i = 1 + \frac12 (\sum_{j \to i} w_{ij} + \sum_{i \to j} w_{ji})`:

* ``"symmetric"``: :math:`s_{ij} = d_i^{-1/2}`, :math:`t_{ij} = d_j^{-1/2}`, as in GCN and APPNP;
* ``"metropolis"``: :math:`s_{ij} = t_{ij} = \max(d_i, d_j)^{-1/2}`, the weights of Metropolis and
  Hastings, under which a constant signal stays constant and every node weighs the same.

So :math:`\beta \preceq \nabla^2 E \preceq \kappa \beta` with :math:`v = (\kappa - 1) \beta / 4`, at
every point, for all parameters, features and graphs, with self-loops, parallel and directed edges.
(Weights outside :math:`\psi` instead would not bound the curvature at hubs.) A plain sum over
neighbours has no such bound, because its curvature grows with the degree.

**Spectral norms.** A free matrix M becomes :math:`W = 2 M (I + M^\top M)^{-1}`. A singular value
:math:`\sigma` of M becomes :math:`2 \sigma / (1 + \sigma^2) \le 1`, exactly and without an
iteration, and W = M where the columns of M are orthonormal. The map is smooth.

**Start.** Fresh parameters have :math:`V = -W` with orthonormal columns, c = 0 and
:math:`v^-_a = v^+_a = v / 2`. With symmetric scaling that is the energy of
:class:`~hogwild.models.GSDConv` with :math:`\gamma = \beta / 2` and the weight
:math:`(\kappa - 1)\gamma / 4` along edges: graph signal denoising, which APPNP iterates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from hogwild.errors import (
    ConfigError,
    is_number,
    require_all_positive,
    require_one_of,
    require_positive,
    require_widths,
)
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Conv, Kind
from hogwild.models.features import Features
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.models.keywords import keywords, refuse_unknown
from hogwild.models.readout import Readout
from hogwild.models.stack import Stack
from hogwild.nn import norm as norms
from hogwild.nn.mlp import MLP
from hogwild.ops import gather
from hogwild.problems.soft import SoftProblem
from hogwild.solvers.loop import Solver
from hogwild.solvers.newton import Newton
from hogwild_node.soft import SCALINGS, Soft, biases, bounded, knowing, scales


class SoftEnergyConv(ImplicitConv):
    r"""A layer whose embeddings minimise a soft energy (:mod:`hogwild.models.soft`).

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is Newton's method.

    Args:
        condition: :math:`\kappa`, the largest eigenvalue of the Hessian divided by the smallest, at
            most. An influence falls by :math:`(\sqrt\kappa - 1) / (\sqrt\kappa + 1)` a hop, so
            that r hops need about :math:`4 r^2`.
        width: Channels w of the coupling; ``None``: k.
        edge_dim: Width r of the edge features, or ``None``.
        scaling: ``"symmetric"`` or ``"metropolis"``.
        widths: Hidden widths of the anchor g; ``None``: (k,).
        beta: Strong convexity :math:`\beta`. It changes the unit of the energy, not the answer.
        norm: ``None``, ``"layer"`` or ``"batch"``: the features are normalised first
            (:mod:`hogwild.nn.norm`).
        residual: The last k features, as they come, are added to the anchor:
            :math:`g(x) = x_{p-k+1..p} + \mathrm{MLP}(\mathrm{norm}(x))`. So a layer of a stack
            corrects the embeddings of the layer below.
        dropout: Probability of dropout of hidden units of the anchor in training.

    Conventions:
        As in :class:`~hogwild.models.GSDConv`. Each of several parallel edges counts, and a
        self-loop is an ordinary edge. Anchor and biases read :math:`1 / \sqrt{d_i}` beside the
        features. An isolated node has its anchor. Edge weights are differentiable.
    """

    kind = Kind.OPTIMISATION
    hops = 1
    takes_edge_attr = True

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 64,
        condition: float = 41.0,
        width: int | None = None,
        edge_dim: int | None = None,
        scaling: str = "symmetric",
        widths: Sequence[int] | None = None,
        beta: float = 1.0,
        norm: str | None = None,
        residual: bool = False,
        dropout: float = 0.0,
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        if not is_number(condition) or not 1.0 < condition < math.inf:
            raise ConfigError(f"condition={condition!r}; expected a number above 1")
        if not is_number(beta) or not 0 < beta < math.inf:
            raise ConfigError(f"beta={beta!r}; expected a positive number (strong convexity)")
        require_one_of(SCALINGS, scaling=scaling)
        require_all_positive(width=width, edge_dim=edge_dim)
        self.condition, self.beta, self.scaling = float(condition), float(beta), scaling
        k = self.hidden_channels
        self.edge_dim, self.width = edge_dim, k if width is None else width
        if self.width < k:
            raise ConfigError(f"width={width!r}; expected at least hidden_channels={k}")
        widths = (k,) if widths is None else require_widths("widths", widths)
        lead, w, p = () if self.replicas is None else (self.replicas,), self.width, in_channels + 1
        if residual and in_channels < k:
            raise ConfigError(
                f"residual=True was given with in_channels={in_channels} and hidden_channels={k}; "
                f"expected at least hidden_channels features, the last of which are added"
            )
        self.norm, self.residual = norms.norm(norm, in_channels, replicas=self.replicas), residual
        self.encoder = MLP(p, (*widths, k), replicas=self.replicas, dropout=dropout)
        self.receiver = nn.Parameter(torch.empty(*lead, w, k))
        self.sender = nn.Parameter(torch.empty(*lead, w, k))
        self.slopes = nn.Parameter(torch.empty(*lead, w, 2))
        self.bias = nn.Parameter(torch.empty(*lead, w, 2 * p + (edge_dim or 0)))
        self._draw()

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.encoder.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        for matrix in self.receiver.view(-1, self.width, self.hidden_channels):
            nn.init.orthogonal_(matrix)
        self.sender.copy_(-self.receiver)
        self.slopes.zero_()
        self.bias.zero_()

    def default_solver(self) -> Solver:
        return Newton()

    def problem(self, inputs: Inputs) -> SoftProblem:
        """The energy of these inputs, attached to the autograd graph."""
        inputs = self.accept(inputs)
        graph, x, heard, attr = self.fields(inputs)
        below = x[:, -self.hidden_channels :] if self.residual else 0.0
        if self.norm is not None:
            x, heard = self.norm(x), None if heard is None else self.norm(heard)
        weight = x.new_ones(graph.num_edges)
        if inputs.edge_weight is not None:
            weight = inputs.edge_weight.to(x.dtype)
        degree = 1.0 + 0.5 * (graph.received(weight) + graph.sent(weight))
        there, known = degree[graph.src], knowing(x, degree)
        near = gather(known, graph.src) if heard is None else knowing(heard, there)
        receiver, sender, bias, slopes = (
            self._stacked(p).to(x.dtype)
            for p in (self.receiver, self.sender, self.bias, self.slopes)
        )
        most = 0.25 * (self.condition - 1.0) * self.beta
        slopes = most * slopes.sigmoid()
        r, k, n = receiver.size(0), self.hidden_channels, graph.num_nodes
        local = Soft(
            below + self._encode(self.encoder, known.mT if known.size(0) > 1 else known[0].mT),
            biases(bias, known, near, attr, graph.dst).mT.contiguous().mT,
            *scales(self.scaling, degree[graph.dst][None, None], there[None, None]),
            weight[None, None], bounded(receiver), bounded(sender), slopes[..., :1],
            slopes[..., 1:], *(x.new_empty(r, 0, size) for size in (k, n, 1, 1)), self.beta,
        )  # fmt: skip
        return SoftProblem(graph, local)

    def _stacked(self, x: Tensor) -> Tensor:
        """Parameters with a replica dimension."""
        return x if self.replicas is not None else x.unsqueeze(0)

    def require_asynchronous(self, inputs: Inputs) -> None:
        Inputs.of(inputs).graph(validate=self.validate).require_reverse_links()

    def _distinctions(self) -> dict[str, object]:
        norm = None if self.norm is None else self.norm.name
        more = {"norm": norm, "residual": self.residual or None}
        return {"condition": self.condition, "scaling": self.scaling, **more}


class SoftEnergyGNN(ConvGNN):
    r"""An encoder, one or several :class:`SoftEnergyConv`, and a readout.

    .. math::
        x_i = \sigma(\text{encoder}(\text{features}_i)), \qquad
        g^{(s)}(x_i) = h^{(s-1)}_i
            + \mathrm{MLP}\bigl(\mathrm{norm}([x_i \,\|\, h^{(s-1)}_i])\bigr)

    The encoder and the layers read each node by itself, except that a layer couples neighbours. So
    a node that runs by itself encodes its own features once, and tells its neighbours the encoded
    ones. Anchors and edge biases of all layers read nothing else of the features.

    Args:
        in_channels: Width of the node features; −1: that of the first features. Parameters that
            depend on it are made at the first call, as in PyG.
        hidden_channels: Width k of the embeddings.
        out_channels: Width of the predictions.
        num_layers: Number of layers. Layers above the first read [x ‖ embeddings of the layer
            below].
        dropout: Probability of dropout in training: of features, and of hidden units of encoder,
            anchors and readout.
        norm: ``None``, ``"layer"`` or ``"batch"``: what normalises the input of every layer. The
            latter reads all nodes in training and is affine in evaluation, as in PyG.
        residual: Layers above the first correct the embeddings of the layer below, as above. With
            ``False`` their anchors are the MLPs alone.
        jk: What the readout reads of several layers, as in :class:`~hogwild.models.Stack`.
        pool: ``None`` predicts for every node; ``"mean"``, ``"sum"``, ``"max"`` or ``"attention"``
            for every graph.
        encoder: ``True``: one affine layer to width k with an activation; or the widths of several;
            or ``None``: layers read the features themselves.
        readout: Hidden widths of the readout, whose nodes are pooled at width k; (k,) by default.
            Or a :class:`~hogwild.Readout`.
        kwargs: Additional arguments of every layer.
    """

    layer = SoftEnergyConv

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 64,
        out_channels: int | None = None,
        num_layers: int = 1,
        dropout: float = 0.0,
        norm: str | None = None,
        residual: bool = True,
        jk: str | None = None,
        pool: str | None = None,
        encoder: bool | Sequence[int] | None = True,
        readout: Readout | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        cls = type(self)
        refuse_unknown(cls, kwargs, {*keywords(cls, ConvGNN), *keywords(self.layer, Conv)})
        k = require_positive("hidden_channels", hidden_channels)
        require_positive("num_layers", num_layers)
        widths = (k,) if encoder is True else require_widths("encoder", encoder or ())
        replicas, edge_dim = kwargs.get("replicas"), kwargs.get("edge_dim")
        require_all_positive(replicas=replicas, edge_dim=edge_dim)
        features = Features(in_channels, edge_dim, replicas, encoder=widths, dropout=dropout)
        options = {"hidden_channels": k, "norm": norm, "dropout": dropout, **kwargs}
        p = features.out_channels
        levels = [self.layer(p, **options)]
        options["residual"] = residual
        levels += [self.layer(p + k, **options) for _ in range(num_layers - 1)]
        conv = Stack(levels, jk=jk)
        if not isinstance(readout, Readout) and out_channels is not None:
            readout = Readout(
                conv.readout_channels, out_channels=out_channels, pool=pool, dropout=dropout,
                widths=(k,) if readout is None else require_widths("readout", readout),
                pooled=None if pool is None else k, replicas=replicas,
            )  # fmt: skip
            out_channels = pool = None
        super().__init__(
            conv if num_layers > 1 else levels[0], () if readout is None else readout,
            out_channels=out_channels, pool=pool, features=features,
        )  # fmt: skip
