"""Models and solvers by name, at the paper's sizes, and a run's replicas.

All seeds and folds of a configuration are the replicas of one model. Replica r is trained on fold r
mod F from the parameters of seed s + r div F; with ``fold`` all replicas are trained on this one
fold, replica r from the parameters of seed s + r. Its initial parameters are a function of its seed
alone, and training treats every replica by itself: a replica ends where it would have ended alone,
in a fraction of the time.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.config import Config
from hogwild.errors import ConfigError, among
from hogwild.models import (
    EIGNN,
    GAT,
    GCN,
    GSDGNN,
    IGNN,
    EnergyGNN,
    ScarselliGNN,
    SoftEnergyGNN,
)
from hogwild.models.base import Kind
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv
from hogwild.models.layered import Layers
from hogwild.solvers import LBFGS, Picard
from hogwild.solvers.loop import Solver
from hogwild.tasks.base import Split, Task


@dataclass(frozen=True)
class Entry:
    """A model by name.

    Attributes:
        type: Its class.
        options: Options beside the class's own defaults.
        edges: Whether it reads edge features.
        exact: Whether its solve ends exactly, after finitely many operations, so that a recipe's
            solver does not apply.
    """

    type: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    edges: bool = False
    exact: bool = False

    @property
    def layer(self) -> Any:
        """The class of its layers, which takes the options that the model hands on."""
        return getattr(self.type, "layer", Layers)


MODELS: dict[str, Entry] = {
    "energy-edge": Entry(EnergyGNN, {"message": "edge"}, edges=True),
    "energy-node": Entry(EnergyGNN, {"message": "node"}),
    "energy-attention": Entry(EnergyGNN, {"message": "edge", "heads": 2}, edges=True),
    "gsdgnn": Entry(GSDGNN),
    "soft": Entry(SoftEnergyGNN, edges=True),
    # Published with ReLU and κ = 0.95: on chains a third of such models die, and the others forget
    # what is far away. With these options nearly all of them learn (docs/results.md).
    "ignn": Entry(IGNN, {"act": "leaky_relu", "kappa": 0.999}),
    "eignn": Entry(EIGNN),
    "scarselli": Entry(ScarselliGNN, edges=True),
    "gcn": Entry(GCN),
    "gat": Entry(GAT, edges=True),
}

DECIDED = {
    *("self", "conv", "layers", "in_channels", "out_channels", "features"),
    *("replicas", "solver", "edge_dim"),
}
"""Options of constructors that the task or the training decides."""
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


def build(config: Config, task: Task, replicas: int | None) -> ConvGNN:
    """A fresh model for a task, on the CPU and in the configuration's dtype."""
    found = entry(config.model)
    options: dict[str, Any] = {}
    if found.edges:
        options["edge_dim"] = task.edge_dim
    if found.layer.kind is not Kind.EXPLICIT and config.recipe == "paper":
        options["solve_dtype"] = None
        if not found.exact:
            options["solver"] = PAPER[found.layer.kind]
    _check_options([found.type, found.layer], config.model_options, config.model)
    options |= {"pool": task.pool, **spelled_out(config).model_options}
    if (options["pool"] is None) != (task.pool is None):
        raise ConfigError(
            f"option pool={options['pool']!r} of {config.model}, but {task.name} predicts for "
            f"{'nodes' if task.pool is None else 'graphs'}; expected "
            f"{'no such option' if task.pool is None else 'a way to pool nodes, such as mean'}"
        )
    options |= {"out_channels": task.out_channels, "replicas": replicas}
    model: ConvGNN = found.type(task.in_channels, **options)
    # A model that is trained without edge features ignores them in use, too.
    model.features.ignores_edges = task.edge_dim is not None and not found.edges
    return model.to(config.precision)


def set_on_failure(model: nn.Module, on_failure: str) -> None:
    """Set ``on_failure`` in all layers of a model."""
    for part in model.modules():
        if isinstance(part, ImplicitConv):
            part.on_failure = on_failure


def _check_options(classes: list[Any], given: Mapping[str, Any], name: str) -> None:
    """Refuse what none of these constructors takes."""
    inits = [base.__init__ for cls in classes for base in cls.__mro__ if base is not object]
    parameters = [p for init in inits for p in inspect.signature(init).parameters.values()]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {p.name for p in parameters if p.kind in named} - DECIDED
    for option in given:
        if option in DECIDED:
            raise ConfigError(f"option {option!r} of {name} is decided by the task or the training")
        if option not in known:
            raise ConfigError(f"unknown option {option!r} of {name}; {among(known, option)}")


def device_of(config: Config) -> torch.device:
    """The device of a configuration, if it is there."""
    device = torch.device(config.device)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"device={config.device!r}, and there are {count} CUDA devices, from cuda:0 on; use cpu"
        )
    return device


def at_hand(config: Config) -> Config:
    """With the CPU in place of a device that is not there."""
    try:
        device_of(config)
    except ConfigError:
        return replace(config, device="cpu")
    return config


# -- replicas --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Members:
    """The seed and the graphs of each replica."""

    seeds: list[int]  # [R]
    folds: list[int]  # [R]
    train: Tensor  # [R, G] whether replica r trains on graph g
    val: Tensor  # [R, G]
    test: Tensor  # [R, G]

    @classmethod
    def of(cls, config: Config, task: Task, replicas: int, device: torch.device) -> Members:
        """The members of a configuration."""
        held = {"validation": True} if config.validation else {}
        try:
            inspect.signature(task.splits).bind(config.folds, config.data_seed, **held)
        except TypeError as error:
            raise ConfigError(
                f"validation=True and {task.name!r}, whose splits() has no argument of that name "
                f"({error}); expected it there, or validation=False"
            ) from None
        splits = _check(task.splits(config.folds, config.data_seed, **held), task)
        for f, split in enumerate(splits):
            if not len(split.train):
                raise ConfigError(
                    f"fold {f} of {task.name!r} has no graphs to train on; expected at least one"
                )
        every = list(range(len(splits)))
        if config.fold is not None:
            if config.fold not in every:
                raise ConfigError(
                    f"fold={config.fold} of {task.name!r}; expected a fold from 0 to {every[-1]}"
                )
            every = [config.fold]
        folds = [every[r % len(every)] for r in range(replicas)]
        seeds = [config.seed + r // len(every) for r in range(replicas)]

        def member(part: str) -> Tensor:
            out = torch.zeros(replicas, len(task.graphs), dtype=torch.bool)
            for row, fold in zip(out, folds, strict=True):
                row[getattr(splits[fold], part)] = True
            return out.to(device)

        return cls(seeds, folds, member("train"), member("val"), member("test"))


def _check(splits: Sequence[Split], task: Task) -> Sequence[Split]:
    """The splits, if they hold numbers of graphs."""
    count = len(task.graphs)
    if not isinstance(splits, Sequence) or not splits:
        raise ConfigError(
            f"splits() of {task.name!r} returned {splits!r}; expected a list of at least "
            f"one hogwild.tasks.Split"
        )
    for split in splits:
        for part in ("train", "val", "test"):
            ids: Any = getattr(split, part, None)
            fine = isinstance(ids, Tensor) and ids.dim() == 1 and ids.dtype == torch.long
            if not fine or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count):
                raise ConfigError(
                    f"splits() of {task.name!r} has {part} = {ids!r}; expected the numbers of some "
                    f"of its {count} graphs, a tensor of integers [n]"
                )
    return splits


def initial(config: Config, task: Task, seeds: Sequence[int]) -> ConvGNN:
    """A model with one replica for each seed, drawn as that seed draws it alone."""
    drawn: dict[int, dict[str, Tensor]] = {}
    with torch.random.fork_rng(devices=[]):
        for seed in dict.fromkeys(seeds):
            torch.default_generator.manual_seed(seed)  # not those of GPUs
            drawn[seed] = build(config, task, None).state_dict()
        model = build(config, task, len(seeds))
    states = [drawn[seed] for seed in seeds]
    model.load_state_dict({k: torch.stack([s[k] for s in states]) for k in states[0]})
    return model


def single(config: Config, task: Task, model: ConvGNN, r: int) -> ConvGNN:
    """Replica r as a model of its own."""
    state = {k: v[r].cpu() for k, v in model.state_dict().items()}
    alone = build(config, task, None)
    alone.load_state_dict(state)
    return alone.to(next(model.parameters()).device)
