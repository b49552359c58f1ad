"""What :func:`hogwild.train`, :func:`hogwild.simulate` and their like take for a model."""

from __future__ import annotations

from hogwild.errors import ConfigError
from hogwild.models.explicit import LayerTagged
from hogwild.models.layered import LayeredGNN
from hogwild.models.readout import ImplicitGNN
from hogwild.models.stack import StackedGNN

Model = ImplicitGNN | LayeredGNN | LayerTagged
"""The models of this library, and PyG's inside :class:`~hogwild.LayeredGNN`."""


def reads_edges(model: Model) -> bool:
    """Whether edge features are among what a model reads."""
    first = model.model if isinstance(model, LayerTagged) else model
    if isinstance(first, LayeredGNN):
        return first.edge_dim is not None
    conv = first.levels[0] if isinstance(first, StackedGNN) else first.conv
    return conv.edge_dim is not None


def check_model(model: object) -> Model:
    """The model, if it is one of the library."""
    if not isinstance(model, Model):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a model of hogwild, or one of PyG's "
            f"wrapped as hogwild.LayeredGNN(model, in_channels, out_channels)"
        )
    return model
