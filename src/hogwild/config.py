"""The configuration of a training run: a frozen record, from TOML, flags or keywords.

Two recipes fill in options that are not given. ``"default"`` is ours: AdamW at 0.005, weight decay
10⁻⁴, the gradient norm of every replica clipped at 1, float64, standardised features, exact solves.
``"paper"`` is the paper's appendix: features as they are, Adam with weight decay, learning rate
0.002, decayed by 0.98 every 200 epochs, at most 5,000 of them, L-BFGS of 50 iterations (fixed
points: 500) at a tolerance of 10⁻⁵, converged or not. (The appendix mentions "α" = 0.001 beside the
learning rate; we read it as the weight decay.)

The command line's help is made from the fields, and must not wait for torch: this module imports
torch and NumPy where it uses them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.errors import ON_FAILURE, ConfigError, Rule, among, is_integer, is_number

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
"""Bounds on seeds: torch's generators take 64 bits. Later replicas count up, and every epoch has a
seed of its own."""
GENERAL: dict[str, Any] = {"dtype": "float64", "validate_every": 10, "log_every": 10}
"""Options for which neither the user nor the task gives a value."""
GONE = ("deadline", "deadline_options", "solver", "solver_options")
"""Options of earlier versions: a model that was trained with them loads and runs."""
UNBOUNDED = ("clip", "checkpoint_every")
"""Options that may be infinite, which JSON has no number for."""


def _is_decay(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    factor, every = value
    return is_number(factor) and 0 < factor <= 1 and is_integer(every) and every >= 1


def _is_device(value: object) -> bool:
    """Whether this is the name of a kind of device that training runs on."""
    import torch

    try:
        return torch.device(str(value)).type in ("cpu", "cuda")
    except RuntimeError:
        return False


BY_TYPE = {
    "str": Rule(lambda v: isinstance(v, str), "a string"),
    "bool": Rule(lambda v: isinstance(v, bool), "true or false"),
    "int": Rule(lambda v: is_integer(v) and v > 0, "a positive integer"),
    "dict[str, Any]": Rule(lambda v: isinstance(v, Mapping), "a table of options"),
}
"""The rule of a field that has no other, by its type."""
NATURAL = Rule(lambda v: is_integer(v) and v >= 0, "a nonnegative integer")
POSITIVE = Rule(lambda v: is_number(v) and v > 0, "a positive number")
AMOUNT = Rule(lambda v: is_number(v) and v >= 0, "a nonnegative number")
FINITE = Rule(math.isfinite, "a finite number")
PRECISION = Rule(lambda v: v in DTYPES, "float32 or float64")
FAILURE = Rule(lambda v: v in ON_FAILURE, ", ".join(ON_FAILURE))
DECAY = Rule(
    _is_decay, "(factor, every), a number in (0, 1] and a number of epochs, as in (0.9, 500)"
)
SEED, DATA_SEED = (Rule(most.__gt__, f"an integer below {most}") for most in SEEDS.values())
DEVICE = Rule(_is_device, "cpu, cuda or cuda:1")

WHAT, OPTIMISER, DATA, SOLVES, COURSE = (
    "task and model", "optimisation", "replicas and data", "solves", "course of the run",
)  # fmt: skip
"""Headings in ``hogwild train --help``."""


def _option(default: Any, help: str, group: str, *rules: Rule) -> Any:
    """A field: its default, its line of help, its heading, and rules other than that of its type.
    ``None`` is allowed where it is the default."""
    metadata = {"help": help, "group": group, "rules": rules}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. Build it with :meth:`of`, which applies the recipe. ``hogwild train --help``
    explains every field."""

    task: str = _option("", "name of the task, or FILE.py:NAME", WHAT)
    task_options: dict[str, Any] = _option({}, "an option of the task, such as length=20", WHAT)
    model: str = _option("energy-edge", "name of the model", WHAT)
    model_options: dict[str, Any] = _option(
        {}, "an option of the model's constructor, such as hidden_channels=4", WHAT
    )
    standardize: bool = _option(
        True, "standardise features by the graphs trained on, inside of the model", WHAT
    )
    dtype: str | None = _option(
        None, "float32 or float64; none: float64, on your own graphs as these are", WHAT, PRECISION
    )
    recipe: str = _option("default", "what fills in the rest: default or paper", OPTIMISER)
    epochs: int = _option(2000, "largest number of epochs", OPTIMISER)
    lr: float = _option(0.005, "learning rate of AdamW", OPTIMISER, POSITIVE, FINITE)
    weight_decay: float = _option(1e-4, "decoupled weight decay", OPTIMISER, AMOUNT, FINITE)
    decay: tuple[float, int] = _option(
        (1.0, 1), "(factor, every): decay of the learning rate", OPTIMISER, DECAY
    )
    clip: float = _option(
        1.0, "bound on the gradient norm of each replica; inf: none", OPTIMISER, POSITIVE
    )
    batch_size: int | None = _option(
        None, "graphs in a mini-batch; none: all at once, of your own graphs 16", OPTIMISER
    )
    reshuffle: bool = _option(
        True,
        "new mini-batches every epoch; false: the same ones, analysed once (twice as fast)",
        OPTIMISER,
    )
    penalty: float = _option(
        0.1, "weight of the contraction penalty (scarselli only)", OPTIMISER, AMOUNT, FINITE
    )
    replicas: int = _option(
        1, "models trained at once: folds of the first seed, then of the next", DATA
    )
    folds: int | None = _option(None, "folds of the data; none: the task's own protocol", DATA)
    fold: int | None = _option(
        None, "the one fold of all replicas, which then differ by their seeds; none: all", DATA,
        NATURAL,
    )  # fmt: skip
    validation: bool = _option(
        False,
        "hold a fold of the training graphs out, where the task's own protocol does not",
        DATA,
    )
    patience: int | None = _option(
        None, "epochs without a better validation metric until a replica stops; none: never", DATA
    )
    seed: int = _option(
        0, "seed of the first replicas' parameters; later ones count up", DATA, NATURAL, SEED
    )
    data_seed: int = _option(
        0, "seed of the splits and of the order of mini-batches", DATA, NATURAL, DATA_SEED
    )
    warm_start: bool = _option(
        True, "start solves from the embeddings of the previous epoch", SOLVES
    )
    on_failure: str = _option(
        "raise", "a solve that fails: raise (stop that replica), warn, or ignore", SOLVES, FAILURE
    )
    device: str = _option("cpu", "cpu, cuda, cuda:1, …", COURSE, DEVICE)
    validate_every: int | None = _option(
        None,
        "epochs between two looks at the validation graphs; none: 10, on your own graphs 1",
        COURSE,
    )
    log_every: int | None = _option(
        None, "epochs between two lines of the history; none: 10, on your own graphs 1", COURSE
    )
    checkpoint_every: float = _option(30.0, "seconds between two checkpoints", COURSE, AMOUNT)

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
            value = native(getattr(self, f.name))
            if f.name == "decay" and isinstance(value, list):  # from TOML or JSON
                value = tuple(value)
            object.__setattr__(self, f.name, value)
            if value is not None or f.default is not None:
                kind = str(f.type).removesuffix(" | None")
                for rule in f.metadata["rules"] or (BY_TYPE[kind],):
                    rule.check(f.name, value)

    def completed(self, given: Mapping[str, Any]) -> Config:
        """With the task's defaults, or else the general ones, for options that are ``None``."""
        chosen = {**GENERAL, **given}
        left = {k: v for k, v in chosen.items() if getattr(self, k) is None and v is not None}
        return replace(self, **left) if left else self

    @property
    def precision(self) -> torch.dtype:
        """The dtype of parameters and features."""
        import torch

        return {"float32": torch.float32, "float64": torch.float64}[self.dtype or GENERAL["dtype"]]

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        factor, every = self.decay
        return self.lr * factor ** (epoch // every)

    def as_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold; :meth:`from_dict` is the inverse."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("task_options", "model_options"):
            out[name] = dict(out[name])
        out["decay"] = list(self.decay)
        for name in UNBOUNDED:
            out[name] = "inf" if math.isinf(out[name]) else out[name]
        return out

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Config:
        """The inverse of :meth:`as_dict`."""
        bounds = {name: float(given[name]) for name in UNBOUNDED if name in given}
        return cls.of(**{k: v for k, v in given.items() if k not in GONE} | bounds)


def native(value: Any) -> Any:
    """NumPy's numbers and arrays, and ranges, as Python's numbers and lists, for JSON."""
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
