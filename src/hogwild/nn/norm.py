r"""Norms of features that process every node by itself in evaluation.

.. math:: x'_c = w_c \frac{x_c - m_c}{\sqrt{v_c + \varepsilon}} + b_c

for every channel c, with learned w and b. A node that runs by itself knows only itself. So a norm
may read other nodes in training, but not in evaluation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError
from hogwild_node.networks import normalised


class LayerNorm(nn.Module):
    """m and v are the mean and the variance over the channels of the same node.

    Args:
        channels: Number p of channels.
        replicas: ``None``, or the number R of independent parameter sets.

    Shapes:
        [1 or R, p, n] → [1 or R, p, n].
    """

    name = "layer"

    def __init__(self, channels: int, *, replicas: int | None = None) -> None:
        super().__init__()
        self.channels, self.replicas = channels, replicas
        shape = (channels,) if replicas is None else (replicas, channels)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def reset_parameters(self) -> None:
        """Set w to one and b to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = normalised(x, *self._columns(x, self.weight, self.bias))
        return out

    def _columns(self, x: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        """Numbers of channels, [1 or R, p, 1]."""
        return tuple(t.to(x.dtype).reshape(-1, self.channels, 1) for t in rows)

    def extra_repr(self) -> str:
        return f"{self.channels}" + ("" if self.replicas is None else f", replicas={self.replicas}")


class BatchNorm(LayerNorm):
    """In training m and v are the mean and the variance of the channel over all nodes of the batch.
    In evaluation they are running means of these (the buffers ``mean`` and ``variance``), as in
    PyG, so that the norm is an affine map of every node."""

    name = "batch"
    mean: Tensor
    variance: Tensor
    momentum = 0.1

    def __init__(self, channels: int, *, replicas: int | None = None) -> None:
        super().__init__(channels, replicas=replicas)
        self.register_buffer("mean", torch.zeros(self.weight.shape))
        self.register_buffer("variance", torch.ones(self.weight.shape))

    def reset_parameters(self) -> None:
        """Set w to one, b to zero, and forget the running means."""
        super().reset_parameters()
        self.mean.zero_()
        self.variance.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean, variance = x.mean(2, keepdim=True), x.var(2, correction=0, keepdim=True)
            self._note(mean, variance, x.size(2))
        else:
            mean, variance = self._columns(x, self.mean, self.variance)
        weight, bias = self._columns(x, self.weight, self.bias)
        out: Tensor = normalised(x, weight, bias, mean, variance)
        return out

    @torch.no_grad()
    def _note(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running means towards those of a batch; the variance is the unbiased one."""
        unbiased = variance * (count / max(count - 1, 1))
        for buffer, new in ((self.mean, mean), (self.variance, unbiased)):
            buffer.view(-1, self.channels).lerp_(new[..., 0].to(buffer), self.momentum)


NORMS: dict[str, type[LayerNorm]] = {kind.name: kind for kind in (LayerNorm, BatchNorm)}


def norm(name: object, channels: int, *, replicas: int | None = None) -> LayerNorm | None:
    """The norm of this name; ``None`` for ``None``. ``"LayerNorm"`` and ``"layer_norm"`` also mean
    ``"layer"``.

    Raises:
        ConfigError: There is no such norm, or the norm mixes nodes in evaluation.
    """
    if name is None:
        return None
    short = str(name).lower().replace("_", "").removesuffix("norm")
    if not isinstance(name, str) or short not in NORMS:
        raise ConfigError(
            f"norm={name!r}; expected None, 'layer' or 'batch'. Other norms, such as PyG's "
            f"GraphNorm, InstanceNorm and PairNorm, mix the nodes of a graph also in evaluation, "
            f"and a node that runs by itself knows only itself"
        )
    return NORMS[short](channels, replicas=replicas)
