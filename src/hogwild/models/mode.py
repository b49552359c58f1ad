"""How a module is run: in evaluation mode, and by or without ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

F = TypeVar("F", bound=Callable[..., object])


def opaque(method: F) -> F:
    """A method that ``torch.compile`` calls as it is. A solve decides by looking at numbers, graph
    by graph: a traced solve falls into dozens of pieces that take minutes to compile."""
    found: F = torch.compiler.disable(method, reason="a solve decides by looking at numbers")
    return found


def uncompiled(model: object) -> object:
    """The module that ``torch.compile`` was given; anything else as it is. A compiled module shares
    all parameters with the module, but hides the module's class and the calls inside it."""
    return model._modules.get("_orig_mod", model) if isinstance(model, nn.Module) else model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode; afterwards each of its parts is in the mode it was in."""
    mode = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in mode.items():
            module.training = training
