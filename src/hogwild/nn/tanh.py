r"""An MLP with tanh, and its Jacobian in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.nn.mlp import MLP
from hogwild_node.networks import Slot, read
from hogwild_node.tree import FIXED, SHARED, OnGraph, over


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
        return self._run(y, given)[-1]

    def _run(self, y: Tensor, given: Tensor | None) -> list[Tensor]:
        """Values of all layers."""
        a = torch.matmul(self.first, y) + (self.given if given is None else given)
        values = []
        for weight, bias in self.rest:
            values.append(torch.tanh(a))
            a = torch.matmul(weight, values[-1]) + bias
        return [*values, torch.tanh(a) if self.squash else a]

    def jacobian(self, y: Tensor) -> tuple[Tensor, Tensor]:
        r"""The value [R, out, n] and :math:`\partial / \partial y` [R, out, c, n]."""
        *hidden, out = self._run(y, None)
        j = self.first.unsqueeze(-1)
        for z, (weight, _) in zip(hidden, self.rest, strict=True):
            j = (1.0 - z * z).unsqueeze(2) * j  # [R, a, c, n]
            j = torch.matmul(weight, j.flatten(2)).unflatten(2, j.shape[2:])
        if self.squash:
            j = (1.0 - out * out).unsqueeze(2) * j
        return out, j.expand(*out.shape[:2], y.size(1), out.size(-1))


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

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.weight) - 1
        for i, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            x = torch.matmul(x, weight.mT) + bias.unsqueeze(-2)
            x = torch.tanh(x) if i < last or self.squash else x
        return x

    def given(self, slots: Sequence[Slot], dtype: torch.dtype) -> TanhMap:
        """The network as a function of its *first* inputs, in this precision; its last inputs are
        these features."""
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
