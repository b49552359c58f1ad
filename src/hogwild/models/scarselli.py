r"""The original graph neural network: a fixed point of general networks, which a penalty makes
contract.

`The Graph Neural Network Model <https://doi.org/10.1109/TNN.2008.2005605>`_ (Scarselli, Gori,
Tsoi, Hagenbuchner & Monfardini, 2009), in its nonlinear form:

.. math::
    m_i = \sum_{j \in N(i)} w_{ij}\, m(h_i, h_j, x_i, x_j, e_{ij}), \qquad
    h_i = u(m_i, h_i, x_i),

with MLPs m and u. Both use tanh, and u also applies tanh after its last layer. The map takes the
cube :math:`[-1, 1]^{Nk}` into itself, so that *some* fixed point exists for all parameters
(Brouwer). Nothing guarantees that the fixed point is unique or that iterations find it. The
training loss therefore gets a penalty on the columns of the Jacobian at the solution,

.. math::
    p = \sum_{c} \bigl( \|J_{:,c}\|_1 - \mu \bigr)_+^2, \qquad
    J = \frac{\partial F}{\partial h}(h^*), \quad 0 < \mu < 1,

which vanishes exactly where :math:`\|J\|_1 \le \mu`. Since :math:`\rho(|J|) \le \|J\|_1`, the
linearised map then contracts in a weighted maximum norm over the nodes, and asynchronous updates
that start near the fixed point converge to it. (A contraction in the 2-norm is not enough.) The
penalty only encourages this property, and only at one point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from hogwild.errors import ConfigError, require_all_positive, require_widths
from hogwild.graph import Graph, Star, cached
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Kind
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.nn.networks import MLP
from hogwild.ops import distinct, gather, scatter
from hogwild.problems.base import FixedPoint
from hogwild_node.local import LocalMap
from hogwild_node.networks import Slot, read
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, OnGraph, over

DEGREE = 10
"""Number of neighbours for which fresh parameters are scaled."""
OWN, HEARD = 0.3, 0.6
"""Typical slopes of the fresh map in the maximum norm if no unit saturates: ``OWN`` in a node's own
embedding through u, ``HEARD`` in all embeddings through the messages of ``DEGREE`` neighbours.
Their sum is below one, so that a fresh map contracts; ``tests/models/test_scarselli.py`` checks it.
How the sum is shared between the two is a choice that no benchmark has tested."""


@dataclass
class TanhMap(OnGraph):
    r"""A :class:`TanhMLP` as a function of some inputs y, with its other inputs fixed.

    .. math:: z_1 = \tanh(W_1^{(y)} y + c), \qquad z_{\ell+1} = \tanh(W_\ell z_\ell + b_\ell).

    The last layer applies tanh only with ``squash``.
    """

    given: Tensor  # [R, w, n] c, the bias and the fixed inputs in the first layer
    first: Tensor = over(SHARED)  # [R, w, c] the columns of W₁ that read y
    rest: list[tuple[Tensor, Tensor]] = over(SHARED)  # [R, b, a], [R, b, 1] of the later layers
    squash: bool = over(FIXED)

    def __call__(self, y: Tensor, given: Tensor | None = None) -> Tensor:
        """[R, c, n] -> [R, out, n]; ``given`` replaces ``self.given`` for some of the n."""
        a = torch.matmul(self.first, y) + (self.given if given is None else given)
        for weight, bias in self.rest:
            a = torch.matmul(weight, torch.tanh(a)) + bias
        return torch.tanh(a) if self.squash else a


class TanhMLP(MLP):
    r"""Fully connected layers with tanh between them: smooth and, with ``squash``, bounded.

    ``in_channels``, ``channels`` and ``replicas`` are as in :class:`~hogwild.nn.MLP`.

    Args:
        squash: Whether tanh also follows the last layer.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        squash: bool = False,
        replicas: int | None = None,
    ) -> None:
        super().__init__(in_channels, channels, replicas=replicas)
        self.squash = squash

    @property
    def gain(self) -> float:
        """One, because tanh roughly preserves the variance."""
        return 1.0

    def forward(self, slots: Sequence[Slot]) -> TanhMap:  # type: ignore[override]
        """The network as a function of its *first* inputs; its last inputs are these features."""
        dtype = slots[0].features.dtype
        weights, biases = (
            [(p if self.replicas is not None else p.unsqueeze(0)).to(dtype) for p in parameters]
            for parameters in (self.weight, self.bias)
        )
        at = self.channels[0] - sum(slot.features.size(-2) for slot in slots)
        fixed = biases[0].unsqueeze(-1) + read(weights[0][..., at:], slots)
        rest = [(w, b.unsqueeze(-1)) for w, b in zip(weights[1:], biases[1:], strict=True)]
        return TanhMap(fixed, weights[0][..., :at], rest, self.squash)

    def product(self, fn: Callable[[Tensor], Tensor]) -> Tensor:
        r""":math:`f(W_L) \cdots f(W_1)`, [(R,) out, in]. If f is the identity, this is the Jacobian
        where no unit saturates. If f is the square, it is the mean square of the Jacobian's entries
        over random signs of the weights."""
        out = fn(self.weight[0])
        for weight in list(self.weight)[1:]:
            out = fn(weight) @ out
        return out


@cached
def _pairs(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct (receiver, sender) pairs. Returns the index of the pair of every node with
    itself, then of every edge, [N + E], and the two ends of every pair, [M] each."""
    nodes = torch.arange(graph.num_nodes, device=graph.src.device)
    rows, cols = torch.cat([nodes, graph.dst]), torch.cat([nodes, graph.src])
    return distinct(rows, cols, graph.num_nodes)


@dataclass
class ScarselliProblem(FixedPoint, LocalMap):
    """Find the fixed point of the two networks on every graph and replica."""

    graph: Graph = over(FIXED)
    message: TanhMap = over(EDGES)  # of (h_i, h_j)
    transition: TanhMap = over(NODES)  # of (m_i, h_i)
    weight: Tensor | None = over(EDGES)  # [E]

    @property
    def replicas(self) -> int:
        return self.message.first.size(0)

    @property
    def channels(self) -> int:
        return self.message.first.size(-1) // 2

    def update(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        ends = torch.cat([gather(h, at.slot), inbox], 1)
        sent = self.message(ends, at.at_edges(self.message.given))
        if self.weight is not None:
            sent = at.at_edges(self.weight) * sent
        heard = torch.cat([at.collect(sent), h], 1)
        return self.transition(heard, at.at_nodes(self.transition.given))

    def jacobian(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The Jacobian at h [R, k, N], differentiable in h, features and parameters: blocks
        [R, k, k, M] of the distinct (receiver, sender) pairs, with receivers as rows, and the two
        ends of every pair [M]. Parallel edges share a block, and a self-loop is part of the block
        of its node."""
        graph, recorded = self.graph, torch.is_grad_enabled()
        with torch.enable_grad():
            h = h if h.requires_grad else h.detach().requires_grad_()
            own, heard = h.clone(), gather(h, graph.src)
            out = self.update(own, heard, graph.everyone)
            rows = [
                torch.autograd.grad(c.sum(), (own, heard), retain_graph=True, create_graph=recorded)
                for c in out.unbind(1)
            ]
        number, receivers, senders = _pairs(graph)
        both = torch.stack([torch.cat(row, -1) for row in rows], 1)  # [R, k, k, N + E]
        return scatter(both, number, receivers.numel()), receivers, senders

    def columns(self, h: Tensor) -> Tensor:
        """Sums of the absolute values of every column of the Jacobian at h, [R, k, N]."""
        blocks, _, cols = self.jacobian(h)
        found: Tensor = scatter(blocks.abs().sum(1), cols, self.graph.num_nodes)
        return found

    def penalty(self, h: Tensor, target: float) -> Tensor:
        r""":math:`\sum_c (\|J_{:,c}\|_1 - \mu)_+^2` at h, [R, G]; differentiable."""
        excess = (self.columns(h) - target).clamp_min(0.0)
        return self.graph.dot(excess, excess)


class ScarselliConv(ImplicitConv):
    r"""A layer whose embeddings are a fixed point of general networks
    (:mod:`hogwild.models.scarselli` has the equations).

    Only a penalty in the loss makes this map contract::

        found = model.embed(data)
        loss = criterion(model.readout(found.value), data.y)
        loss = loss + 0.1 * model.penalty(found.value, data).sum()

    With fresh parameters the map usually contracts on graphs of degree up to ten. During training
    the solve may fail (see ``on_failure``), find one of several fixed points, or find a fixed point
    that asynchronous updates leave. The paper therefore does not count
    this model among the true fixed-point GNNs.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is Anderson acceleration, which often
    converges even if the map does not contract.

    Args:
        message_channels: Width of a message.
        edge_dim: Width r of the edge features, or ``None``.
        widths: Hidden widths of both networks.

    Conventions:
        A self-loop in ``edge_index`` is an ordinary message from a node to itself. Each of several
        parallel edges counts. An isolated node has :math:`m_i = 0`. Messages travel along the edges
        only, so directed graphs need no reverse links.
    """

    kind = Kind.FIXED_POINT
    hops = 1
    takes_edge_attr = True

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        message_channels: int = 2,
        edge_dim: int | None = None,
        widths: Sequence[int] = (4, 4),
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        require_all_positive(message_channels=message_channels, edge_dim=edge_dim)
        widths = require_widths("widths", widths)
        self.message_channels, self.edge_dim = message_channels, edge_dim
        k, p, c = hidden_channels, in_channels, message_channels
        ends = 2 * k + 2 * p + (edge_dim or 0)
        self.message_net = TanhMLP(ends, (*widths, c), replicas=self.replicas)
        self.update_net = TanhMLP(c + k + p, (*widths, k), squash=True, replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters such that the map usually contracts on graphs of degree up to
        ``DEGREE``, by about OWN + HEARD at most.

        Products of absolute weights would bound the slopes everywhere. These bounds are so loose
        that neighbours would hardly influence each other.
        """
        self.message_net.reset_parameters()
        self.update_net.reset_parameters()
        k, c = self.hidden_channels, self.message_channels
        first = self.update_net.weight[0]
        first[..., :c].mul_(DEGREE**-0.5)  # a sum of messages must not saturate u

        def slopes(fn: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            update, message = self.update_net.product(fn), self.message_net.product(fn)
            return update[..., c : c + k], update[..., :c] @ message[..., : 2 * k]

        # The larger of two estimates: the actual product of the weights, and its root mean square
        # over random signs. A product that is small by chance is not scaled up.
        pairs = zip(slopes(torch.positive), slopes(torch.square), strict=True)
        sizes = [
            torch.maximum(a.abs(), b.sqrt()).sum(-1).amax(-1)[..., None, None] for a, b in pairs
        ]
        first[..., c : c + k].mul_(OWN / sizes[0])
        self.message_net.weight[0][..., : 2 * k].mul_(HEARD / (DEGREE * sizes[1]))

    def problem(self, inputs: Inputs) -> ScarselliProblem:
        """The fixed point of these inputs, attached to the autograd graph."""
        graph, x, heard, edge_attr, weight = self.fields(inputs)
        sender = Slot(x, graph.src) if heard is None else Slot(heard)
        slots = [Slot(x, graph.dst), sender, *([] if edge_attr is None else [Slot(edge_attr)])]
        message, update = self.message_net(slots), self.update_net([Slot(x)])
        return ScarselliProblem(graph, message, update, weight)

    def penalty(self, h: Tensor, inputs: Inputs, *, target: float = 0.9) -> Tensor:
        r"""Scarselli's penalty :math:`\sum_c (\|J_{:,c}\|_1 - \mu)_+^2` at embeddings h, for every
        graph: [G] or [R, G].

        The penalty is differentiable in the parameters and, where h is attached to the autograd
        graph (as :meth:`embed` returns it), through the solution.

        Args:
            h: The solution, [N, k] or [R, N, k].
            inputs: The inputs that h belongs to; a PyG ``Data`` or ``Batch`` works, too.
            target: The column sum :math:`\mu < 1` above which a column is penalised.
        """
        if not 0 <= target < 1:
            raise ConfigError(f"target={target!r}; expected a number from 0 to below 1")
        found = self.measured(h, inputs, lambda problem, h: problem.penalty(h, target))
        return found.to(self.accept(inputs).x.dtype)


class ScarselliGNN(ImplicitGNN):
    """The original graph neural network: :class:`ScarselliConv` and the paper's readout. The
    arguments are those of :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`ScarselliConv`."""

    layer = ScarselliConv

    def penalty(self, h: Tensor, inputs: Inputs, *, target: float = 0.9) -> Tensor:
        """The penalty of every graph: :meth:`ScarselliConv.penalty`."""
        found: Tensor = self._only("map").penalty(h, self.encoded(inputs), target=target)
        return found
