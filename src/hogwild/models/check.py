"""Checks of the ``model`` argument of :func:`hogwild.train`, :func:`hogwild.simulate`, …"""

from __future__ import annotations

from torch import nn

from hogwild.errors import ConfigError
from hogwild.models.base import Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.mode import uncompiled
from hogwild.models.wrapped import WrappedGNN


def check_model(model: object) -> ConvGNN:
    """The model, or the original of a compiled model; raise unless it is a model of the library."""
    model = uncompiled(model)
    if not isinstance(model, ConvGNN):
        raise ConfigError(
            f"model is {_kind(model)}; expected a model of hogwild. "
            f"hogwild.LayeredGNN(layers, in_channels, out_channels=...) builds one from PyG's "
            f"layers. hogwild.simulate, robustness and certify take a GNN trained elsewhere as it "
            f"is"
        )
    return model


def runnable(model: object) -> Model:
    """A model that can run asynchronously. Models of the library are returned unchanged, all others
    are wrapped (:func:`hogwild.wrap`). A compiled model is replaced by its original."""
    model = uncompiled(model)
    if isinstance(model, Model):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is {_kind(model)}; expected a model of hogwild, or a trained GNN of "
            f"PyG's convolutions (hogwild.wrap)"
        )
    return WrappedGNN(model)


def _kind(model: object) -> str:
    return f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
