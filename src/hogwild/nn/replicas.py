"""R independent copies of any module, with stacked parameters and evaluated side by side.

The library's own networks have a replica dimension in their formulas. This file adds one to other
modules, such as PyG's convolutions. The stacked module has the same names in its ``state_dict``,
and every parameter and buffer is [R, …].
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hogwild.errors import ConfigError


def redraw(module: nn.Module) -> None:
    """Draw fresh parameters in a module and all its submodules; submodules come first."""
    for part in reversed(list(module.modules())):
        draw: Any = getattr(part, "reset_parameters", None)
        if callable(draw):
            draw()


def stack(module: nn.Module, replicas: int) -> nn.Module:
    """A copy of ``module`` with R fresh, independent draws of its parameters, and R copies of its
    buffers.

    Raises:
        ConfigError: ``module`` has random parameters that its ``reset_parameters`` does not draw
            again, so that all replicas would start with the same parameters.
    """
    memo: dict[int, object] = {}
    for p in module.parameters():
        memo[id(p)] = nn.Parameter(_repeat(p, replicas), p.requires_grad)
    for b in module.buffers():
        memo[id(b)] = _repeat(b, replicas)
    out = copy.deepcopy(module, memo)
    redraw_each(out, replicas)
    for (name, before), after in zip(module.named_modules(), out.modules(), strict=True):
        own = list(before.parameters(recurse=False))
        random = any(bool((p != p.flatten()[:1]).any()) for p in own)
        draws = zip(own, after.parameters(recurse=False), strict=True)
        if random and all(torch.equal(p, q[0]) for p, q in draws):
            raise ConfigError(
                f"replicas={replicas} need {replicas} draws of the parameters of "
                f"{type(before).__name__}{f' ({name})' if name else ''}, but no reset_parameters() "
                f"changes them; expected a reset_parameters() that draws them again"
            )
    return out


def _repeat(x: Tensor, replicas: int) -> Tensor:
    return x.detach().expand(replicas, *x.shape).clone()


def redraw_each(stacked: nn.Module, replicas: int) -> None:
    """Draw fresh parameters for every replica of a stacked module."""
    for r in range(replicas):
        redraw(replica(stacked, r))


def replica(stacked: nn.Module, r: int) -> nn.Module:
    """Replica r as a separate module, which shares memory with the stacked module, but not its
    gradients."""
    memo: dict[int, object] = {
        id(p): nn.Parameter(p.detach()[r], p.requires_grad) for p in stacked.parameters()
    }
    memo |= {id(b): b[r] for b in stacked.buffers()}
    return copy.deepcopy(stacked, memo)


_SWAP = threading.RLock()
"""Held while a module's parameters are replaced, because threads may share a module."""


class _With(nn.Module):
    """A function that uses a module."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def apply(stacked: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``, which uses ``stacked``, with the parameters of every replica, and with its
    slice of every tensor [R, …] in ``args``. Returns tensors [R, …]."""
    whole = _With(stacked, function)

    def one(state: dict[str, Tensor], *args: Any) -> Any:
        return functional_call(whole, state, args)

    with _SWAP:
        state = dict(whole.named_parameters()) | dict(whole.named_buffers())
        return torch.vmap(one, randomness="different")(state, *args)
