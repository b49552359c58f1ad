"""Hogwild: graph neural networks that survive asynchrony.

The names are those of :mod:`hogwild.api`, which is imported when the first of them is used: the
command line's help need not wait for torch.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import
from importlib import metadata as _metadata
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.api import *  # noqa: F403  (they are in its __all__)

try:
    __version__ = _metadata.version("hogwild-gnn")
except _metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

_FUNCTIONS = ("robustness", "sweep")
"""Names that a function has, and the module it is in: the function is meant."""


class _Package(_ModuleType):
    """This module, whose names come when they are asked for (and without the two it needs)."""

    def __getattr__(self, name: str) -> Any:
        if name not in _FUNCTIONS and _find_spec(f"hogwild.{name}") is not None:
            return _import(f"hogwild.{name}")
        api = _import("hogwild.api")
        if name != "__all__" and name not in api.__all__:
            raise AttributeError(f"module 'hogwild' has no attribute {name!r}")
        return getattr(api, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FUNCTIONS or not isinstance(value, _ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return list(_import("hogwild.api").__all__)


_sys.modules[__name__].__class__ = _Package
