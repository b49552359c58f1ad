"""Problems with exact answers and conformance suites, for our tests and for yours."""

from hogwild.testing.checks import check_model, check_solver
from hogwild.testing.problems import Affine, Quadratic, random_graph

__all__ = ["Affine", "Quadratic", "check_model", "check_solver", "random_graph"]
