r"""A trained GNN as it is, asynchronously: the user's own module, parameters and forward.

``hogwild.wrap(model)`` adds nothing to the model and changes nothing in it. To let some nodes run
on their own, the model's own ``forward`` is called on these nodes' *stars*: the nodes, and a leaf
for every edge into them. At every call of a convolution the leaves' inputs are replaced by what was
last heard of them,

.. math::
    z_i^\ell = \operatorname{conv}^\ell\bigl(v_i^\ell, \{v_j^\ell, e_{ij} \mid
    j \in \mathcal N(i)\}\bigr), \qquad
    v_i^{\ell + 1} = \text{whatever the forward makes of } x_i, z_i^0, \dots, z_i^\ell,

so that activations, norms, residuals and jumping knowledge between convolutions run as they were
written, row by row. What nodes tell their neighbours of layer ℓ is :math:`v_i^\ell`, the input of
the ℓ-th call; what a node ends with are the results of its calls. The prediction is the model's own
forward once more, with these results put in the place of the convolutions: a head, or a pooling
over the graph after the last convolution, is the user's.

Whether this is right is tried before anything runs, on the graph at hand. Two calls of the forward
must agree. Evaluated on stars, every input and every result must be what it is in the forward on
the whole graph. With other features and other results at some nodes, the inputs :math:`v_i^\ell` of
all other nodes must stay what they are, from :math:`v_i^0` on, and so must their predictions where
the model predicts for nodes. Where an input, a result or a prediction differs, nodes meet outside
of the convolutions, and the refusal names the module in which they do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import AsynchronyError, ConfigError, FeatureError
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind, Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.implicit import ImplicitConv
from hogwild.models.layered import ExplicitGNN
from hogwild.models.locality import AllEdges
from hogwild.models.mode import uncompiled
from hogwild.models.wrapping.fields import Door, Fields
from hogwild.models.wrapping.problem import WrappedProblem
from hogwild.models.wrapping.recorded import Recorded
from hogwild.models.wrapping.tap import convolutions
from hogwild.models.wrapping.trial import Trial

Head = Callable[[Any, Tensor], Tensor]
"""From what the model's forward gives, and the graph of each node [N], to predictions."""


def wrap(
    model: nn.Module,
    head: Head | None = None,
    *,
    arguments: Sequence[str] | Mapping[str, str] | None = None,
) -> WrappedGNN:
    """A trained GNN, ready for :func:`hogwild.simulate` and its like; the model stays as it is.

    .. code-block:: python

        model = torch_geometric.nn.GCN(3, 16, num_layers=5, out_channels=1)
        ...  # train it, or load its parameters
        run = hogwild.simulate(hogwild.wrap(model), data)  # simulate(model, data) does the same
        run.predictions  # those of model(data.x, data.edge_index)

    Args:
        model: Any module whose message passing is done by ``torch_geometric.nn.MessagePassing``
            convolutions of one hop: PyG's models, or one's own. Nodes may meet in convolutions
            only. A model of graphs may pool over the graph after its last convolution.
        head: A function, or a module, of (what the forward gives, the graph of each node [N]) to
            predictions, where the model does not hold its head itself.
        arguments: Names of the forward's arguments that are taken from the data; or a mapping from
            such names to attributes of the data, ``{"edge_weight": "edge_attr"}``. By default every
            argument that the data has an attribute for: say ``["x", "edge_index"]`` where the data
            has edge features that the model was trained without. A forward of a single argument,
            ``forward(data)``, gets all of the data.

    Returns:
        The wrapped model; one that is wrapped already is returned as it is.
    """
    if isinstance(model, WrappedGNN) and head is None and arguments is None:
        return model
    return WrappedGNN(model, head, arguments=arguments)


class WrappedGNN(Model):
    """A trained GNN of the user's and nothing else; made by :func:`hogwild.wrap`.

    Called, it is the user's model (and the head, if one was given): same arguments, same result.
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
        model = uncompiled(model)  # type: ignore[assignment]
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module whose message "
                f"passing is done by torch_geometric.nn.MessagePassing convolutions"
            )
        if isinstance(model, WrappedGNN):
            raise ConfigError(
                f"model is wrapped already, around {model.name}; expected that model, "
                f"wrap(model.model, head=..., arguments=...), where the head or the arguments "
                f"should be others"
            )
        _refuse_the_librarys_own(model)
        if not convolutions(model):
            raise ConfigError(
                f"model is a {type(model).__name__} and holds no "
                f"torch_geometric.nn.MessagePassing convolution, and only their calls can be "
                f"handed to single nodes; expected a model of hogwild, or one of PyG's "
                f"convolutions, or of a MessagePassing of your own around your aggregation"
            )
        if head is not None and not callable(head):
            raise ConfigError(
                f"head is a {type(head).__name__}; expected a function or a module of (node "
                f"outputs, batch)"
            )
        self.model = model
        self.head = head
        self.door = Door.of(model, arguments)

    @property
    def name(self) -> str:
        """Name of the user's class."""
        return type(self.model).__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The user's model, called as the user calls it."""
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
        return f"arguments={list(self.door.names)}"

    # -- the model protocol ------------------------------------------------------------------------

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """The user's own forward on some data, [N, out], or [G, out] of a model of graphs."""
        fields = Fields.of(Inputs.of(inputs))
        return self.finish(self.door.ask(self.model, fields), fields)

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        """The predictions of nodes whose convolutions gave ``h`` [N, channels], [N, out] or
        [G, out]: the user's own forward, with these results in the place of the convolutions."""
        fields, found = Fields.of(inputs), self._recorded(inputs)
        parts = zip(h.split(found.results, 1), found.shapes, strict=True)
        z = [part.reshape(-1, *shape) for part, shape in parts]
        out: Tensor = Recorded.of(self, fields, replace(found, z=z)).out
        return out

    def finish(self, out: Any, fields: Fields) -> Tensor:
        """Predictions, [rows, out], of what the user's forward gave."""
        out = out if self.head is None else self.head(out, fields.nodes["batch"])
        if not isinstance(out, Tensor) or out.dim() not in (1, 2):
            what = f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"{self.name} gives {what}; expected one tensor [nodes, out] or [graphs, out]: "
                f"wrap(model, head=lambda out, batch: ...) makes one of whatever it gives"
            )
        if out.dim() == 1:
            out = out.unsqueeze(-1 if out.numel() in (fields.rows, fields.num_graphs) else 0)
        return out

    def _recorded(self, inputs: Inputs) -> Recorded:
        return Recorded.of(self, Fields.of(inputs))

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The results of all convolutions, side by side, in the user's forward on the whole
        graph, [N, channels]."""
        inputs = Inputs.of(inputs)
        found = self._recorded(inputs)
        h = torch.cat([z.flatten(1) for z in found.z], 1)
        return Solution.exact(h, inputs.num_graphs, len(found.z))

    @torch.no_grad()
    def problem(self, inputs: Inputs) -> WrappedProblem:
        """The convolutions one node at a time.

        Raises:
            AsynchronyError: The model reads more than a node and its neighbours.
        """
        if any(part.training for part in self.model.modules()):
            raise AsynchronyError(
                f"{self.name} is in training mode, in which a BatchNorm reads all nodes at hand "
                f"and dropout changes every result; call model.eval() before running it "
                f"asynchronously"
            )
        inputs = Inputs.of(inputs)
        _require_finite(inputs)
        fields = Fields.of(inputs)
        graph = inputs.graph()
        found = Recorded.of(self, fields)
        problem = WrappedProblem(
            graph, 1, sum(found.results), len(found.v), (*found.widths, found.results[-1]),
            "caching", self, fields, AllEdges(graph, inputs.edge_index, None, None), found,
        )  # fmt: skip
        Trial(problem).run()
        return problem


def _require_finite(inputs: Inputs) -> None:
    """Raise on NaN or infinity, as the models of this library do."""
    for name, value in (("x", inputs.x), ("edge_attr", inputs.edge_attr)):
        if value is not None and not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            raise FeatureError(
                f"{name} holds {bad} values that are NaN or infinite; expected finite numbers: "
                f"impute or drop them"
            )


def _refuse_the_librarys_own(model: nn.Module) -> None:
    """Refuse a module around a model or an implicit layer of this library, which have rules of
    their own for single nodes."""
    known, outer = (ConvGNN, ImplicitConv), type(model).__name__
    path, own = next(((p, m) for p, m in model.named_modules() if isinstance(m, known)), ("", None))
    if own is None or (convolutions(model) and not isinstance(own, ExplicitGNN)):
        return
    name = type(own).__name__
    if not path and not isinstance(own, ImplicitConv):
        raise ConfigError(
            f"model is a {name} of hogwild; expected a model trained elsewhere: a {name} goes to "
            f"hogwild.simulate, robustness and certify as it is"
        )
    if isinstance(own, ImplicitConv):
        what = "a model with a readout, such as hogwild.EnergyGNN, in its place"
    else:
        what = f"the {name} itself, as in hogwild.simulate(model.{path}, data)"
    where = f"a {name} of hogwild" if not path else f"a {outer} around {path}, a {name} of hogwild"
    raise ConfigError(
        f"model is {where}, which runs by rules of its own and cannot be wrapped; expected {what}. "
        f"What follows the embeddings belongs into the readout of such a model: "
        f"readout=(16, 16) makes it an MLP of these hidden widths, and pool='mean' predicts for "
        f"graphs"
    )
