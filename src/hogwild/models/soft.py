r"""Soft energies: a condition number that is chosen before training and holds everywhere.

.. math::
    H^* = \arg\min_H \sum_i \tfrac\beta2 \|h_i - g(x_i)\|^2
        + \mathbf 1^\top \psi\bigl(U h_i + b(x_i)\bigr) + \sum_{j \to i} w_{ij}\,
        \mathbf 1^\top \psi\bigl(s_{ij} W h_i + t_{ij} V h_j + c(x_i, x_j, e_{ij})\bigr),

with an *anchor* :math:`g`, an MLP, affine biases b and c, and in every channel a convex function
with :math:`0 \le \psi_a'' \le v_a` (:mod:`hogwild_node.soft`). Features reach the embedding
directly, and messages correct it. The energy is a sum over nodes and edges: two neighbours of a
node are not coupled. Node-local terms (U, b) and a weight of its own for every head of attention
are options.

**Condition number.** :math:`\beta \preceq \nabla^2 E \preceq \kappa \beta` at every point, for all
parameters, features and graphs. The curvatures are at most :math:`v_a \le (\kappa - 1) \beta / 4`
along edges without node-local terms. With node-local terms they are at most half of that, and at
most :math:`(\kappa - 1) \beta / 2` in the terms themselves. The proof needs
:math:`\|W\|, \|V\|, \|U\| \le 1`, which :func:`~hogwild_node.soft.bounded` grants, and in every
head :math:`\sum_{j \to i} w_{ij} s_{ij}^2 \le 1` and
:math:`\sum_{i \to j} w_{ji} t_{ji}^2 \le 1` at every node i, which
:func:`~hogwild_node.soft.scales` grants. ``docs/mathematics.md`` has the proofs, also of the reach
and of the start, which is graph signal denoising (:class:`~hogwild.models.GSDConv`, APPNP).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import (
    AsynchronyError,
    ConfigError,
    is_number,
    require_all_positive,
    require_integer,
    require_one_of,
    require_positive,
    require_widths,
)
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Conv, Exported, Kind, keywords, refuse_unknown
from hogwild.models.gnn import ConvGNN, Features
from hogwild.models.implicit import ImplicitConv, Solving, Stack
from hogwild.models.readout import Readout
from hogwild.nn import norm as norms
from hogwild.nn.networks import MLP
from hogwild.ops import gather
from hogwild.problems.soft import SoftProblem
from hogwild.solvers.loop import Solver
from hogwild.solvers.momentum import TripleMomentum
from hogwild_node.networks import ATTENTION_SLOPE, softmax
from hogwild_node.soft import AGGREGATIONS, Soft, bounded, knowing, scales

CONDITION = 41.0
"""The default condition number."""
CAP = 10.0
"""Scores of attention lie between -CAP and CAP, so that no edge fades altogether."""


def condition_of(reach: float) -> float:
    r"""The condition number at which an influence falls by a factor e within ``reach`` hops.

    An influence falls by :math:`(\sqrt\kappa - 1) / (\sqrt\kappa + 1)` a hop. This number is
    :math:`e^{-1/r}` for :math:`\kappa = \coth^2 \frac1{2r} \approx 4 r^2 + \frac23`.
    """
    return math.tanh(0.5 / reach) ** -2


class Slow(nn.Module):
    """A tensor that is learned at its own rate: ``start + rate * change``.

    Only ``change`` is a parameter. It is zero at first. An optimiser whose steps do not depend on
    the size of gradients (Adam) changes the tensor ``rate`` times as fast as other parameters, and
    weight decay pulls the tensor to its start. With ``rate=0`` there is no parameter.
    """

    start: Tensor

    def __init__(self, *shape: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("start", torch.zeros(shape))
        self.change = nn.Parameter(torch.zeros(shape)) if rate and self.start.numel() else None

    def forward(self) -> Tensor:
        return self.start if self.change is None else self.start + self.rate * self.change

    @torch.no_grad()
    def restart(self, start: Tensor) -> None:
        """Begin anew at ``start``."""
        self.start.copy_(start)
        if self.change is not None:
            self.change.zero_()


class SoftEnergyConv(ImplicitConv):
    r"""A layer whose embeddings minimise a soft energy (:mod:`hogwild.models.soft`).

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is
    :class:`~hogwild.solvers.TripleMomentum`.

    Args:
        condition: :math:`\kappa > 1`, the largest eigenvalue of the Hessian divided by the
            smallest, at most. It is 41 if neither ``condition`` nor ``reach`` is given.
        reach: Instead of ``condition``: the hops within which an influence falls by a factor e, at
            most (:func:`condition_of`): 3 hops need :math:`\kappa = 36.7`, and r hops about
            :math:`4 r^2`.
        width: Channels w of the coupling; ``None``: k.
        edge_dim: Width r of the edge features, or ``None``.
        aggr: How edges are scaled. ``"symmetric"`` is the scaling of GCN and APPNP, which favours
            signals that grow with :math:`\sqrt{d_i}`. With ``"mean"`` all nodes weigh the same, and
            a constant signal stays constant: averages and counts need that. ``"sum"`` (also
            ``"add"``) is ``"mean"`` with edges that are equally strong among all nodes of at most
            ``max_degree`` neighbours, so that the pull on a node grows with the number of its
            neighbours.
        max_degree: The number of neighbours (with edge weights: the sum of the weights) up to which
            ``aggr="sum"`` adds up. Edges at nodes with more neighbours are weaker. The larger
            ``max_degree`` is, the weaker are all edges.
        heads: ``None``, or a number of heads of attention. Each head has w / heads channels and its
            own weights of edges, learned from the features at both ends and on the edge. A fresh
            model weighs all neighbours alike.
        local_channels: A number o of convex terms of single nodes, which take half of
            :math:`\kappa - 1` from the edges. They have no effect in a fresh model.
        widths: Hidden widths of the anchor g; ``None``: (k,).
        rate: How fast everything but the anchor is learned relative to the rest of the model
            (:class:`Slow`). 0 holds it at its start.
        bias_rate: How fast the biases of edges from the features of nodes are learned relative to
            the rest of the coupling. Where few nodes have labels they overfit first.
        beta: Strong convexity :math:`\beta`. It changes the unit of the energy, not the answer.
        norm: ``None``, ``"layer"`` or ``"batch"``: the features are normalised first
            (:mod:`hogwild.nn.norm`).
        residual: The last k features, as they come, are added to the solution: the layer computes
            :math:`x_{p-k+1..p} + \arg\min_H E(H; \mathrm{norm}(x))`. So a layer of a stack corrects
            the embeddings of the layer below.
        dropout: Probability of dropout of hidden units of the anchor in training.

    Conventions:
        Each of several parallel edges counts, and a self-loop is an ordinary edge. Anchor and
        biases read :math:`1 / \sqrt{d_i}` beside the features, with one plus the weights of the
        edges into i for :math:`d_i`. An isolated node without node-local terms has its anchor. Edge
        weights are differentiable; an edge of weight zero is no edge, for attention, too.
    """

    kind = Kind.OPTIMISATION
    hops = 1
    takes_edge_attr = True

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 64,
        condition: float | None = None,
        reach: float | None = None,
        width: int | None = None,
        edge_dim: int | None = None,
        aggr: str = "symmetric",
        max_degree: float | None = None,
        heads: int | None = None,
        local_channels: int = 0,
        widths: Sequence[int] | None = None,
        rate: float = 1.0,
        bias_rate: float = 0.2,
        beta: float = 1.0,
        norm: str | None = None,
        residual: bool = False,
        dropout: float = 0.0,
        **kwargs: Unpack[Solving],
    ) -> None:
        # The condition number is known and moderate: single precision is enough.
        kwargs.setdefault("solve_dtype", None)
        super().__init__(in_channels, hidden_channels, **kwargs)
        self.condition = _condition(condition, reach)
        if not is_number(beta) or not 0 < beta < math.inf:
            raise ConfigError(f"beta={beta!r}; expected a positive number (strong convexity)")
        for name, one in (("rate", rate), ("bias_rate", bias_rate)):
            if not is_number(one) or not 0 <= one < math.inf:
                raise ConfigError(f"{name}={one!r}; expected a number from 0 on (0 learns nothing)")
        aggr = "sum" if aggr == "add" else aggr
        require_one_of(AGGREGATIONS, aggr=aggr)
        if (aggr == "sum") != (is_number(max_degree) and 0 <= max_degree < math.inf):
            raise ConfigError(
                f"aggr={aggr!r} with max_degree={max_degree!r}; expected a number of neighbours "
                f"with aggr='sum', and max_degree=None with other scalings"
            )
        require_all_positive(width=width, edge_dim=edge_dim, heads=heads)
        o = self.local_channels = require_integer("local_channels", local_channels, least=0)
        self.aggr, self.max_degree, self.heads = aggr, max_degree, heads
        self.rate, self.bias_rate, self.beta = float(rate), float(bias_rate), float(beta)
        k = self.hidden_channels
        self.edge_dim, self.width = edge_dim, k if width is None else width
        if self.width < k:
            raise ConfigError(f"width={width!r}; expected at least hidden_channels={k}")
        if self.width % (heads or 1):
            raise ConfigError(
                f"heads={heads!r} do not divide the {self.width} channels of the coupling; "
                f"expected a divisor of {self.width}, or another width=..."
            )
        widths = (k,) if widths is None else require_widths("widths", widths)
        lead, w, p = () if self.replicas is None else (self.replicas,), self.width, in_channels + 1
        if residual and in_channels < k:
            raise ConfigError(
                f"residual=True was given with in_channels={in_channels} and hidden_channels={k}; "
                f"expected at least hidden_channels features, the last of which are added"
            )
        self.norm, self.residual = norms.norm(norm, in_channels, replicas=self.replicas), residual
        both = 2 * p + (edge_dim or 0)
        shapes = {
            "receiver": (w, k), "sender": (w, k), "slopes": (w, 2), "bias": (w, 2 * p),
            "edge_bias": (w, edge_dim or 0),
            "inner": (o, k), "inner_slopes": (o, 2), "inner_bias": (o, p),
        }  # fmt: skip
        if heads is not None:
            shapes |= {"score": (w, both), "score_out": (w, 1)}
        self.encoder = MLP(p, (*widths, k), replicas=self.replicas, dropout=dropout)
        self.coupling = nn.ModuleDict(
            {
                name: Slow(*lead, *shape, rate=self.rate * (bias_rate if name == "bias" else 1.0))
                for name, shape in shapes.items()
            }
        )
        self._draw()

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.encoder.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()
        self._draw()

    def _draw(self) -> None:
        """Start at graph signal denoising: V = -W, W with orthonormal columns, U = 0, no biases of
        edges, equal slopes, equal scores. Factors of what is zero are random, so that it learns."""
        parts: dict[str, Any] = dict(self.coupling.items())
        starts = {name: torch.zeros_like(part.start) for name, part in parts.items()}
        for matrix in starts["receiver"].view(-1, self.width, self.hidden_channels):
            nn.init.orthogonal_(matrix)
        starts["sender"] = -starts["receiver"]
        for name, start in starts.items():
            if name in ("inner_bias", "score"):
                start.normal_(0.0, 1.0 / math.sqrt(start.size(-1)))
            parts[name].restart(start)

    def default_solver(self) -> Solver:
        return TripleMomentum()

    def problem(self, inputs: Inputs) -> SoftProblem:
        """The energy of these inputs, attached to the autograd graph."""
        graph, x, heard, attr, weight = self.fields(inputs)
        below = x[:, -self.hidden_channels :]
        below_heard = None if heard is None else heard[:, -self.hidden_channels :]
        if self.norm is not None:
            x, heard = self.norm(x), None if heard is None else self.norm(heard)
        weight = x.new_ones(graph.num_edges) if weight is None else weight
        degree = 1.0 + graph.received(weight)
        known = knowing(x, degree)
        near = known if heard is None else knowing(heard, degree[graph.src])
        weight = weight[None, None]
        if self.heads is not None:
            graph.require_whole(f"attention (heads={self.heads})")
            weight = self._attended(graph, weight, known, near, attr)
        here, there = (
            1.0 + total(weight).expand(*weight.shape[:2], -1)
            for total in (graph.received, graph.sent)
        )
        here, there = here[..., graph.dst], there[..., graph.src]
        parts = self.terms(x.dtype)
        bias = _pairs(graph, parts.pop("bias"), known, near, attr)
        local = Soft(
            self.encode(self.encoder, known), bias,
            *scales(self.aggr, here, there, self.max_degree), weight,
            offset=parts.pop("inner_bias") @ known, beta=self.beta, **parts,
        )  # fmt: skip
        found = SoftProblem(graph, local, self.condition)
        if self.residual:
            r = self.replicas or 1
            below = below.expand(r, -1, -1)
            if below_heard is None:
                move = found.arguments(below)
            else:
                heard = below_heard.expand(r, -1, -1)
                move = local.arguments(below, heard, graph.everyone) - local.bias
            found = SoftProblem(graph, local.around(below, move), self.condition)
        return found

    def terms(self, dtype: torch.dtype) -> dict[str, Any]:
        """What the energy has beside features and graph, [R, …, …]: the matrices, the curvatures,
        and the weights of the biases."""
        most, share = (self.condition - 1.0) * self.beta, 0.5 if self.local_channels else 1.0
        slopes = 0.25 * share * most * self._value("slopes", dtype).sigmoid()
        inner_slopes = (1.0 - share) * most * self._value("inner_slopes", dtype).sigmoid()
        ends = torch.stack([self._value(n, dtype) for n in ("receiver", "sender")])
        receiver, sender = bounded(ends)  # one factorisation for both
        inner = self._value("inner", dtype)
        return {
            "receiver": receiver, "sender": sender,
            "inner": bounded(inner) if inner.numel() else inner,
            "low": slopes[..., :1], "high": slopes[..., 1:],
            "inner_low": inner_slopes[..., :1], "inner_high": inner_slopes[..., 1:],
            "bias": torch.cat([self._value(n, dtype) for n in ("bias", "edge_bias")], -1),
            "inner_bias": self._value("inner_bias", dtype),
        }  # fmt: skip

    def _attended(
        self, graph: Graph, weight: Tensor, own: Tensor, near: Tensor, attr: Tensor | None
    ) -> Tensor:
        """The weights of the edges for every head, [1, 1, E] -> [R, H, E]."""
        score, out = (self._value(name, weight.dtype) for name in ("score", "score_out"))
        hidden = F.leaky_relu(_pairs(graph, score, own, near, attr), ATTENTION_SLOPE)
        logits = (out * hidden).unflatten(1, (self.heads, -1)).sum(2)
        shares = softmax(CAP * (logits / CAP).tanh(), graph.everyone, weight)
        total: Tensor = gather(graph.received(weight), graph.dst)
        return shares * total

    def _value(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor of the coupling with a replica dimension, in the precision of the solve."""
        part: Any = self.coupling[name]
        found: Tensor = part().to(dtype)
        return found if self.replicas is not None else found.unsqueeze(0)

    def exported(self) -> Exported:
        if self.heads is not None:
            raise AsynchronyError(
                f"heads={self.heads}: the scale of an edge depends on the attention of the "
                f"sender's neighbours, and a node hears the features of its own neighbours only; "
                f"expected heads=None"
            )
        options = ("aggr", "max_degree", "beta", "residual", "condition")
        config = {"kind": "soft"} | {name: getattr(self, name) for name in options}
        terms, single = self.terms(torch.float64), self.replicas is None
        return config, {f"conv.{name}": t[0] if single else t for name, t in terms.items()}

    def require_level(self) -> None:
        if self.heads is not None:
            raise AsynchronyError(
                f"heads={self.heads}: the attention of a layer above the first changes with the "
                f"embeddings below, and the scale of an edge depends on the attention of all "
                f"neighbours of its sender, which a node does not hear; expected heads=None, or "
                f"one layer"
            )


def _pairs(graph: Graph, weight: Tensor, own: Tensor, near: Tensor, attr: Tensor | None) -> Tensor:
    """:func:`hogwild_node.soft.biases` of a whole graph, [R, w, E], in memory row by row: products
    of nodes are gathered, where ``near`` is what all nodes know (``own``)."""
    mine, theirs, rest = weight.mT.tensor_split((own.size(1), 2 * own.size(1)), 1)
    found = (own.mT @ mine).index_select(1, graph.dst)
    heard = near.mT @ theirs
    found = found + (heard.index_select(1, graph.src) if near is own else heard)
    return (found if attr is None else found + attr.mT @ rest).mT


def _condition(condition: float | None, reach: float | None) -> float:
    """The condition number from the one of the two that was given."""
    if condition is not None and reach is not None:
        raise ConfigError(
            f"condition={condition!r} and reach={reach!r} were given; expected one of them, "
            f"because a reach is a condition number (hogwild.models.soft.condition_of)"
        )
    if reach is not None:
        if not is_number(reach) or not 0.1 <= reach < math.inf:
            raise ConfigError(f"reach={reach!r}; expected a number of hops, at least 0.1")
        return condition_of(reach)
    if condition is None:
        return CONDITION
    if not is_number(condition) or not 1.0 < condition < math.inf:
        raise ConfigError(f"condition={condition!r}; expected a number above 1")
    return float(condition)


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
        levels = [self.layer(p, **options, residual=residual and p == k)]
        options["residual"] = residual
        levels += [self.layer(p + k, **options) for _ in range(num_layers - 1)]
        conv = Stack(levels, jk=jk)
        if not isinstance(readout, Readout) and out_channels is not None:
            readout = Readout(
                conv.hidden_channels, out_channels=out_channels, pool=pool, dropout=dropout,
                norm=norm, widths=(k,) if readout is None else require_widths("readout", readout),
                pooled=None if pool is None else k, replicas=replicas,
            )  # fmt: skip
            out_channels = pool = None
        super().__init__(
            conv if num_layers > 1 else levels[0], () if readout is None else readout,
            out_channels=out_channels, pool=pool, features=features,
        )  # fmt: skip
