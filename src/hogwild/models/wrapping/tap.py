"""Interception of the convolutions that a module calls in its forward.

A convolution is any ``torch_geometric.nn.MessagePassing`` inside the module. A convolution inside
another convolution is part of the outer one. Calls are numbered in the order in which the forward
makes them, and each call is a *layer*; a convolution may be called several times.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

_TAPPED = threading.RLock()
"""Held while convolutions are intercepted, because threads may share a module."""


@dataclass
class Call:
    """One call of a convolution."""

    index: int
    path: str
    conv: MessagePassing
    forward: Callable[..., Any]  # the convolution's own
    given: inspect.BoundArguments

    def __str__(self) -> str:
        return named(self.path, self.conv)

    def values(self, rows: int) -> list[Tensor]:
        """The arguments that neighbours read: floating-point tensors with this many rows, alone or
        in tuples, whose names do not start with ``edge``. Integer tensors are features, which never
        change."""
        found: dict[int, Tensor] = {}
        for name, value in self._flat():
            if name.startswith("edge") or not isinstance(value, Tensor):
                continue
            if value.is_floating_point() and value.dim() and value.size(0) == rows:
                found[id(value)] = value
        return list(found.values())

    def _flat(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.given.arguments.items():
            if isinstance(value, tuple | list):
                yield from ((name, part) for part in value)
            elif isinstance(value, Mapping):
                yield from value.items()
            else:
                yield name, value

    def run(self, instead: dict[int, Tensor] | None = None) -> Any:
        """Run the convolution; ``instead`` maps the ``id`` of a tensor to its replacement."""
        new = instead or {}

        def swap(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(swap(part) for part in value)
            if isinstance(value, Mapping):
                return {key: swap(part) for key, part in value.items()}
            return new.get(id(value), value)

        arguments = {name: swap(value) for name, value in self.given.arguments.items()}
        bound = inspect.BoundArguments(self.given.signature, arguments)
        return self.forward(*bound.args, **bound.kwargs)


def named(path: str, module: nn.Module) -> str:
    """The name of a module in error messages."""
    return f"{path or 'the model itself'} ({type(module).__name__})"


@contextmanager
def tapped(model: nn.Module, take: Callable[[Call], Any]) -> Iterator[None]:
    """Within this context ``take(call)`` replaces every call of a convolution of the model.

    Caches of convolutions (``cached=True``) are disabled, because the convolutions run on parts of
    the graph. Compiled modules run uncompiled, because calls inside compiled code cannot be
    intercepted.
    """
    count, inside = 0, False

    def replacement(path: str, conv: MessagePassing) -> Callable[..., Any]:
        own, signature = conv.forward, inspect.signature(conv.forward)

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, inside
            if inside:
                return own(*args, **kwargs)
            call = Call(count, path, conv, own, signature.bind(*args, **kwargs))
            count, inside = count + 1, True
            try:
                return take(call)
            finally:
                inside = False

        return forward

    with _TAPPED:
        kept: list[tuple[nn.Module, dict[str, Any]]] = []
        try:
            for path, module in model.named_modules():
                before = dict(module.__dict__)
                aside = ("_cached_", "_compiled_call_impl")
                memory: dict[str, Any] = {k: None for k in before if k.startswith(aside)}
                if before.get("cached") is True:
                    memory["cached"] = False
                if "_orig_mod" in module._modules:
                    memory["forward"] = module._modules["_orig_mod"]
                if isinstance(module, MessagePassing):
                    memory["forward"] = replacement(path, module)
                if memory:
                    kept.append((module, {k: before[k] for k in memory if k in before}))
                    module.__dict__.update(memory)
            yield
        finally:
            for module, before in kept:
                module.__dict__.pop("forward", None)
                module.__dict__.update(before)


def convolutions(model: nn.Module) -> dict[str, MessagePassing]:
    """The convolutions of a model by path."""
    return {p: m for p, m in model.named_modules() if isinstance(m, MessagePassing)}
