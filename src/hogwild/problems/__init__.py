"""Problems that solvers solve: energies to minimise and fixed points to find."""

from hogwild.problems.base import Evaluation, FixedPoint, Objective, Problem
from hogwild.problems.pairwise import Pairwise

__all__ = ["Evaluation", "FixedPoint", "Objective", "Pairwise", "Problem"]
