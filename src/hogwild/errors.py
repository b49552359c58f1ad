"""The errors that Hogwild raises, and checks that raise them.

Every message says what was given, what was expected and what to do. Bad input raises before any
state is changed. A solve that does not converge is never silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor


class HogwildError(Exception):
    """Base class of every error raised by this library."""


class ConfigError(HogwildError, ValueError):
    """A constructor or an option was given a value that it does not take."""


class InputError(HogwildError, ValueError):
    """Base class of errors about the tensors handed to a model."""


class FeatureError(InputError):
    """Node or edge features are missing, unexpected, of the wrong width, or not finite."""


class GraphError(InputError):
    """``edge_index``, ``edge_weight`` or ``batch`` does not describe a valid batch of graphs."""


class DeviceError(InputError):
    """Tensors live on different devices."""


class DTypeError(InputError):
    """Tensors have a dtype the model does not take, or several dtypes are mixed."""


class DataError(HogwildError, FileNotFoundError):
    """A data set's files are not where they were looked for, or are not what they should be."""


class AsynchronyError(HogwildError, ValueError):
    """This model on this graph cannot be run asynchronously; the message says why."""


class TraceError(HogwildError, ValueError):
    """A recorded trace is damaged, ends too early, or belongs to another graph."""


class UnsupportedError(HogwildError, RuntimeError):
    """Torch was told to trace, transform or differentiate a solve in a way that a solve does not
    support; the message names another way."""


class ConvergenceError(HogwildError, RuntimeError):
    """A forward or adjoint solve missed its tolerance; names the graphs, residuals and causes."""


class ScenarioError(InputError):
    """A scenario cannot be: time goes back, widths change, or an edge leads nowhere; says when."""


class ConvergenceWarning(UserWarning):
    """A solve missed its tolerance, with ``on_failure="warn"``.

    Attributes:
        failed: Which problems failed, [G] or [R, G].
    """

    def __init__(self, message: str, failed: Tensor | None = None) -> None:
        super().__init__(message)
        self.failed = failed


class CapacityError(HogwildError, MemoryError):
    """A computation would need more memory than there is; raised before it starts."""


class CheckpointError(HogwildError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class FeatureWarning(UserWarning):
    """A model that was never standardised meets large features in training."""


class Rule(NamedTuple):
    """Which values an option takes, in code and in words."""

    fine: Callable[[Any], bool]
    expected: str

    def check(self, name: str, value: object) -> None:
        """Raise :class:`ConfigError` unless the value is fine."""
        if not self.fine(value):
            raise ConfigError(f"{name}={value!r}; expected {self.expected}")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy; bools are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number of Python or NumPy; bools are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_integer(name: str, value: object, least: int | None = None, why: str = "") -> int:
    """``value`` as Python's int; :class:`ConfigError` unless it is an integer ≥ ``least``."""
    if not is_integer(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r}; expected an integer{bound}{why}")
    return int(value)


def require_positive(name: str, value: object) -> int:
    """``value`` as Python's int; :class:`ConfigError` unless it is a positive integer."""
    if not is_integer(value) or value < 1:
        raise ConfigError(f"{name}={value!r}; expected a positive integer")
    return int(value)


def require_all_positive(**values: object) -> None:
    """:class:`ConfigError` unless all values are positive integers, sequences of them, or
    ``None``."""
    for name, value in values.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is not None:
                require_positive(name, each)


def require_widths(name: str, value: object, alternative: str = "") -> tuple[int, ...]:
    """``value`` as a tuple; :class:`ConfigError` unless it is a sequence of positive integers."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name}={value!r}; expected hidden widths such as (4, 4){alternative}")
    for width in value:
        if not is_integer(width) or width < 1:
            raise ConfigError(f"{name}={value!r}; expected positive integers such as (4, 4)")
    return tuple(int(width) for width in value)


ON_FAILURE = ("raise", "warn", "ignore")
"""What to do when a solve misses its tolerance."""


def require_probability(name: str, value: object) -> float:
    """A probability below one, as of dropout."""
    if not is_number(value) or not 0.0 <= value < 1.0:
        raise ConfigError(f"{name}={value!r}; expected a probability, from 0 to below 1")
    return float(value)


def require_one_of(known: Iterable[str], **given: object) -> None:
    """:class:`ConfigError` unless every value is one of the known ones."""
    names = tuple(known)
    for name, value in given.items():
        if value not in names:
            raise ConfigError(f"{name}={value!r}; expected one of {', '.join(names)}")


def among(known: Iterable[str], given: object) -> str:
    """The end of a message about an unknown name: the closest known one, and all of them."""
    names = sorted(known)
    close = get_close_matches(str(given), names, n=1)
    hint = f"did you mean {close[0]!r}? Expected" if close else "expected"
    return f"{hint} one of: {', '.join(names)}"
