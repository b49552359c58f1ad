"""What :func:`hogwild.train`, :func:`hogwild.simulate` and their like take for a model, and how
they ask it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, FeatureError
from hogwild.graph.inputs import Inputs
from hogwild.models.base import uncompiled
from hogwild.models.explicit import LayerTagged
from hogwild.models.layered import LayeredGNN
from hogwild.models.layers import LayeredProblem
from hogwild.models.readout import ImplicitGNN
from hogwild.models.stack import StackedGNN, StackProblem
from hogwild.models.wrapped import WrappedGNN
from hogwild.problems.base import Problem

Model = ImplicitGNN | LayeredGNN | LayerTagged
"""The models of this library."""
Runnable = Model | WrappedGNN
"""What runs asynchronously: the models of this library, and trained ones that were wrapped."""


def reads_edges(model: Model) -> bool:
    """Whether edge features are among what a model reads."""
    first = model.model if isinstance(model, LayerTagged) else model
    if isinstance(first, LayeredGNN):
        return first.edge_dim is not None
    conv = first.levels[0] if isinstance(first, StackedGNN) else first.conv
    return conv.edge_dim is not None


def check_model(model: object) -> Model:
    """The model, if it is one of the library; of a compiled one, the one that was compiled."""
    model = uncompiled(model)
    if not isinstance(model, Model):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a model of hogwild, or a new one of "
            f"PyG's layers, hogwild.LayeredGNN(layers, in_channels, out_channels). A GNN trained "
            f"elsewhere goes to hogwild.simulate, robustness and certify as it is"
        )
    return model


def runnable(model: object) -> Runnable:
    """The model as it runs asynchronously: one of the library as it is, any other wrapped
    (:func:`hogwild.wrap`); of a compiled one, the one that was compiled."""
    model = uncompiled(model)
    if isinstance(model, Runnable):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a model of hogwild, or a trained GNN of "
            f"PyG's convolutions (hogwild.wrap)"
        )
    return WrappedGNN(model)


def pose(model: Any, inputs: Inputs) -> Problem | LayeredProblem | StackProblem:
    """The problem that a model, or a layer of the library, poses on these inputs."""
    if isinstance(model, WrappedGNN):
        _require_finite(inputs)
        return model.problem(inputs)
    args, kwargs = inputs.arguments()
    found: Problem | LayeredProblem | StackProblem = model.problem(*args, **kwargs)
    return found


def _require_finite(inputs: Inputs) -> None:
    """As the models of this library do, where a trained one would compute on."""
    for name, value in (("x", inputs.x), ("edge_attr", inputs.edge_attr)):
        if value is not None and not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            raise FeatureError(
                f"{name} holds {bad} values that are NaN or infinite; expected finite numbers: "
                f"impute or drop them"
            )


def embedded(model: Any, inputs: Inputs) -> Tensor:
    """The synchronous embeddings, [N, k] or [R, N, k]."""
    if isinstance(model, WrappedGNN):
        return model.embed(inputs).value
    args, kwargs = inputs.arguments()
    found: Tensor = model.embed(*args, **kwargs).value
    return found


def predicted(model: Runnable, inputs: Inputs) -> Tensor:
    """The synchronous predictions, [N, out], [G, out] or with an R in front."""
    if isinstance(model, WrappedGNN):
        return model.predict(inputs)
    args, kwargs = inputs.arguments()
    found: Tensor = model(*args, **kwargs)
    return found
