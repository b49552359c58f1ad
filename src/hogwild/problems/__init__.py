"""Problems that solvers solve: energies to minimise and fixed points to find."""

from hogwild.problems.base import Evaluation, FixedPoint, Objective, Problem

__all__ = ["Evaluation", "FixedPoint", "Objective", "Problem"]
