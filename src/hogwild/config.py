"""What a training run is, down to the last number: a frozen record, from TOML, flags or keywords.

Two recipes fill in what is not given. ``"default"`` is ours: AdamW at 0.005, weight decay 10⁻⁴, the
gradient norm of every replica clipped at 1, float64, standardised features, exact solves.
``"paper"`` is the paper's appendix: features as they are, Adam with weight decay, learning rate
0.002, decayed by 0.98 every 200 epochs, at most 5,000 of them, L-BFGS of 50 iterations (fixed
points: 500) at a tolerance of 10⁻⁵, converged or not. (The appendix calls a number 0.001 "α" beside
the learning rate; it is read as the weight decay.)

The command line's help is made from the fields, and must not wait for torch: this module imports
torch and NumPy where it uses them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.errors import ConfigError, among, require_positive

if TYPE_CHECKING:
    import torch

RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "epochs": 5000,
        "lr": 0.002,
        "weight_decay": 0.001,
        "decay": (0.98, 200),
        "clip": math.inf,
        "dtype": "float32",
        "standardize": False,
        "on_failure": "ignore",
    },
}
DTYPES = ("float32", "float64")
SEEDS = {"seed": 2**63, "data_seed": 2**44}
"""What torch's generators take: later replicas count up, and every epoch has a seed of its own."""
GENERAL: dict[str, Any] = {"dtype": "float64", "validate_every": 10, "log_every": 10}
"""Where neither the user nor the task says anything."""
BEFORE = {"standardize": False}
"""What runs did that were kept before there was such an option."""
UNBOUNDED = ("clip", "checkpoint_every")
"""Options that may be infinite, which JSON has no number for."""


WHAT, OPTIMISER, DATA, SOLVES, COURSE = (
    "task and model", "optimisation", "replicas and data", "solves", "course of the run",
)  # fmt: skip
"""Headings in ``hogwild train --help``."""


def _about(help: str, group: str) -> dict[str, str]:
    """One line for ``--help``, and the heading that it is listed under."""
    return {"help": help, "group": group}


def _option(default: Any, help: str, group: str) -> Any:
    """A field with its default and what the help says of it."""
    return field(default=default, metadata=_about(help, group))


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. Build it with :meth:`of`, which applies the recipe; every field explains
    itself in ``hogwild train --help``."""

    task: str = _option("", "name of the task, or FILE.py:NAME", WHAT)
    task_options: dict[str, Any] = field(
        default_factory=dict, metadata=_about("an option of the task, such as length=20", WHAT)
    )
    model: str = _option("energy-edge", "name of the model", WHAT)
    model_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=_about("an option of the model's constructor, such as hidden_channels=4", WHAT),
    )
    standardize: bool = _option(
        True, "standardise features by the graphs trained on, inside of the model", WHAT
    )
    dtype: str | None = _option(
        None, "float32 or float64; none: float64, on your own graphs as these are", WHAT
    )
    recipe: str = _option("default", "what fills in the rest: default or paper", OPTIMISER)
    epochs: int = _option(2000, "largest number of epochs", OPTIMISER)
    lr: float = _option(0.005, "learning rate of AdamW", OPTIMISER)
    weight_decay: float = _option(1e-4, "decoupled weight decay", OPTIMISER)
    decay: tuple[float, int] = _option(
        (1.0, 1), "(factor, every): decay of the learning rate", OPTIMISER
    )
    clip: float = _option(1.0, "bound on the gradient norm of each replica; inf: none", OPTIMISER)
    batch_size: int | None = _option(
        None, "graphs in a mini-batch; none: all at once, of your own graphs 16", OPTIMISER
    )
    reshuffle: bool = _option(
        True,
        "new mini-batches every epoch; false: the same ones, analysed once (twice as fast)",
        OPTIMISER,
    )
    penalty: float = _option(0.1, "weight of the contraction penalty (scarselli only)", OPTIMISER)
    replicas: int = _option(
        1, "models trained at once: folds of the first seed, then of the next", DATA
    )
    folds: int | None = _option(None, "folds of the data; none: the task's own protocol", DATA)
    validation: bool = _option(
        False,
        "hold a fold of the training graphs out, where the task's own protocol does not",
        DATA,
    )
    patience: int | None = _option(
        None, "epochs without a better validation metric until a replica stops; none: never", DATA
    )
    seed: int = _option(0, "seed of the first replicas' parameters; later ones count up", DATA)
    data_seed: int = _option(0, "seed of the splits and of the order of mini-batches", DATA)
    solver: str | None = _option(None, "name of the solver; none: the recipe's", SOLVES)
    solver_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=_about("an option of that solver, such as max_iter=50", SOLVES),
    )
    warm_start: bool = _option(
        True, "start solves from the embeddings of the previous epoch", SOLVES
    )
    on_failure: str = _option("stop", "a solve that fails: stop that replica, or ignore it", SOLVES)
    device: str = _option("cpu", "cpu, cuda, cuda:1, …", COURSE)
    validate_every: int | None = _option(
        None,
        "epochs between two looks at the validation graphs; none: 10, on your own graphs 1",
        COURSE,
    )
    log_every: int | None = _option(
        None, "epochs between two lines of the history; none: 10, on your own graphs 1", COURSE
    )
    checkpoint_every: float = _option(30.0, "seconds between two checkpoints", COURSE)

    @classmethod
    def of(cls, **given: Any) -> Config:
        """A configuration from what is given, the recipe, and the defaults, in this order.

        Raises:
            ConfigError: A key or a value that does not exist; with the closest one that does.
        """
        known = {f.name for f in fields(cls)}
        for key in given:
            if key not in known:
                raise ConfigError(f"unknown option {key!r}; {among(known, key)}")
        recipe = given.get("recipe", "default")
        if not isinstance(recipe, str) or recipe not in RECIPES:
            raise ConfigError(f"recipe={recipe!r}; {among(RECIPES, recipe)}")
        return cls(**{**RECIPES[recipe], **given})

    @classmethod
    def read(cls, path: str | Path) -> dict[str, Any]:
        """The options in a TOML file, for :meth:`of`."""
        try:
            with Path(path).open("rb") as file:
                return tomllib.load(file)
        except FileNotFoundError:
            raise ConfigError(f"there is no file {path}; expected a TOML file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{path} cannot be read as TOML: {error}") from error

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, native(getattr(self, f.name)))
        decay: Any = self.decay
        if isinstance(decay, list):  # as TOML and JSON have it
            object.__setattr__(self, "decay", tuple(decay))
        for name in ("task", "model", "recipe", "device", "on_failure"):
            self._require(name, lambda v: isinstance(v, str), "a string")
        for name in ("epochs", "replicas"):
            require_positive(name, getattr(self, name))
        for name in ("batch_size", "folds", "patience", "validate_every", "log_every"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        for name, limit in SEEDS.items():
            self._require(name, lambda v: _is(v, int) and v >= 0, "a nonnegative integer")
            self._require(name, limit.__gt__, f"an integer below {limit}")
        for name in ("lr", "clip"):
            self._require(name, lambda v: _is(v, int, float) and v > 0, "a positive number")
        for name in ("weight_decay", "penalty", "checkpoint_every"):
            self._require(name, lambda v: _is(v, int, float) and v >= 0, "a nonnegative number")
        for name in ("lr", "weight_decay", "penalty"):
            self._require(name, math.isfinite, "a finite number")
        self._require("solver", lambda v: v is None or isinstance(v, str), "a string")
        for name in ("task_options", "model_options", "solver_options"):
            self._require(name, lambda v: isinstance(v, Mapping), "a table of options")
        for name in ("warm_start", "validation", "reshuffle", "standardize"):
            self._require(name, lambda v: isinstance(v, bool), "true or false")
        wanted = "float32 or float64"
        self._require("dtype", lambda v: v is None or (isinstance(v, str) and v in DTYPES), wanted)
        self._require("on_failure", ("stop", "ignore").__contains__, "stop or ignore")
        self._require(
            "decay",
            lambda v: (
                isinstance(v, tuple)
                and len(v) == 2
                and _is(v[0], int, float)
                and 0 < v[0] <= 1
                and _is(v[1], int)
                and v[1] >= 1
            ),
            "(factor, every), a number in (0, 1] and a number of epochs, as in (0.9, 500)",
        )
        self._require("device", _runs, "cpu, cuda or cuda:1")

    def _require(self, name: str, fine: Callable[[Any], bool], expected: str) -> None:
        value = getattr(self, name)
        if not fine(value):
            raise ConfigError(f"{name}={value!r}; expected {expected}")

    def completed(self, given: Mapping[str, Any]) -> Config:
        """With what a task proposes, or else the general choice, where nothing was asked for."""
        chosen = {**GENERAL, **given}
        left = {k: v for k, v in chosen.items() if getattr(self, k) is None and v is not None}
        return replace(self, **left) if left else self

    @property
    def precision(self) -> torch.dtype:
        """Of parameters and features."""
        import torch

        return {"float32": torch.float32, "float64": torch.float64}[self.dtype or GENERAL["dtype"]]

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        factor, every = self.decay
        return self.lr * factor ** (epoch // every)

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it; :meth:`from_dict` is the inverse."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("task_options", "model_options", "solver_options"):
            out[name] = dict(out[name])
        out["decay"] = list(self.decay)
        for name in UNBOUNDED:
            out[name] = "inf" if math.isinf(out[name]) else out[name]
        return out

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Config:
        """The inverse of :meth:`as_dict`."""
        bounds = {name: float(given[name]) for name in UNBOUNDED if name in given}
        return cls.of(**{**BEFORE, **given, **bounds})


def native(value: Any) -> Any:
    """NumPy's numbers and arrays, and ranges, as Python's numbers and lists, which JSON knows."""
    import numpy as np

    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, range | list):
        return [native(v) for v in value]
    if isinstance(value, tuple):
        return tuple(native(v) for v in value)
    if isinstance(value, Mapping):
        return {k: native(v) for k, v in value.items()}
    return value


def _is(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool) and value == value


def _runs(device: str) -> bool:
    """Whether this is the name of a kind of device that training runs on."""
    import torch

    try:
        return torch.device(device).type in ("cpu", "cuda")
    except RuntimeError:
        return False
