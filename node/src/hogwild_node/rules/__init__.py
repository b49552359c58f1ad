"""What a node does when it is its turn: one file a rule, each written over inboxes."""

from hogwild_node.rules.base import Rule
from hogwild_node.rules.fixed_point import FixedPointRule
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.rules.messages import MessageRule

__all__ = ["FixedPointRule", "GradientRule", "MessageRule", "Rule"]
