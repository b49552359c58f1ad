r"""Networks with parameters: MLPs and partially input-convex networks (PICNNs), with a replica
dimension. Derivatives of PICNNs have a closed form.

A PICNN :math:`f(x, y)` is convex in :math:`y` and arbitrary in :math:`x` (Amos et al., 2017; the
paper's appendix B). With :math:`u_0 = x` and :math:`z_0 = 0`,

.. math::
    u_{\ell+1} &= \tilde g(\tilde W_\ell u_\ell + \tilde b_\ell) \\
    a_\ell &= W^{(z)}_\ell \bigl(z_\ell \circ [W^{(zu)}_\ell u_\ell + b^{(z)}_\ell]_+\bigr)
            + W^{(y)}_\ell \bigl(y \circ (W^{(yu)}_\ell u_\ell + b^{(y)}_\ell)\bigr)
            + W^{(u)}_\ell u_\ell + b_\ell \\
    z_{\ell+1} &= g(a_\ell), \qquad f(x, y) = a_{L-1}.

**Why it is convex.** The parameterisation makes :math:`W^{(z)}` and the ``z`` gates nonnegative,
:math:`g` is convex and nondecreasing, and the ``y`` term is affine in ``y``. A nonnegative
combination of convex functions plus an affine function is convex, and so is :math:`g` of it. In
formulas: let :math:`s_\ell = \partial (p^\top f) / \partial z_{\ell+1}` for weights
:math:`p \ge 0`. Then :math:`s_\ell \ge 0` and

.. math::
    \nabla_y^2 \, (p^\top f) = \sum_\ell J_\ell^\top
        \operatorname{diag}\bigl(s_\ell \circ g''(a_\ell)\bigr) J_\ell \succeq 0,
    \qquad J_\ell = \partial a_\ell / \partial y,

and this formula also computes the Hessian, with one small product per layer and without automatic
differentiation.

**Nondecreasing in some inputs** (``monotone``): the columns of :math:`W^{(y)}` *and* the gates of
these inputs are nonnegative. The update network of an energy must be nondecreasing in the messages,
because a convex nondecreasing function of convex functions is convex. The paper's condition
(nondecreasing convex *messages* and a convex update) is not sufficient: :math:`(e^h - 1)^2` is not
convex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import ConfigError, FeatureError, require_one_of, require_probability
from hogwild.nn import activations
from hogwild.nn.activations import Activation
from hogwild_node.networks import PICNNParameters, Slot
from hogwild_node.picnn import Context


class MLP(nn.Module):
    r"""Fully connected layers with leaky ReLU between them.

    The leaky ReLU keeps the gradient of every unit nonzero. With ReLU, all units of a narrow MLP
    are sometimes zero for every input from the first epoch on, and the replica never learns.

    Args:
        in_channels: Width of the input; −1: it is not known before :meth:`begin`.
        channels: Widths of the layers; the last is the width of the output.
        replicas: ``None``, or the number R of independent parameter sets.
        negative_slope: Slope of the leaky ReLU for negative inputs.
        dropout: Probability of dropout of hidden units in training.

    Shapes:
        [n, in] or [R, n, in] → [n, out], or [R, n, out] with replicas.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        replicas: int | None = None,
        negative_slope: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels = (in_channels, *channels)
        self.replicas = replicas
        self.negative_slope = negative_slope
        self.dropout = require_probability("dropout", dropout)
        lead = () if replicas is None else (replicas,)
        self.weight = nn.ParameterList(
            nn.UninitializedParameter() if a == -1 else nn.Parameter(torch.empty(*lead, b, a))
            for a, b in pairwise(self.channels)
        )
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(*lead, b)) for b in self.channels[1:])
        self.reset_parameters()

    def begin(self, in_channels: int) -> None:
        """Make the parameters that need the width of the input, and draw all. Optimizers that
        already have the parameters keep them."""
        first: Any = self.weight[0]
        self.channels = (in_channels, *self.channels[1:])
        first.materialize((*self.bias[0].shape, in_channels))
        self.reset_parameters()

    @property
    def gain(self) -> float:
        """Gain of fresh weights, whose variance is gain² / fan-in: He's gain for the leaky ReLU."""
        return math.sqrt(2.0 / (1.0 + self.negative_slope**2))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters; none before :meth:`begin`."""
        if self.channels[0] == -1:
            return
        for weight, bias in zip(self.weight, self.bias, strict=True):
            fan_in = weight.size(-1)
            bound = self.gain * math.sqrt(3.0 / fan_in)
            weight.uniform_(-bound, bound)
            bias.uniform_(-1.0 / math.sqrt(fan_in), 1.0 / math.sqrt(fan_in))

    def forward(self, x: Tensor) -> Tensor:
        if self.replicas is not None and x.dim() == 2:
            x = x.expand(self.replicas, *x.shape)
        last = len(self.weight) - 1
        for i, (w, b) in enumerate(zip(items(self.weight), items(self.bias), strict=True)):
            x = F.linear(x, w, b) if w.dim() == 2 else torch.baddbmm(b.unsqueeze(-2), x, w.mT)
            if i < last:
                x = F.dropout(F.leaky_relu(x, self.negative_slope), self.dropout, self.training)
        return x

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.channels}{replicas}"


def items(group: nn.ParameterList) -> list[Tensor]:
    """The parameters in a list, also those that torch computes from others. The list's own iterator
    looks every parameter up by its number's name, which takes longer."""
    found = group._parameters
    plain = list(found) == _names(len(group))
    return [p for p in found.values() if p is not None] if plain else list(group)


@cache
def _names(count: int) -> list[str]:
    return [str(i) for i in range(count)]


_GATES = {"softplus": math.log(math.expm1(1.0)), "relu": 1.0}
"""The bias at which the positive part of a gate equals one."""


class PICNN(nn.Module):
    r"""A network :math:`f(x, y)`, convex in :math:`y`, arbitrary in :math:`x`.

    Args:
        in_channels: Width of ``x``, or the widths of its parts (the two ends of an edge and the
            edge itself).
        convex_channels: Width ``d`` of ``y``.
        channels: Widths of the layers; the last is the width of the output. The paper uses
            ``(4, 4, 2)``.
        monotone: For each of the ``d`` convex inputs, whether the network must also be
            nondecreasing in it.
        act: Activation of the ``z`` path, smooth, convex and nondecreasing.
        gate: Positive part of the gates, ``"softplus"`` (smooth, with nonzero gradient) or
            ``"relu"`` (as in the paper).
        batch_shape: Leading shape of independent parameter sets (replicas, heads).
        gain: Initial slope in the monotone inputs.

    Shapes:
        ``forward(x, y)``: x [*, n, p], y [*, n, d] → [*batch_shape, n, out].

    The network is convex in ``y`` for all values of its parameters. Its last layer has no
    activation.
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        convex_channels: int,
        channels: Sequence[int],
        *,
        monotone: Sequence[bool] | None = None,
        act: str | Activation = "softplus",
        gate: str = "softplus",
        batch_shape: tuple[int, ...] = (),
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.in_channels = (in_channels,) if isinstance(in_channels, int) else tuple(in_channels)
        self.convex_channels = convex_channels
        self.channels = tuple(channels)
        self.batch_shape = batch_shape
        self.gain = gain
        if not self.channels or min(self.channels) < 1 or convex_channels < 1:
            raise ConfigError(
                f"a PICNN needs at least one layer and positive widths; got channels="
                f"{self.channels}, convex_channels={convex_channels}"
            )
        require_one_of(_GATES, gate=gate)
        mask = [False] * convex_channels if monotone is None else [bool(m) for m in monotone]
        if len(mask) != convex_channels:
            raise ConfigError(
                f"monotone has {len(mask)} entries; expected one for each of the "
                f"{convex_channels} convex inputs"
            )
        self.act = activations.resolve(act)
        self.gate = gate
        self.monotone: Tensor
        self.register_buffer("monotone", torch.tensor(mask), persistent=False)
        self.mask = tuple(mask)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*batch_shape, *shape))

        # One affine map of u_ℓ gives, stacked, u_{ℓ+1}'s preactivation, the z gates, the y gates
        # and the bias of a_ℓ: [W̃; W^(zu); W^(yu); W^(u)] in the paper's names.
        self.feature_weight, self.feature_bias = nn.ParameterList(), nn.ParameterList()
        self.wy, self.wz = nn.ParameterList(), nn.ParameterList()
        width_u, width_z = sum(self.in_channels), 0
        for sizes, width in zip(self._split_sizes(), self.channels, strict=True):
            self.feature_weight.append(empty(sum(sizes), width_u))
            self.feature_bias.append(empty(sum(sizes)))
            self.wy.append(empty(width, convex_channels))
            if width_z:
                self.wz.append(empty(width, width_z))
            width_u = width_z = width
        self.reset_parameters()

    def _split_sizes(self) -> list[tuple[int, int, int, int]]:
        """Widths of (u_{ℓ+1}, z gate, y gate, bias) in each layer's stacked affine map."""
        last = len(self.channels) - 1
        return [
            (w if i < last else 0, self.channels[i - 1] if i else 0, self.convex_channels, w)
            for i, w in enumerate(self.channels)
        ]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        r"""Draw fresh parameters.

        Gates start near one. Nonnegative weights have the mean :math:`1/\text{fan-in}`, and signed
        weights the variance :math:`1/\text{fan-in}`, so that slopes and curvatures are of order one
        at any width and depth. ``gain`` scales the weights of the monotone inputs.
        """
        one = _GATES[self.gate]
        for i, sizes in enumerate(self._split_sizes()):
            weight, bias = self.feature_weight[i], self.feature_bias[i]
            scale = 1.0 / math.sqrt(weight.size(-1)) if weight.size(-1) else 0.0
            u, zg, yg, c = weight.split(list(sizes), dim=-2)
            u.normal_(0.0, scale)
            zg.normal_(0.0, 0.1 * scale)
            yg.normal_(0.0, 0.3 * scale)
            c.normal_(0.0, scale)
            bu, bz, by, bc = bias.split(list(sizes), dim=-1)
            bu.zero_()
            bz.fill_(one)
            by.copy_(torch.where(self.monotone, one, 1.0).expand_as(by))
            bc.normal_(0.0, 0.5)
            wy = self.wy[i]
            count = max(int(self.monotone.sum()), 1)
            free = torch.randn_like(wy) / math.sqrt(self.convex_channels)
            mono = _inverse_softplus((0.5 + torch.rand_like(wy)) * self.gain / count)
            wy.copy_(torch.where(self.monotone, mono, free))
            if i:
                wz = self.wz[i - 1]
                wz.copy_(_inverse_softplus((0.5 + torch.rand_like(wz)) / wz.size(-1)))

    def every_parameter(self) -> list[Tensor]:
        """All parameters in their order, also those that torch computes (pruning,
        parametrisations). ``parameters()`` takes longer than a small solve."""
        groups = (self.feature_weight, self.feature_bias, self.wy, self.wz)
        return [p for group in groups for p in items(group)]

    def context(self, slots: Sequence[Slot]) -> Context:
        """The network with its features filled in: the part that no iteration of a solve
        changes."""
        lead = len(self.batch_shape)

        def flat(parameters: nn.ParameterList) -> list[Tensor]:
            own = items(parameters)
            return [p.flatten(0, lead - 1) if lead else p.unsqueeze(0) for p in own]

        return PICNNParameters(
            flat(self.feature_weight), flat(self.feature_bias), flat(self.wy), flat(self.wz),
            self.mask, self.act, self.gate,
        ).context(slots)  # fmt: skip

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.at(x).forward(self.columns(y)).value.mT
        return out.reshape(*self.batch_shape, *out.shape[-2:])

    def at(self, x: Tensor) -> Context:
        """The network with its features [*, n, p] filled in."""
        parts = self._checked("x", x, sum(self.in_channels)).split(list(self.in_channels), dim=-2)
        return self.context([Slot(part) for part in parts])

    def columns(self, y: Tensor) -> Tensor:
        """[*, n, d] -> [B, d, n], the layout of :class:`~hogwild_node.picnn.Context`."""
        found = self._checked("y", y, self.convex_channels)
        return found.expand(math.prod(self.batch_shape), -1, -1)

    @staticmethod
    def _checked(name: str, value: Tensor, width: int) -> Tensor:
        """Rows [*, n, width] as [B, width, n]; raise if they have another width."""
        if value.dim() < 2 or value.size(-1) != width:
            raise FeatureError(
                f"{name} has shape {tuple(value.shape)}; expected [..., rows, {width}]"
            )
        return value.mT.reshape(-1, width, value.size(-2))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.convex_channels}, {self.channels}, act={self.act.name}"


def _inverse_softplus(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))
