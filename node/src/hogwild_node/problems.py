r"""What nodes compute: local energies, the map of a contraction, the layers of a GCN.

*The energy GNN* and *graph signal denoising*:

.. math::
    e^i(h_i, h_{N(i)}) = u(m_i, h_i, x_i) + \tfrac\beta2 \|h_i\|^2, \qquad
    m_i = \sum_{j \in N(i)} \omega_{ij}\, m(h_i, h_j, x_i, x_j, e_{ij})
        + \omega_{ii}\, m_\circ(h_i, x_i); \\
    e^i = \gamma \|h_i - g(x_i)\|^2 + \frac\beta2 \sum_{j \in N(i)} w_{ij}
        \Bigl\| \frac{h_i}{\sqrt{d_i}} - \frac{h_j}{\sqrt{d_j}} \Bigr\|^2.

*The contraction* of IGNN and EIGNN, and *the layers* of a GCN:

.. math::
    F(H)_i = \phi\Bigl(W \sum_j \tilde A_{ij} h_j + b_i\Bigr), \qquad
    h_i^{\ell + 1} = \phi^\ell\Bigl(W^\ell \sum_{j \in N(i) \cup \{i\}}
        \tilde A_{ij}\, h_j^\ell + b^\ell\Bigr).

The degrees :math:`d` and the weights :math:`\tilde A_{ij}` are those of the *whole* graph. A node
knows its own and those of its edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from hogwild_node.local import LocalEnergy, LocalMap, LocalQuadratic
from hogwild_node.ops import Array, namespace
from hogwild_node.round import Round, RoundTape
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, OnGraph, over


@dataclass(frozen=True)
class Energy(LocalEnergy):
    """Local energies of one round of messages."""

    round: Round
    beta: float = over(FIXED)

    def pass_at(self, h: Array, inbox: Array | None, at: Star) -> RoundTape:
        """Evaluate the networks at ``h`` [R, k, A] and the inbox [R, k, E']."""
        return self.round.at(at).forward(h, inbox, at)

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        back = self.pass_at(h, inbox, at).pullback()
        return back.own + self.beta * h, back.toward

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        tape = self.pass_at(h, inbox, at)
        return self._model(tape.majorised(majorise) if majorise else tape, h)

    def bounding(
        self, h: Array, inbox: Array, at: Star, far: tuple[Array, Array]
    ) -> LocalQuadratic:
        return self._model(self.pass_at(h, inbox, at).as_far_as(self.pass_at(*far, at)), h)

    def secant(self, h: Array, inbox: Array, at: Star, reach: float) -> LocalQuadratic:
        reaches = namespace(h).filled((h.shape[0], 1, at.size), reach, h)
        return self._model(self.pass_at(h, inbox, at).reaching(reaches), h)

    def variation(
        self, h: Array, inbox: Array, at: Star, reach: tuple[Array, Array]
    ) -> tuple[LocalQuadratic, LocalQuadratic]:
        upper, lower = self.pass_at(h, inbox, at).ranged(*reach)
        return self._curved(upper), self._curved(lower)

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        return self._curved(self.round.at(at).bound(at)).row_sums()

    def _curved(self, tape: RoundTape) -> LocalQuadratic:
        """The model of a pass without the gradient of the β term."""
        back = tape.pullback()
        return tape.linearise(back).quadratic(back.own, back.toward, self.beta)

    def _model(self, tape: RoundTape, h: Array) -> LocalQuadratic:
        back = tape.pullback()
        return tape.linearise(back).quadratic(back.own + self.beta * h, back.toward, self.beta)


@dataclass(frozen=True)
class GSD(LocalEnergy):
    """Local energies of graph signal denoising."""

    target: Array = over(NODES)  # [R, k, N] g(x)
    root: Array = over(NODES)  # [N] 1/√d of the node
    sender_root: Array = over(EDGES)  # [E] 1/√d of each edge's sender
    weight: Array = over(EDGES)  # [E] w
    gamma: float = over(FIXED)
    beta: float = over(FIXED)
    dominated = True  # with v = √d
    pairwise = True

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        here = self.at(at)
        pull = self.beta * here.weight
        slope = pull * (at.spread(here.root * h) - here.sender_root * inbox)
        own = 2.0 * self.gamma * (h - here.target) + here.root * at.collect(slope)
        return own, -here.sender_root * slope

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        """The energies themselves, which are quadratic."""
        own, toward = self.local(h, inbox, at)
        xp, here = namespace(h), self.at(at)
        r, k = h.shape[:2]
        pull, there = self.beta * here.weight, here.sender_root
        eye = xp.broadcast_to(xp.identity(k, h)[:, :, None], (r, k, k, 1))
        b = 2.0 * self.gamma + here.root**2 * at.collect(pull)
        x = -pull * here.root[at.slot] * there
        uncoupled = xp.filled((r, 0, k, at.degree), 0.0, h), xp.filled((r, 0, 0, at.size), 0.0, h)
        return LocalQuadratic(
            own, toward, eye * b, eye * x, eye * (pull * there**2), *uncoupled, at
        )

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        xp, here = namespace(self.target), self.at(at)
        anywhere = xp.zeros_like(here.target)
        inbox = xp.filled((*anywhere.shape[:2], at.degree), 0.0, anywhere)
        return self.quadratic(anywhere, inbox, at).row_sums()


@dataclass(frozen=True)
class Contraction(LocalMap):
    """The contraction as a map on nodes."""

    weight: Array = over(SHARED)  # [R, k, k] W
    bias: Array = over(NODES)  # [R, k, N] b
    edge: Array = over(EDGES)  # [E] Ã of each edge
    loop: Array | None = over(NODES)  # [N] Ã of each node with itself; None: zero
    act: Callable[[Array], Array] = over(FIXED)  # φ

    def update(self, h: Array, inbox: Array, at: Star) -> Array:
        here = self.at(at)
        heard = at.collect(inbox * here.edge)
        heard = heard if here.loop is None else heard + here.loop * h
        return self.act(namespace(h).affine(here.bias, self.weight, heard))


class LocalLayers(ABC):
    r"""Layers that a node can compute from what it heard.

    A node i holds a *state* :math:`s_i`. For every layer ℓ it has a *value* :math:`v_i^\ell`, which
    its neighbours read; in a GCN both are the embedding :math:`h_i^\ell`:

    .. math::
        v_i^\ell = \nu^\ell_i(s_i), \qquad
        s_i \leftarrow f^\ell_i\bigl(s_i, \{v_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
        \qquad \ell = 0, \dots, L - 1.

    Attributes:
        widths: Widths of the values of layers 0, …, L: L + 1 numbers.
    """

    widths: tuple[int, ...]

    @abstractmethod
    def initial(self, at: Star) -> Array:
        """The states of these nodes before the first layer, [R, channels, A]."""

    @abstractmethod
    def value(self, layer: int, h: Array, at: Star) -> Array:
        """The values [R, widths[layer], A] of nodes in the states ``h`` [R, channels, A].

        ``layer`` may be L.
        """

    @abstractmethod
    def update(self, layer: int, h: Array, inbox: Array, at: Star) -> Array:
        """The states of some nodes after a layer.

        Args:
            layer: ℓ = 0, …, L − 1.
            h: The nodes' states, [R, channels, A].
            inbox: The neighbours' values as last heard on each edge, [R, widths[ℓ], E']. Entries of
                self-loops are ignored, because a node reads its own value.
            at: The nodes and edges.

        Returns:
            The nodes' new states, [R, channels, A].
        """

    def recompute(self, inbox: Array, at: Star) -> tuple[Array, Array]:
        """Compute all layers of some nodes at once.

        Args:
            inbox: The neighbours' values of layers 0, …, L − 1 as last heard, stacked,
                [R, sum(widths[:-1]), E'].
            at: The nodes and edges.

        Returns:
            The nodes' states [R, channels, A], and their own values of the same layers,
            [R, sum(widths[:-1]), A].
        """
        h, values, row = self.initial(at), [], 0
        for layer, width in enumerate(self.widths[:-1]):
            values.append(self.value(layer, h, at))
            h = self.update(layer, h, inbox[:, row : row + width], at)
            row += width
        return h, namespace(h).concat(values, axis=1)


@dataclass(frozen=True)
class GCNLayer:
    """The parameters of one layer."""

    weight: Array = over(SHARED)  # [R, k, k] W
    bias: Array = over(SHARED)  # [R, k, 1] b
    act: Callable[[Array], Array] = over(FIXED)  # φ


@dataclass(frozen=True)
class GCN(OnGraph, LocalLayers):
    """The layers of a GCN, all of width k."""

    encoded: Array = over(NODES)  # [R, k, N] h⁰
    layers: tuple[GCNLayer, ...] = over(SHARED)
    edge: Array = over(EDGES)  # [E] Ã of each edge
    loop: Array | None = over(NODES)  # [N] Ã of each node with itself; None: zero
    widths: tuple[int, ...] = over(FIXED)  # k, L + 1 times

    def initial(self, at: Star) -> Array:
        return self.at(at).encoded

    def value(self, layer: int, h: Array, at: Star) -> Array:
        return h

    def update(self, layer: int, h: Array, inbox: Array, at: Star) -> Array:
        here, one = self.at(at), self.layers[layer]
        heard = at.collect(at.own_view(h, inbox) * here.edge)
        heard = heard if here.loop is None else heard + here.loop * h
        return one.act(namespace(h).affine(one.bias, one.weight, heard))
