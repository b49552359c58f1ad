r"""What a model is.

A model reads a graph in three stages:

.. math:: (x, \text{edges}) \;\longrightarrow\; \text{problem} \;\longrightarrow\; h
          \;\longrightarrow\; \hat y .

:meth:`Model.problem` poses the problem, :meth:`Model.embed` solves it for the embeddings h, and
:meth:`Model.read` reads predictions from them. A solver solves the problem on one machine; the
nodes of a network solve it by themselves (:func:`hogwild.simulate`).

Inside the library every method takes one argument, :class:`~hogwild.graph.Inputs`. PyG's call,
``model(x, edge_index, edge_attr, batch)``, is written once: :meth:`GraphModule.forward`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.layers import LayeredProblem
from hogwild.models.levels import StackProblem
from hogwild.models.validation import check_inputs
from hogwild.problems.base import Problem

AnyProblem = Problem | LayeredProblem | StackProblem
"""What a model poses: one problem, the layers of an explicit model, or a stack of problems."""


class Kind(enum.StrEnum):
    """The paper's taxonomy of GNNs, by what defines the embeddings."""

    EXPLICIT = "explicit"
    """A fixed number of layers."""
    FIXED_POINT = "fixed-point"
    """The fixed point of an update."""
    OPTIMISATION = "optimisation-based"
    """The minimiser of an energy."""


class GraphModule(nn.Module, ABC):
    """A module that is called as PyG's models are.

    Attributes:
        kind: Its place in the paper's taxonomy.
        replicas: ``None``, or the number R of independent parameter sets that are evaluated side
            by side.
    """

    kind: Kind
    replicas: int | None

    @abstractmethod
    def problem(self, inputs: Inputs) -> AnyProblem:
        """The problem that these inputs pose, attached to the autograd graph."""

    @abstractmethod
    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The embeddings [N, k] or [R, N, k], with diagnostics for every graph; differentiable.

        Args:
            inputs: What the model reads; a PyG ``Data`` or ``Batch`` will do.
            h0: Where the solve starts, for instance the embeddings of the previous epoch; zero by
                default. The start changes the number of iterations, not the answer. No gradient
                flows into the start.
        """

    def solutions(self, inputs: Inputs, h0: Tensor | None = None) -> list[Solution]:
        """The embeddings of every layer that is solved, from the features up."""
        return [self.embed(inputs, h0)]

    @abstractmethod
    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """What :meth:`forward` returns."""

    def require_asynchronous(self, inputs: Inputs) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError`, with the reason, unless every node can
        run this model by talking to its neighbours alone."""

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
        """Call the module as PyG's modules are called.

        Args:
            x: Node features, [N, p] or [R, N, p].
            edge_index: Senders and receivers, [2, E].
            edge_attr: Edge features, [E, r].
            batch: The graph of every node, [N].
            edge_weight: Nonnegative weights, [E].
            h0: Where the solve starts, [N, k] or [R, N, k].
            batch_size: Number of graphs; by default it is read from ``batch``.
        """
        options: dict[str, Any] = {"edge_weight": edge_weight, "batch_size": batch_size}
        return self.predict(Inputs(x, edge_index, edge_attr, batch, **options), h0)


class Conv(GraphModule):
    """From features to embeddings: the part of a model that talks to neighbours.

    A convolution is a layer among PyG's layers; with a readout it is a model
    (:class:`hogwild.GNN`).

    Attributes:
        in_channels: Width p of the node features.
        hidden_channels: Width k of the embeddings.
        edge_dim: Width r of the edge features; ``None``: the layer reads no edge features.
        validate: Whether the *values* of the inputs are checked, too.
    """

    in_channels: int
    hidden_channels: int
    edge_dim: int | None = None
    validate: bool

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        return self.embed(inputs, h0).value

    def graph(self, inputs: Inputs) -> Graph:
        """The graph of these inputs, after the inputs were checked."""
        check_inputs(inputs, self)
        return inputs.graph(validate=self.validate)


class Model(GraphModule):
    """From features to predictions: what is trained, certified and run asynchronously."""

    @abstractmethod
    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Predictions from embeddings [(R,) N, k] of these inputs, [(R,) N, out], or of graphs
        [(R,) G, out]."""

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        return self.read(self.embed(inputs, h0).value, inputs)
