"""Models and solvers by name, at the paper's sizes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hogwild import models
from hogwild.config import Config
from hogwild.errors import ConfigError, among
from hogwild.models.base import ImplicitConv, Kind
from hogwild.models.check import Model
from hogwild.solvers import LBFGS, Anderson, GradientDescent, Newton, Picard
from hogwild.solvers.loop import Solver
from hogwild.training.task import Task


@dataclass(frozen=True)
class Entry:
    """A model by name.

    Attributes:
        type: Its class.
        layer: The class that takes the model's other options.
        kind: Its kind in the paper's taxonomy.
        edges: Whether it reads edge features.
        options: Options that differ from the defaults of the class.
        exact: Whether its solve is exact after finitely many operations, so that it keeps its own
            solver whatever the recipe.
    """

    type: Any
    layer: Any
    kind: Kind
    edges: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False


_ENERGY, _FIXED = Kind.OPTIMISATION, Kind.FIXED_POINT
MODELS: dict[str, Entry] = {
    "energy-edge": Entry(models.EnergyGNN, models.EnergyConv, _ENERGY, True, {"message": "edge"}),
    "energy-node": Entry(models.EnergyGNN, models.EnergyConv, _ENERGY, False, {"message": "node"}),
    "energy-attention": Entry(
        models.EnergyGNN, models.EnergyConv, _ENERGY, True, {"message": "edge", "heads": 2}
    ),
    "gsdgnn": Entry(models.GSDGNN, models.GSDConv, _ENERGY),
    # The published IGNN has ReLU and κ = 0.95. On chains a third of such models have zero
    # gradients, and the others do not see far. With these options nearly all of them learn
    # (docs/results.md).
    "ignn": Entry(
        models.IGNN, models.IGNNConv, _FIXED, options={"act": "leaky_relu", "kappa": 0.999}
    ),
    "eignn": Entry(models.EIGNN, models.EIGNNConv, _FIXED, exact=True),
    "scarselli": Entry(models.ScarselliGNN, models.ScarselliConv, _FIXED, True),
    "max": Entry(models.MaxGNN, models.MaxConv, _FIXED, True, exact=True),
    "gcn": Entry(models.GCN, models.LayeredGNN, Kind.EXPLICIT),
    "gat": Entry(models.GAT, models.LayeredGNN, Kind.EXPLICIT, True),
}

SOLVERS: dict[str, type[Solver[Any]]] = {
    "newton": Newton,
    "lbfgs": LBFGS,
    "gradient": GradientDescent,
    "picard": Picard,
    "anderson": Anderson,
}
FIXED_POINT_SOLVERS = ("picard", "anderson")
"""Solvers that apply a map; the others minimise."""
DECIDED = {"layers", "in_channels", "out_channels", "pool", "replicas", "solver", "edge_dim"}
"""Options of constructors that the task or training decides."""
PAPER: dict[Kind, Solver[Any]] = {
    Kind.OPTIMISATION: LBFGS(max_iter=50, atol=1e-5, rtol=0.0),
    Kind.FIXED_POINT: Picard(max_iter=500, atol=1e-5, rtol=0.0),
}


def entry(name: str) -> Entry:
    """The model of that name."""
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; {among(MODELS, name)}")
    return MODELS[name]


def spelled_out(config: Config) -> Config:
    """With all options of a model by name that differ from the defaults of its class, so that a
    stored run keeps its meaning when :data:`MODELS` changes."""
    options = {**entry(config.model).options, **config.model_options}
    return replace(config, model_options=options)


def solver_for(config: Config, found: Entry) -> Solver[Any] | None:
    """The solver of the configuration; ``None``: the model's own."""
    if config.solver is None:
        if config.solver_options:
            raise ConfigError("solver_options were given without a solver; expected its name, too")
        exact = found.exact and config.model_options.get("method") != "iterate"
        return PAPER.get(found.kind) if config.recipe == "paper" and not exact else None
    if config.solver not in SOLVERS:
        raise ConfigError(f"solver={config.solver!r}; {among(SOLVERS, config.solver)}")
    if found.kind is Kind.FIXED_POINT and config.solver not in FIXED_POINT_SOLVERS:
        raise ConfigError(
            f"solver={config.solver!r} for {config.model!r}, which has no energy to minimise; "
            f"{among(FIXED_POINT_SOLVERS, config.solver)}"
        )
    cls = SOLVERS[config.solver]
    _check_options([cls], config.solver_options, config.solver)
    return cls(**config.solver_options)


def build(config: Config, task: Task, replicas: int | None) -> Model:
    """A new model for a task, on the CPU and in the configuration's dtype."""
    found = entry(config.model)
    options: dict[str, Any] = {}
    if found.edges:
        options["edge_dim"] = task.edge_dim
    if found.kind is not Kind.EXPLICIT:
        if config.recipe == "paper":
            options["solve_dtype"] = None
        solver = solver_for(config, found)
        if solver is not None:
            options["solver"] = solver
    elif config.solver is not None:
        raise ConfigError(f"solver={config.solver!r} for {config.model!r}, which solves nothing")
    _check_options([found.type, found.layer], config.model_options, config.model)
    options |= spelled_out(config).model_options
    model: Model = found.type(
        task.in_channels, task.out_channels, pool=task.pool, replicas=replicas, **options
    )
    # A model that is trained without edge features ignores them in use, too.
    model.features.ignores_edges = task.edge_dim is not None and not found.edges
    return model.to(config.precision)


def set_on_failure(model: nn.Module, on_failure: str) -> None:
    """Set ``on_failure`` in all layers of a model."""
    for part in model.modules():
        if isinstance(part, ImplicitConv):
            part.on_failure = on_failure


def _check_options(classes: list[Any], given: Mapping[str, Any], name: str) -> None:
    """Raise on options that none of these constructors takes."""
    parameters = [p for cls in classes for p in inspect.signature(cls).parameters.values()]
    known = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - DECIDED
    for option in given:
        if option in DECIDED:
            raise ConfigError(f"option {option!r} of {name} is decided by the task or the training")
        if option not in known:
            raise ConfigError(f"unknown option {option!r} of {name}; {among(known, option)}")


def device_of(config: Config) -> torch.device:
    """The device of a configuration, if it is there."""
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={config.device!r}, but no CUDA device is available; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={config.device!r}, but there are {torch.cuda.device_count()}, from cuda:0 on"
        )
    return device


def at_hand(config: Config) -> Config:
    """With the CPU in place of a device that is not there."""
    try:
        device_of(config)
    except ConfigError:
        return replace(config, device="cpu")
    return config
