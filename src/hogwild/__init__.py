"""Hogwild: graph neural networks that survive asynchrony.

The names are those of :mod:`hogwild.api`, which is imported when the first of them is used, so that
the command line's help does not wait for torch.
"""

from __future__ import annotations

from functools import cache as _cache
from importlib import import_module as _import
from importlib import metadata as _metadata
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.api import *  # noqa: F403  (they are in its __all__)

try:
    __version__ = _metadata.version("hogwild-gnn")
except _metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"


@_cache  # a training loop may say hogwild.Inputs in every step
def __getattr__(name: str) -> Any:
    if _find_spec(f"hogwild.{name}") is not None:
        return _import(f"hogwild.{name}")
    api = _import("hogwild.api")
    if name != "__all__" and name not in api.__all__:
        raise AttributeError(f"module 'hogwild' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    return list(_import("hogwild.api").__all__)
