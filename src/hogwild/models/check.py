"""What :func:`hogwild.train`, :func:`hogwild.simulate` and their like take for a model."""

from __future__ import annotations

from hogwild.errors import ConfigError
from hogwild.models.explicit import LayerTagged
from hogwild.models.layered import LayeredGNN
from hogwild.models.readout import ImplicitGNN

Model = ImplicitGNN | LayeredGNN | LayerTagged
"""The models of this library, and PyG's inside :class:`~hogwild.LayeredGNN`."""


def check_model(model: object) -> Model:
    """The model, if it is one of the library."""
    if not isinstance(model, Model):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a model of hogwild, or one of PyG's "
            f"wrapped as hogwild.LayeredGNN(model, in_channels, out_channels)"
        )
    return model
