"""What :func:`hogwild.train`, :func:`hogwild.simulate` and similar functions take for a model."""

from __future__ import annotations

from torch import nn

from hogwild.errors import ConfigError
from hogwild.models.base import Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.mode import uncompiled
from hogwild.models.wrapping import WrappedGNN


def check_model(model: object) -> ConvGNN:
    """The model, if it is one of the library; of a compiled model, the model that was compiled."""
    model = uncompiled(model)
    if not isinstance(model, ConvGNN):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a model of hogwild, or a new one of "
            f"PyG's layers, hogwild.LayeredGNN(layers, in_channels, out_channels=...). A GNN "
            f"trained elsewhere goes to hogwild.simulate, robustness and certify as it is"
        )
    return model


def runnable(model: object) -> Model:
    """The model as it runs asynchronously: a model of the library as it is, any other model wrapped
    (:func:`hogwild.wrap`); of a compiled model, the model that was compiled."""
    model = uncompiled(model)
    if isinstance(model, Model):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a model of hogwild, or a trained GNN of "
            f"PyG's convolutions (hogwild.wrap)"
        )
    return WrappedGNN(model)
