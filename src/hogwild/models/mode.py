"""Helpers for ``torch.compile`` and for evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

F = TypeVar("F", bound=Callable[..., object])


def opaque(method: F) -> F:
    """Exclude a method from ``torch.compile``. The control flow of a solve depends on values, so a
    traced solve breaks into dozens of graphs that take minutes to compile."""
    found: F = torch.compiler.disable(method, reason="its control flow depends on values")
    return found


def uncompiled(model: Any) -> Any:
    """The original module of a compiled module; any other object is returned unchanged. A compiled
    module shares all parameters with the original, but hides its class and the calls inside it."""
    return model._modules.get("_orig_mod", model) if isinstance(model, nn.Module) else model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within a context; restore the mode of each module after."""
    mode = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in mode.items():
            module.training = training
