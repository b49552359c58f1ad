"""Networks that the models are built of: input-convex networks, attention and MLPs."""

from hogwild.nn.activations import SOFTPLUS, SQUAREPLUS, Activation
from hogwild.nn.attention import NeighbourhoodAttention
from hogwild.nn.mlp import MLP
from hogwild.nn.nonexpansive import Nonexpansive, leaky_relu
from hogwild.nn.picnn import PICNN
from hogwild.nn.standardize import Standardize

__all__ = [
    "MLP", "PICNN", "SOFTPLUS", "SQUAREPLUS", "Activation", "NeighbourhoodAttention",
    "Nonexpansive", "Standardize", "leaky_relu",
]  # fmt: skip
