"""Conformance tests for your own models, solvers, rules, executors and impairments."""

from hogwild.testing.checks import check_model, check_solver
from hogwild.testing.nodes import check_executor, check_impairment, check_rule, check_trace
from hogwild.testing.problems import Affine, Quadratic, random_graph

__all__ = [
    "Affine", "Quadratic", "check_executor", "check_impairment", "check_model", "check_rule",
    "check_solver", "check_trace", "random_graph",
]  # fmt: skip
