"""Solvers: one small class for each method, and one loop that runs them on every graph."""

from hogwild.linalg.krylov import System, bicgstab, cg, cg_transposed
from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.operator import Hessian, Tangent
from hogwild.linalg.solution import Solution, Status
from hogwild.problems.base import Evaluation, FixedPoint, Objective, Problem
from hogwild.solvers.adjoint import Adjoint, differentiable
from hogwild.solvers.anderson import Anderson, Picard
from hogwild.solvers.lbfgs import LBFGS
from hogwild.solvers.loop import Solver, State, solve
from hogwild.solvers.momentum import TripleMomentum
from hogwild.solvers.newton import Newton
from hogwild.solvers.semismooth import SemismoothNewton

__all__ = [
    "LBFGS", "Adjoint", "Anderson", "Evaluation", "FixedPoint", "Hessian",
    "LinearSolver", "Newton", "Objective", "Picard", "Problem", "SemismoothNewton", "Solution",
    "Solver", "State", "Status", "System", "Tangent", "TripleMomentum", "bicgstab", "cg",
    "cg_transposed", "differentiable", "solve",
]  # fmt: skip
