"""The computations of one node of a network, with NumPy only: no torch, no PyG.

A node has a problem (:mod:`~hogwild_node.problems`, :mod:`~hogwild_node.soft`), a rule
(:mod:`~hogwild_node.rules`) and its edges (:class:`~hogwild_node.star.Star`). ``hogwild`` runs
the same code on whole graphs in torch, because it uses the array API (:mod:`~hogwild_node.ops`).
"""

from hogwild_node.local import BothSides, LocalEnergy, LocalMap, LocalQuadratic
from hogwild_node.ops import namespace
from hogwild_node.problems import GCN, GSD, Contraction, Energy, GCNLayer, LocalLayers
from hogwild_node.rules import (
    CachingRule,
    FixedPointRule,
    GradientRule,
    MessageRule,
    OverwritingRule,
    ResendingRule,
    Rule,
)
from hogwild_node.soft import Soft
from hogwild_node.star import Star

__all__ = [
    "GCN",
    "GSD",
    "BothSides",
    "CachingRule",
    "Contraction",
    "Energy",
    "FixedPointRule",
    "GCNLayer",
    "GradientRule",
    "LocalEnergy",
    "LocalLayers",
    "LocalMap",
    "LocalQuadratic",
    "MessageRule",
    "OverwritingRule",
    "ResendingRule",
    "Rule",
    "Soft",
    "Star",
    "namespace",
]
