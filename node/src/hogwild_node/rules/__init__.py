"""The rules, which say what a node does at its turn; one file for each rule."""

from hogwild_node.rules.base import Rule
from hogwild_node.rules.fixed_point import FixedPointRule
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.rules.layered import CachingRule, OverwritingRule, WaitingRule
from hogwild_node.rules.messages import MessageRule
from hogwild_node.rules.momentum import MomentumRule
from hogwild_node.rules.resending import ResendingRule

__all__ = [
    "CachingRule",
    "FixedPointRule",
    "GradientRule",
    "MessageRule",
    "MomentumRule",
    "OverwritingRule",
    "ResendingRule",
    "Rule",
    "WaitingRule",
]
