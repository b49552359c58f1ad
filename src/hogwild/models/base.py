r"""The base classes of all models.

A model computes predictions in three stages:

.. math:: (x, \text{edges}) \;\longrightarrow\; \text{problem} \;\longrightarrow\; h
          \;\longrightarrow\; \hat y .

:meth:`Model.problem` builds the problem, :meth:`Model.embed` solves it for the embeddings h, and
:meth:`Model.read` computes predictions from the embeddings. Either a solver on one machine or the
nodes of a network (:func:`hogwild.simulate`) solve the problem.

These methods take one argument, :class:`~hogwild.graph.Inputs`. :meth:`GraphModule.forward` takes
the arguments of PyG's models, ``model(x, edge_index, edge_attr, batch)``.
"""

from __future__ import annotations

import enum
import inspect
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from torch import Tensor, nn

from hogwild.errors import AsynchronyError, among
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.validation import check_inputs, in_precision_of
from hogwild.problems.base import Problem

if TYPE_CHECKING:
    from hogwild.models.program import LayeredProblem, StackProblem

Exported: TypeAlias = "tuple[dict[str, Any], dict[str, Tensor]]"
AnyProblem: TypeAlias = "Problem | LayeredProblem | StackProblem"
"""The problem of a model: one problem, the layers of an explicit model, or a stack of problems."""


class Kind(enum.StrEnum):
    """The paper's classes of GNNs."""

    EXPLICIT = "explicit"
    """The embeddings are the output of a fixed number of layers."""
    FIXED_POINT = "fixed-point"
    """The embeddings are the fixed point of a map."""
    OPTIMISATION = "optimisation-based"
    """The embeddings minimise an energy."""


class Called(ABCMeta):
    """The metaclass of models and layers. Errors in a call name the class that was called, and not
    the base class whose constructor it inherits; :attr:`aliases` are replaced."""

    aliases: dict[str, str] = {}  # noqa: RUF012
    """Other names of keyword arguments."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of the constructor, for ``help``."""
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    if not TYPE_CHECKING:  # type checkers read __init__

        def __call__(cls, *args: Any, **given: Any) -> Any:
            return super().__call__(*args, **_checked(cls, args, given))


def _checked(cls: Any, args: Sequence[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call; raise if the arguments do not fit the constructor."""
    signature = inspect.signature(cls)
    known = signature.parameters.values()
    names, kinds = {p.name for p in known}, {p.kind for p in known}
    passes_on = inspect.Parameter.VAR_KEYWORD in kinds
    for alias, name in cls.aliases.items():
        if alias in given and alias not in names and (name in names or passes_on):
            if name in given:
                raise TypeError(
                    f"{cls.__name__} was given {alias}={given[alias]!r} and "
                    f"{name}={given[name]!r}, which are two names of one argument; expected one of "
                    f"them"
                )
            given[name] = given.pop(alias)
    places = [p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(places) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise TypeError(_by_name(cls, places, args[len(places) :]))
    if not passes_on:
        refuse_unknown(cls, given, names)
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None
    return given


def _by_name(cls: Any, places: list[str], extra: Sequence[Any]) -> str:
    """What to write where too many arguments were given by position, as PyG's classes take them."""
    names = ["out_channels"]
    takes = inspect.signature(cls).parameters.values()
    has_hidden = any(p.name == "hidden_channels" or p.kind is p.VAR_KEYWORD for p in takes)
    if places == ["in_channels"] and not cls.aliases and has_hidden:
        names = ["hidden_channels", *["num_layers"] * (len(extra) > 2), "out_channels"]
    names = [name for name in names if cls.aliases.get(name, name) not in places]
    pairs = [f"{name}={value!r}" for name, value in zip(names, extra, strict=False)]
    left = [f"{name}=..." for name in names[len(extra) :]]
    return (
        f"{cls.__name__} takes {' and '.join(places) or 'nothing'} by position, and was given "
        f"{', '.join(map(repr, extra))}, too; expected the rest by name, such as "
        f"{cls.__name__}({', '.join([*places, *pairs, *left])})"
    )


def portable(act: Any, known: Mapping[str, Any]) -> str:
    """The name of an activation that robots have; one of the user's own may have the same name."""
    function = getattr(act.value, "func", act.value)  # of a leaky ReLU with its slope
    if act.name not in known or known[act.name].value is not function:
        raise AsynchronyError(
            f"act={act.name!r} is an activation of your own, which a robot does not have; expected "
            f"one of {', '.join(known)}"
        )
    return str(act.name)


def keywords(cls: type, top: type) -> set[str]:
    """Names of the keyword-only arguments of a class and its base classes below ``top``."""
    below = cls.__mro__[: cls.__mro__.index(top)]
    parameters = [p for base in below for p in inspect.signature(base).parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def refuse_unknown(cls: type, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an argument that a constructor would pass on is not one of the known arguments."""
    for name in given:
        aliases = getattr(cls, "aliases", {}).items()
        names = {*known, *(alias for alias, of in aliases if of in set(known))}
        if name not in names:
            raise TypeError(f"{cls.__name__} has no argument {name!r}; {among(names, name)}")


class GraphModule(nn.Module, metaclass=Called):
    """A module that takes the arguments of PyG's models.

    Attributes:
        kind: The module's class in the paper.
        replicas: ``None``, or the number R of independent parameter sets that are evaluated side
            by side.
    """

    kind: Kind
    replicas: int | None
    aliases: ClassVar[dict[str, str]] = {}

    def accept(self, inputs: Inputs) -> Inputs:
        """The tensors of the data (:meth:`Inputs.of <hogwild.Inputs.of>`), with features of a lower
        precision in the dtype of the parameters."""
        return in_precision_of(self, Inputs.of(inputs))

    @abstractmethod
    def problem(self, inputs: Inputs) -> AnyProblem:
        """The problem that these inputs pose, attached to the autograd graph."""

    @abstractmethod
    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The embeddings [N, k] or [R, N, k], with diagnostics for every graph; differentiable.

        Args:
            inputs: Features and edges; a PyG ``Data`` or ``Batch`` works, too.
            h0: The starting point of the solve, for instance the embeddings of the previous epoch;
                zero by default. It changes the number of iterations, but not the answer. No
                gradient flows into it.
        """

    def solver_path(self, inputs: Inputs) -> list[str]:
        """How the embeddings of every level are computed for these inputs: ``"compiled (…)"``, or
        ``"torch: …"`` with the reason why the compiled solve does not apply."""
        return [f"torch: {type(self).__name__} solves nothing"]

    @abstractmethod
    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """The output of :meth:`forward` for these inputs."""

    def require_asynchronous(self, inputs: Inputs) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError`, with the reason, unless every node can
        run this model with information from its neighbours alone."""

    def forward(
        self,
        x: Tensor,
        edge_index: Any = None,  # if it is missing, the error says what is expected
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        h0: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Compute predictions (a model) or embeddings (a convolution).

        The arguments are those of :class:`~hogwild.Inputs` and, for a solve, the starting point
        ``h0`` of :meth:`embed`.
        """
        options: dict[str, Any] = {"edge_weight": edge_weight, "batch_size": batch_size}
        return self.predict(Inputs(x, edge_index, edge_attr, batch, **options), h0)


class Conv(GraphModule):
    """A convolution: it maps features to embeddings and exchanges information between neighbours.

    A convolution can be used like PyG's layers. :class:`hogwild.GNN` combines it with a readout.

    Attributes:
        in_channels: Width p of the node features.
        hidden_channels: Width k of the embeddings; also called ``out_channels``, as in PyG's
            layers.
        edge_dim: Width r of the edge features; ``None`` if the layer reads no edge features.
        num_layers: Number of layers.
        takes_edge_attr: Whether the convolution can be built with an ``edge_dim``.
        takes_edge_weight: Whether the convolution reads edge weights.
        validate: Whether the *values* of the inputs are also checked.
    """

    in_channels: int
    hidden_channels: int
    edge_dim: int | None = None
    num_layers: int = 1
    takes_edge_attr: bool = False
    takes_edge_weight: bool = True
    validate: bool
    aliases: ClassVar[dict[str, str]] = {"out_channels": "hidden_channels"}

    @property
    def label(self) -> str:
        """The name of the convolution in errors."""
        return type(self).__name__

    @property
    def out_channels(self) -> int:
        """Width of the embeddings."""
        return self.hidden_channels

    def exported(self) -> Exported:
        """What a node without torch is told of the layer: a configuration, and tensors that are not
        in the ``state_dict``."""
        raise AsynchronyError(
            f"a {type(self).__name__} cannot run without torch; expected a SoftEnergyConv, "
            f"EnergyConv, GSDConv, IGNNConv or EIGNNConv (a model of one layer, num_layers=1), or "
            f"the layers of a GCN"
        )

    def reset_parameters(self) -> None:
        """Draw fresh parameters: those of all parts."""
        for part in self.children():
            part.reset_parameters()  # type: ignore[operator]

    def __repr__(self) -> str:
        """One line: the networks are found by their names."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        return self.embed(inputs, h0).value

    def graph(self, inputs: Inputs) -> Graph:
        """Check the inputs and return their graph."""
        inputs = Inputs.of(inputs)
        check_inputs(inputs, self)
        return inputs.graph(validate=self.validate)


class Model(GraphModule):
    """A model: it maps features to predictions."""

    @abstractmethod
    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Predictions from embeddings [(R,) N, k]: [(R,) N, out] for nodes, or [(R,) G, out] for
        graphs."""

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        inputs = Inputs.of(inputs)
        return self.read(self.embed(inputs, h0).value, inputs)
