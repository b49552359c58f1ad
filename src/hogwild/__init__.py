"""Hogwild: graph neural networks that survive asynchrony.

The names are those of :mod:`hogwild.api`, which is imported when the first of them is used, so that
the command line's help does not wait for torch. Modules that moved are found under their old names
for one release, with a warning.
"""

from __future__ import annotations

import sys as _sys
import warnings as _warnings
from functools import cache as _cache
from importlib import import_module as _import
from importlib import metadata as _metadata
from importlib.abc import Loader as _Loader
from importlib.abc import MetaPathFinder as _Finder
from importlib.util import find_spec as _find_spec
from importlib.util import spec_from_loader as _spec
from types import ModuleType as _Module
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


_MOVED = {
    "hogwild.asynchrony.seeding": "hogwild.asynchrony.impairment",
    "hogwild.cluster.memory": "hogwild.cluster.setup",
    "hogwild.executors.cone": "hogwild.executors.deadlines",
    "hogwild.executors.simulated": "hogwild.executors.simulation",
    "hogwild.executors.tracked": "hogwild.executors.track_result",
    "hogwild.executors.unrolled": "hogwild.executors.gradients",
    "hogwild.graph.kept": "hogwild.graph.cached",
    "hogwild.models.features": "hogwild.models.gnn",
    "hogwild.models.stack": "hogwild.models.implicit",
    "hogwild.nn.mlp": "hogwild.nn.networks",
    "hogwild.nn.picnn": "hogwild.nn.networks",
    "hogwild.rules.energies": "hogwild.rules.base",
}


class _Moved(_Finder, _Loader):
    """Finds a module that moved under its old name: a copy of the names of the new module."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        return _spec(fullname, self) if fullname in _MOVED else None

    def exec_module(self, module: _Module) -> None:
        new = _MOVED[module.__name__]
        text = f"{module.__name__} is now {new}; the old name goes after the next release"
        _warnings.warn(text, DeprecationWarning, stacklevel=2)
        names = vars(_import(new)).items()
        vars(module).update({name: value for name, value in names if not name.startswith("__")})


_sys.meta_path.append(_Moved())
