"""Models that consist of a convolution and a readout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import ConfigError, FeatureError, require_positive, require_widths
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.linalg.solution import Solution, unreadable
from hogwild.models.base import AnyProblem, Conv, Kind, Model, keywords, refuse_unknown
from hogwild.models.features import Features
from hogwild.models.implicit import ImplicitConv
from hogwild.models.readout import Readout
from hogwild.models.stack import Stack
from hogwild.models.validation import check_inputs, first_parameter, opaque, require_finite, widened
from hogwild.problems.base import Solvable


class ConvGNN(Model):
    """The base class of models that consist of a convolution and a readout.

    ``hidden_channels``, ``num_layers`` and ``edge_dim`` are as in ``conv``, and ``in_channels`` as
    in ``features``.

    Args:
        conv: Maps features to embeddings: any convolution of this library, your own subclass of
            :class:`~hogwild.models.ImplicitConv`, or a :class:`~hogwild.models.Stack` of several.
        readout: Maps embeddings to predictions: the hidden widths of the readout's MLPs, or a
            :class:`~hogwild.Readout`, which then decides ``out_channels`` and ``pool``.
        out_channels: Width of the predictions.
        pool: ``None`` predicts for every node. ``"mean"``, ``"add"``, ``"max"`` or
            ``"attention"`` predicts for every graph: this value of the node predictions goes
            through a second MLP (:class:`~hogwild.Readout`).
        features: Standardises the features (:meth:`standardize`), and encodes them if it has an
            encoder; by default there is none.
    """

    def __init__(
        self,
        conv: Conv,
        readout: Readout | Sequence[int] = (4, 4),
        *,
        out_channels: int | None = None,
        pool: str | None = None,
        features: Features | None = None,
        **unknown: object,
    ) -> None:
        super().__init__()
        refuse_unknown(type(self), unknown, keywords(type(self), Model))
        if not isinstance(conv, Conv):
            raise ConfigError(
                f"conv is a {type(conv).__name__}; expected a convolution of hogwild such as "
                f"EnergyConv(in_channels). A stack of PyG's layers is a model by itself: "
                f"hogwild.LayeredGNN(layers, in_channels, out_channels=...)"
            )
        if not isinstance(getattr(conv, "kind", None), Kind):
            raise ConfigError(
                f"{type(conv).__name__} has no kind; expected a class attribute such as "
                f"kind = hogwild.models.Kind.FIXED_POINT, its place in the paper's taxonomy"
            )
        if not isinstance(readout, Readout):
            widths = require_widths("readout", readout, " or a hogwild.Readout")
            if out_channels is None:
                raise ConfigError(
                    f"{type(self).__name__} was built without out_channels; expected the width of "
                    f"the predictions, out_channels=..., or readout=hogwild.Readout(...)"
                )
            readout = Readout(
                conv.hidden_channels, out_channels=out_channels, widths=widths, pool=pool,
                replicas=conv.replicas,
            )  # fmt: skip
        elif out_channels is not None or pool is not None:
            raise ConfigError(
                f"out_channels={out_channels!r} and pool={pool!r} were given beside a Readout, "
                f"which has its own; expected them in the constructor of the Readout"
            )
        if (readout.in_channels, readout.replicas) != (conv.hidden_channels, conv.replicas):
            raise ConfigError(
                f"the readout has in_channels={readout.in_channels} and replicas="
                f"{readout.replicas}, the convolution hidden_channels={conv.hidden_channels} and "
                f"replicas={conv.replicas}; expected equal numbers"
            )
        if features is None:
            features = Features(conv.in_channels, conv.edge_dim, conv.replicas)
        given = (features.out_channels, features.edge_dim, features.replicas)
        if given != (conv.in_channels, conv.edge_dim, conv.replicas):
            raise ConfigError(
                f"the features come with width {given[0]}, edge_dim={given[1]} and "
                f"replicas={given[2]}, and the convolution has in_channels={conv.in_channels}, "
                f"edge_dim={conv.edge_dim} and replicas={conv.replicas}; expected equal numbers"
            )
        self.conv, self.readout, self.features = conv, readout, features
        self.features.advises = conv.kind != Kind.EXPLICIT
        self.kind, self.replicas, self.num_layers = conv.kind, conv.replicas, conv.num_layers
        self.hidden_channels, self.edge_dim = conv.hidden_channels, conv.edge_dim
        self.out_channels = readout.out_channels

    @property
    def in_channels(self) -> int:
        """Width of the node features."""
        return self.features.in_channels

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for part in (self.features, self.conv, self.readout):
            part.reset_parameters()

    def encoded(self, inputs: Inputs) -> Inputs:
        """What the convolution reads: inputs with standardised and encoded features."""
        inputs = self.features(self.accept(inputs))
        return self._encoded(inputs) if self.features.encodes else inputs

    @opaque
    def _encoded(self, inputs: Inputs) -> Inputs:
        check_inputs(inputs, self.conv, self.in_channels)
        x = self.features.encode(inputs.x)
        if self.conv.validate and not unreadable(x):
            require_finite("the output of the encoder", x, "an encoder with finite parameters")
        return replace(inputs, x=x)

    def standardize(self, data: Data | Iterable[Data]) -> Self:
        """Compute offset and scale of every feature, by which the model then standardises its
        features.

        Call this method once, before training, on the training graphs.

        Args:
            data: A PyG ``Data``, ``Batch``, list, dataset or ``DataLoader``.

        Returns:
            The model itself.
        """
        self.features.fit(graphs_of(data))
        return self

    def problem(self, inputs: Inputs) -> AnyProblem:
        inputs = self.encoded(inputs)
        found = self.conv.problem(inputs)
        if isinstance(found, Solvable):
            attr, weight = inputs.edge_attr, inputs.edge_weight
            edge = (0 if attr is None else attr.size(-1)) + (weight is not None)
            found.widths = inputs.x.size(-1), edge
        return found

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        return self.conv.embed(self.encoded(inputs), h0)

    def solver_path(self, inputs: Inputs) -> list[str]:
        return self.conv.solver_path(self.encoded(inputs))

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        inputs = Inputs.of(inputs)
        lead = () if self.replicas is None else (self.replicas,)
        expected = (*lead, inputs.num_nodes, self.hidden_channels)
        if tuple(h.shape) != expected:
            raise FeatureError(
                f"the embeddings have shape {tuple(h.shape)}; expected {list(expected)}, as "
                f"model.embed(data).value has it"
            )
        dtype = first_parameter(self.readout, h).dtype
        return self.readout(widened(h, dtype), inputs.batch, inputs.batch_size)

    def require_asynchronous(self, inputs: Inputs) -> None:
        self.conv.require_asynchronous(inputs)


class GNN(ConvGNN):
    """A model from any convolution and a readout; the arguments are those of :class:`ConvGNN`.

    .. code-block:: python

        model = GNN(EnergyConv(3, hidden_channels=8), out_channels=2)
        y = model(x, edge_index, batch=batch)

    The models by name, such as :class:`~hogwild.EnergyGNN`, are built like this one.
    """


class ImplicitGNN(ConvGNN):
    """The base class of the named implicit models, such as :class:`~hogwild.EnergyGNN`.

    ``out_channels``, ``pool`` and ``readout`` are as in :class:`ConvGNN`.

    Args:
        in_channels: Width of the node features.
        num_layers: Number of layers; every layer reads the features and the solution of the layer
            below, :math:`[x \\,\\|\\, h]`.
        kwargs: Additional arguments of every layer.
    """

    layer: ClassVar[Any]
    """The class of the layers."""

    def __init__(
        self,
        in_channels: int,
        *,
        out_channels: int | None = None,
        num_layers: int = 1,
        pool: str | None = None,
        readout: Readout | Sequence[int] = (4, 4),
        **kwargs: Any,
    ) -> None:
        cls = type(self)
        refuse_unknown(cls, kwargs, keywords(cls, ConvGNN) | keywords(self.layer, Conv))
        require_positive("num_layers", num_layers)
        conv: Conv
        conv = first = self.layer(in_channels, **kwargs)
        assert isinstance(first, ImplicitConv)
        if num_layers > 1:
            width = in_channels + first.hidden_channels
            conv = Stack([first, *(self.layer(width, **kwargs) for _ in range(num_layers - 1))])
        super().__init__(conv, readout, out_channels=out_channels, pool=pool)

    def _only(self, what: str) -> Any:
        """The convolution of a model of one layer, for methods that belong to one layer."""
        if not isinstance(self.conv, self.layer):
            raise ConfigError(
                f"the model has {self.num_layers} layers and one {what} for each; expected a model "
                f"of one layer, or a method of one of the layers, which are in model.conv.levels"
            )
        return self.conv
