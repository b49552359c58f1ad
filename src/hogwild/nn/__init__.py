"""Networks that the models are built of: input-convex networks, attention, MLPs and norms."""

from hogwild.nn.activations import SOFTPLUS, SQUAREPLUS, Activation, Nonexpansive, leaky_relu
from hogwild.nn.attention import NeighbourhoodAttention
from hogwild.nn.networks import MLP, PICNN
from hogwild.nn.norm import BatchNorm, LayerNorm
from hogwild.nn.standardize import Standardize

__all__ = [
    "MLP", "PICNN", "SOFTPLUS", "SQUAREPLUS", "Activation", "BatchNorm", "LayerNorm",
    "NeighbourhoodAttention", "Nonexpansive", "Standardize", "leaky_relu",
]  # fmt: skip
