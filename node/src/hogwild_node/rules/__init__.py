"""The rules, which say what a node does at its turn; one file for each kind of problem."""

from hogwild_node.rules.base import Rule
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.rules.maps import (
    CachingRule,
    FixedPointRule,
    OverwritingRule,
    ResendingRule,
)
from hogwild_node.rules.messages import MessageRule

RULES: dict[str, type[Rule]] = {
    "messages": MessageRule,
    "gradient": GradientRule,
    "fixed-point": FixedPointRule,
    "caching": CachingRule,
    "overwriting": OverwritingRule,
    "resending": ResendingRule,
}
"""The rules whose packets replace each other, by name; the first that fits a model is its own."""

__all__ = [
    "RULES",
    "CachingRule",
    "FixedPointRule",
    "GradientRule",
    "MessageRule",
    "OverwritingRule",
    "ResendingRule",
    "Rule",
]
