r"""Asynchronous runs of the user's own trained GNN.

``hogwild.wrap(model)`` does not change the model. To update some nodes, the wrapper calls the
model's own ``forward`` on the *stars* of these nodes: the nodes, and a leaf for every edge into
them. At every call of a convolution the inputs of the leaves are replaced by what the nodes last
heard,

.. math::
    z_i^\ell = \operatorname{conv}^\ell\bigl(v_i^\ell, \{v_j^\ell, e_{ij} \mid
    j \in \mathcal N(i)\}\bigr), \qquad
    v_i^{\ell + 1} = \text{the forward between the calls, applied to } x_i, z_i^0, \dots, z_i^\ell.

Activations, norms, residuals and jumping knowledge between convolutions are the user's code. A node
sends :math:`v_i^\ell`, the input of the ℓ-th call, as its value of layer ℓ. Its final state holds
the results of all its calls. For predictions, the forward runs once on the whole graph with these
results in place of the convolutions, so that the user's head or pooling is used, too.

Before a run, :mod:`hogwild.models.trial` tests on the given graph that this is exact.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind, Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv
from hogwild.models.layered import LayeredGNN
from hogwild.models.locality import AllEdges
from hogwild.models.replayed import Fields, ForwardSignature, Recorded, WrappedProblem, convolutions
from hogwild.models.trial import Trial
from hogwild.models.validation import require_finite, uncompiled

Head = Callable[[Any, Tensor], Tensor]
"""A function of the forward's output and the graph of each node [N] that returns predictions."""


def wrap(
    model: nn.Module,
    head: Head | None = None,
    *,
    arguments: Sequence[str] | Mapping[str, str] | None = None,
) -> WrappedGNN:
    """Wrap a trained GNN for :func:`hogwild.simulate` and similar functions. The model does not
    change.

    .. code-block:: python

        model = torch_geometric.nn.GCN(3, 16, num_layers=5, out_channels=1)
        ...  # train it, or load its parameters
        run = hogwild.simulate(hogwild.wrap(model), data)  # simulate(model, data) does the same
        run.predictions  # those of model(data.x, data.edge_index)

    Args:
        model: Any module that exchanges information between nodes only in
            ``torch_geometric.nn.MessagePassing`` convolutions of one hop. A model that predicts for
            graphs may pool over the nodes after its last convolution.
        head: A function or module ``head(out, batch)`` that computes predictions from the output of
            the forward and the graph of each node [N], if the model does not do so itself.
        arguments: Names of the forward's arguments that are taken from the data; or a mapping from
            such names to attributes of the data, ``{"edge_weight": "edge_attr"}``. By default the
            forward gets every argument for which the data has an attribute. Use
            ``["x", "edge_index"]`` if the data has edge features, but the model was trained without
            them. A forward with a single argument, ``forward(data)``, gets all of the data.

    Returns:
        The wrapped model. A model that is already wrapped is returned unchanged.
    """
    if isinstance(model, WrappedGNN) and head is None and arguments is None:
        return model
    return WrappedGNN(model, head, arguments=arguments)


class WrappedGNN(Model):
    """The wrapper of a trained GNN, built by :func:`hogwild.wrap`.

    Its forward is that of the user's model, followed by the head if there is one.
    """

    kind = Kind.EXPLICIT
    replicas: int | None = None

    def __init__(
        self,
        model: nn.Module,
        head: Head | None = None,
        *,
        arguments: Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        model = uncompiled(model)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module whose message "
                f"passing is done by torch_geometric.nn.MessagePassing convolutions"
            )
        if isinstance(model, WrappedGNN):
            raise ConfigError(
                f"model is wrapped already, around {model.name}; expected that model. "
                f"wrap(model.model, head=..., arguments=...) changes the head or the arguments"
            )
        _refuse_the_librarys_own(model)
        if not convolutions(model):
            raise ConfigError(
                f"model is a {type(model).__name__} and holds no "
                f"torch_geometric.nn.MessagePassing convolution, the only modules that hogwild can "
                f"run for single nodes; expected a model of hogwild, or a model whose aggregation "
                f"over neighbours is in PyG's convolutions or in your own MessagePassing"
            )
        if head is not None and not callable(head):
            raise ConfigError(
                f"head is a {type(head).__name__}; expected a function or module called as "
                f"head(out, batch)"
            )
        self.model = model
        self.head = head
        self.signature = ForwardSignature.of(model, arguments)

    @property
    def name(self) -> str:
        """Name of the user's class."""
        return type(self.model).__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's model, and the head if there is one."""
        out = self.model(*args, **kwargs)
        if self.head is None:
            return out
        given = inspect.signature(self.model.forward).bind(*args, **kwargs).arguments
        first: Any = args[0] if args else given.get("x", given.get("data"))
        batch = kwargs.get("batch", given.get("batch", getattr(first, "batch", None)))
        if batch is None:
            x = first if isinstance(first, Tensor) else first.x
            batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
        return self.head(out, batch)

    def extra_repr(self) -> str:
        return f"arguments={list(self.signature.names)}"

    # -- the model protocol ------------------------------------------------------------------------

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """Predictions of the user's forward: [N, out] for nodes, or [G, out] for graphs."""
        fields = Fields.of(Inputs.of(inputs))
        return self.finish(self.signature.ask(self.model, fields), fields)

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Predictions [N, out] or [G, out] of the user's forward, with the results ``h``
        [N, channels] in place of the convolutions."""
        fields = Fields.of(inputs)
        found = Recorded.of(self, fields)
        parts = zip(h.split(found.results, 1), found.shapes, strict=True)
        z = [part.reshape(-1, *shape) for part, shape in parts]
        out: Tensor = Recorded.of(self, fields, replace(found, z=z)).out
        return out

    def finish(self, out: Any, fields: Fields) -> Tensor:
        """Predictions [rows, out] from the output of the user's forward."""
        out = out if self.head is None else self.head(out, fields.nodes["batch"])
        if not isinstance(out, Tensor) or out.dim() not in (1, 2):
            what = f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"{self.name} gives {what}; expected one tensor [nodes, out] or [graphs, out]: "
                f"convert the output with wrap(model, head=lambda out, batch: ...)"
            )
        if out.dim() == 1:
            out = out.unsqueeze(-1 if out.numel() in (fields.rows, fields.num_graphs) else 0)
        return out

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The results of all convolutions in the user's forward, side by side, [N, channels]."""
        inputs = Inputs.of(inputs)
        found = Recorded.of(self, Fields.of(inputs))
        h = torch.cat([z.flatten(1) for z in found.z], 1)
        return Solution.exact(h, inputs.num_graphs, len(found.z))

    @torch.no_grad()
    def problem(self, inputs: Inputs) -> WrappedProblem:
        """The convolutions, one node at a time.

        Raises:
            AsynchronyError: The model reads more than a node and its neighbours.
        """
        if any(part.training for part in self.model.modules()):
            raise AsynchronyError(
                f"{self.name} is in training mode, in which a BatchNorm reads all nodes and "
                f"dropout is random; call model.eval() before running it asynchronously"
            )
        inputs = Inputs.of(inputs)
        require_finite("x", inputs.x)
        require_finite("edge_attr", inputs.edge_attr)
        fields = Fields.of(inputs)
        graph = inputs.graph()
        found = Recorded.of(self, fields)
        problem = WrappedProblem(
            graph, 1, sum(found.results), len(found.z), (*found.widths, found.results[-1]),
            self, fields, AllEdges(graph, inputs.edge_index, None, None), found,
        )  # fmt: skip
        Trial(problem).run()
        return problem


def _refuse_the_librarys_own(model: nn.Module) -> None:
    """Raise if the model is or contains a model or an implicit layer of this library, which run
    asynchronously without a wrapper."""
    known, outer = (ConvGNN, ImplicitConv), type(model).__name__
    path, own = next(((p, m) for p, m in model.named_modules() if isinstance(m, known)), ("", None))
    if own is None or (convolutions(model) and not isinstance(own, LayeredGNN)):
        return
    name = type(own).__name__
    if not path and not isinstance(own, ImplicitConv):
        raise ConfigError(
            f"model is a {name} of hogwild; expected a model trained elsewhere. "
            f"hogwild.simulate, robustness and certify take a {name} as it is"
        )
    if isinstance(own, ImplicitConv):
        what = "a model with a readout, such as hogwild.EnergyGNN, in its place"
    else:
        what = f"the {name} itself, as in hogwild.simulate(model.{path}, data)"
    where = f"a {name} of hogwild" if not path else f"a {outer} around {path}, a {name} of hogwild"
    raise ConfigError(
        f"model is {where}, which has its own rules and cannot be wrapped; expected {what}. "
        f"Replace the modules after the embeddings by the readout of such a model: "
        f"readout=(16, 16) is an MLP with these hidden widths, and pool='mean' predicts for graphs"
    )


def check_model(model: object) -> ConvGNN:
    """The model, or the original of a compiled model; raise unless it is a model of the library."""
    model = uncompiled(model)
    if not isinstance(model, ConvGNN):
        raise ConfigError(
            f"model is {_kind(model)}; expected a model of hogwild. "
            f"hogwild.LayeredGNN(layers, in_channels, out_channels=...) builds one from PyG's "
            f"layers. hogwild.simulate, robustness and certify take a GNN trained elsewhere as it "
            f"is"
        )
    return model


def runnable(model: object) -> Model:
    """A model that can run asynchronously. Models of the library are returned unchanged, all others
    are wrapped (:func:`hogwild.wrap`). A compiled model is replaced by its original."""
    model = uncompiled(model)
    if isinstance(model, Model):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is {_kind(model)}; expected a model of hogwild, or a trained GNN of "
            f"PyG's convolutions (hogwild.wrap)"
        )
    return WrappedGNN(model)


def _kind(model: object) -> str:
    return f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
