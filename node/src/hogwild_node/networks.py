r"""The parts of a model that read features: MLPs, the feature path of PICNNs, attention.

Whole graphs and single nodes share these functions: the modules of ``hogwild.nn`` hold parameters
and call them with tensors, a robot calls them with NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hogwild_node.activations import Activation
from hogwild_node.ops import Array, namespace
from hogwild_node.picnn import Context, Layer
from hogwild_node.star import Star
from hogwild_node.tree import FIXED, over

FEATURE_SLOPE = 0.1
"""Negative slope of the leaky ReLU in MLPs and on the feature path of a PICNN: no unit can die."""
NORM_EPSILON = 1e-5
r""":math:`\varepsilon` of norms, as in torch."""
ATTENTION_SLOPE = 0.2
"""Negative slope of the leaky ReLU in attention, as in the paper."""


def mlp(
    x: Array,
    weights: Sequence[Array],
    biases: Sequence[Array],
    slope: float = FEATURE_SLOPE,
    drop: Callable[[Array], Array] | None = None,
) -> Array:
    """Affine layers with leaky ReLUs between them, and dropout where it is given:
    [..., n, in] → [..., n, out]."""
    xp, last = namespace(x), len(weights) - 1
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = xp.linear(x, weight, bias)
        x = x if i == last else xp.leaky_relu(x, slope)
        x = x if i == last or drop is None else drop(x)
    return x


def normalised(
    x: Array, weight: Array, bias: Array, mean: Array | None = None, variance: Array | None = None
) -> Array:
    r""":math:`w_c (x_c - m_c) / \sqrt{v_c + \varepsilon} + b_c` for every channel c, where m and v
    are the mean and the variance over the channels of the same node, unless they are given.

    Args:
        x: [1 or R, p, n].
        weight: w, [R or 1, p, 1], and likewise the others.
    """
    if mean is None or variance is None:
        mean = x.mean(1, keepdims=True)
        variance = ((x - mean) ** 2).mean(1, keepdims=True)
    return weight * (x - mean) / namespace(x).sqrt(variance + NORM_EPSILON) + bias


@dataclass(frozen=True)
class Slot:
    """Features [1 or R, p, N] that are read at ``rows`` [n]; ``None``: at all N."""

    features: Array
    rows: Array | None = None


@dataclass(frozen=True)
class PICNNParameters:
    r"""The parameters of a PICNN :math:`f(x, y)`, B sets of them side by side.

    Every layer stacks one affine map of the feature path :math:`u_\ell`: the next
    :math:`u_{\ell+1}`, the gates of z, the gates of y and the bias,
    :math:`[\tilde W; W^{(zu)}; W^{(yu)}; W^{(u)}]`.

    Attributes:
        feature_weight: Of each layer, [B, rows, width of u].
        feature_bias: Of each layer, [B, rows].
        wy: Of each layer, [B, width, d].
        wz: Of each layer but the first, [B, width, width before].
        monotone: In which of the d convex inputs the network is nondecreasing.
        act: The activation.
        gate: The positive part of gates, ``"softplus"`` or ``"relu"``.
    """

    feature_weight: Sequence[Array]
    feature_bias: Sequence[Array]
    wy: Sequence[Array]
    wz: Sequence[Array]
    monotone: tuple[bool, ...] = over(FIXED)
    act: Activation = over(FIXED)
    gate: str = over(FIXED, "softplus")

    def context(self, slots: Sequence[Slot]) -> Context:
        """The network with its features filled in: what no iteration of a solve changes."""
        xp = namespace(self.wy[0])
        some, every, d = any(self.monotone), all(self.monotone), len(self.monotone)
        mask = xp.positions(tuple(map(int, self.monotone)), self.wy[0]) > 0

        def positive(x: Array) -> Array:
            return xp.softplus(x) if self.gate == "softplus" else xp.clip(x, 0.0, None)

        layers: list[Layer] = []
        u: Array | None = None
        last = len(self.wy) - 1
        for i, (weight, bias) in enumerate(
            zip(self.feature_weight, self.feature_bias, strict=True)
        ):
            width, before = self.wy[i].shape[-2], self.wy[i - 1].shape[-2] if i else 0
            bias = bias[..., None]
            out = read(weight, slots) + bias if u is None else xp.affine(bias, weight, u)
            ahead = width if i < last else 0
            gates = out[:, ahead : ahead + before]
            at = ahead + before
            yg, c = out[:, at : at + d], out[:, at + d :]
            wy = self.wy[i]
            if every:
                wy, yg = xp.softplus(wy), positive(yg)
            elif some:
                wy = xp.where(mask, xp.softplus(wy), wy)
                yg = xp.where(mask[:, None], positive(yg), yg)
            wz = xp.softplus(self.wz[i - 1]) if i else None
            layers.append(Layer(yg, c, positive(gates) if i else None, wy, wz))
            u = xp.leaky_relu(out[:, :ahead], FEATURE_SLOPE) if ahead else None
        return Context(tuple(layers), self.act)


def read(weight: Array, slots: Sequence[Slot]) -> Array:
    """``weight @ concat(slots)`` on rows: project the features where they are, then gather.

    An edge network reads the features of both ends. Projecting the nodes first and gathering the
    narrow result avoids the wide [E, 2p + r] input.
    """
    xp, start = namespace(weight), 0
    total: Array | None = None
    for slot in slots:
        stop = start + slot.features.shape[-2]
        y = xp.project(weight[..., start:stop], slot.features)
        y = y if slot.rows is None else xp.gather(y, slot.rows)
        total, start = y if total is None else total + y, stop
    return total


def attention(
    theta_x: Array,
    theta_a: Array,
    theta_e: Array | None,
    x: Array,
    senders: Slot,
    edge_attr: Array | None,
    at: Star,
) -> Array:
    r"""Attention weights from features alone, [B, E'].

    .. math::
        \alpha_{ij} = \operatorname{softmax}_{j \in \mathcal N(i)} \operatorname{LeakyReLU}\bigl(
            \theta_a^\top [\theta_x x_i \,\|\, \theta_x x_j \,\|\, \theta_e e_{ij}]\bigr)

    Args:
        theta_x: [B, q, p].
        theta_a: [B, 2q or 3q].
        theta_e: [B, q, r], or ``None`` without edge features.
        x: The nodes' own features, [1 or R, p, A].
        senders: The features at the senders of the edges.
        edge_attr: [1, r, E'].
        at: The nodes and the edges into them.
    """
    xp, q = namespace(theta_x), theta_x.shape[-2]
    row = theta_a[:, None]

    def project(theta: Array, part: Array, features: Array) -> Array:
        return xp.project(part @ theta, features)[:, 0]

    sent = project(theta_x, row[..., q : 2 * q], senders.features)
    sent = sent if senders.rows is None else xp.gather(sent, senders.rows)
    logits = at.spread(project(theta_x, row[..., :q], x)) + sent
    if theta_e is not None:
        logits = logits + project(theta_e, row[..., 2 * q :], edge_attr)
    return softmax(xp.leaky_relu(logits, ATTENTION_SLOPE), at)


def softmax(logits: Array, at: Star, weight: Array | None = None) -> Array:
    r"""Shares of the edges into each node, :math:`w_e \exp(l_e) / \sum_{e'} w_{e'} \exp(l_{e'})`.

    Args:
        logits: [..., E'].
        at: The nodes and the edges into them.
        weight: Nonnegative weights [..., E']; ``None``: all one. Where all weights into a node are
            zero, so are the shares.
    """
    if not at.degree:
        return logits
    xp = namespace(logits)
    least = xp.filled((*logits.shape[:-1], at.size), -float("inf"), logits)
    top = xp.largest(least, at.slot, xp.constant(logits))
    shares = xp.exp(logits - at.spread(top))
    if weight is None:
        return shares / at.spread(at.collect(shares))
    shares = weight * shares
    total = at.spread(at.collect(shares))
    return shares / xp.where(total > 0.0, total, 1.0)
