"""Solvers: one small class each behind one loop, per graph and per replica."""

from hogwild.solvers.anderson import Anderson
from hogwild.solvers.base import Solver, State, solve
from hogwild.solvers.gradient import GradientDescent
from hogwild.solvers.krylov import bicgstab, cg, gmres
from hogwild.solvers.lbfgs import LBFGS
from hogwild.solvers.linear import LinearSolver
from hogwild.solvers.newton import Newton
from hogwild.solvers.picard import Picard
from hogwild.solvers.problem import Evaluation, FixedPoint, Hessian, Objective, Problem, Tangent
from hogwild.solvers.semismooth import SemismoothNewton
from hogwild.solvers.solution import Solution, Status

__all__ = [
    "LBFGS",
    "Anderson",
    "Evaluation",
    "FixedPoint",
    "GradientDescent",
    "Hessian",
    "LinearSolver",
    "Newton",
    "Objective",
    "Picard",
    "Problem",
    "SemismoothNewton",
    "Solution",
    "Solver",
    "State",
    "Status",
    "Tangent",
    "bicgstab",
    "cg",
    "gmres",
    "solve",
]
