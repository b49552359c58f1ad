"""Models that consist of a convolution and a readout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import ConfigError, FeatureError, require_positive
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.linalg.solution import Solution
from hogwild.models.base import AnyProblem, Conv, Kind, Model
from hogwild.models.features import Features
from hogwild.models.implicit import ImplicitConv
from hogwild.models.readout import Readout
from hogwild.models.stack import Stack


class ConvGNN(Model):
    """The base class of models that consist of a convolution and a readout.

    Attributes:
        features: Standardises the features (:meth:`standardize`).
        conv: Maps features to embeddings.
        readout: Maps embeddings to predictions.
    """

    def __init__(self, conv: Conv, readout: Readout) -> None:
        super().__init__()
        self.conv, self.readout = conv, readout
        self.features = Features(conv.in_channels, conv.edge_dim, conv.replicas)

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """The model's class in the paper."""
        return self.conv.kind

    @property
    def replicas(self) -> int | None:  # type: ignore[override]
        """Number of independent parameter sets; ``None`` without a replica dimension."""
        return self.conv.replicas

    @property
    def in_channels(self) -> int:
        """Width of the node features."""
        return self.conv.in_channels

    @property
    def hidden_channels(self) -> int:
        """Width of the embeddings."""
        return self.conv.hidden_channels

    @property
    def out_channels(self) -> int:
        """Width of the predictions."""
        return self.readout.out_channels

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self.conv.num_layers

    @property
    def edge_dim(self) -> int | None:
        """Width of the edge features; ``None`` if the model reads no edge features."""
        return self.conv.edge_dim

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.conv.reset_parameters()
        self.readout.reset_parameters()

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
        return self.conv.problem(self.features(Inputs.of(inputs)))

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        return self.conv.embed(self.features(Inputs.of(inputs)), h0)

    def solutions(self, inputs: Inputs, h0: Tensor | None = None) -> list[Solution]:
        return self.conv.solutions(self.features(Inputs.of(inputs)), h0)

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        inputs = Inputs.of(inputs)
        lead = () if self.replicas is None else (self.replicas,)
        expected = (*lead, inputs.num_nodes, self.hidden_channels)
        if tuple(h.shape) != expected:
            raise FeatureError(
                f"the embeddings have shape {tuple(h.shape)}; expected {list(expected)}, as "
                f"model.embed(data).value has it"
            )
        return self.readout(h, inputs.batch, inputs.batch_size)

    def require_asynchronous(self, inputs: Inputs) -> None:
        self.conv.require_asynchronous(inputs)


class GNN(ConvGNN):
    """A model from any convolution and a readout.

    .. code-block:: python

        model = GNN(EnergyConv(3, hidden_channels=8), Readout(8, out_channels=2))
        y = model(x, edge_index, batch=batch)

    The models by name, such as :class:`~hogwild.EnergyGNN`, are built like this one.

    Args:
        conv: Maps features to embeddings: any convolution of this library, your own subclass of
            :class:`~hogwild.models.ImplicitConv`, or a :class:`~hogwild.models.Stack` of several.
        readout: Maps embeddings to predictions.
    """

    def __init__(self, conv: Conv, readout: Readout) -> None:
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
            raise ConfigError(
                f"readout is a {type(readout).__name__}; expected "
                f"hogwild.Readout({conv.hidden_channels}, out_channels=...)"
            )
        if (readout.in_channels, readout.replicas) != (conv.hidden_channels, conv.replicas):
            raise ConfigError(
                f"the readout has in_channels={readout.in_channels} and replicas="
                f"{readout.replicas}, the convolution hidden_channels={conv.hidden_channels} and "
                f"replicas={conv.replicas}; expected equal numbers"
            )
        super().__init__(conv, readout)


class ImplicitGNN(ConvGNN):
    """The base class of the named implicit models, such as :class:`~hogwild.EnergyGNN`.

    Args:
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        num_layers: Number of layers; every layer reads the features and the solution of the layer
            below, :math:`[x \\,\\|\\, h]`.
        pool: ``None`` predicts for every node. ``"mean"`` predicts for every graph: the mean of
            the node predictions goes through a second MLP.
        readout: Hidden widths of the readout MLPs.
        kwargs: Additional arguments of every layer.
    """

    layer: ClassVar[Any]
    """The class of the layers."""

    def __init__(
        self,
        in_channels: int,
        *,
        out_channels: int,
        num_layers: int = 1,
        pool: str | None = None,
        readout: Sequence[int] = (4, 4),
        **kwargs: Any,
    ) -> None:
        require_positive("num_layers", num_layers)
        conv: Conv
        conv = first = self.layer(in_channels, **kwargs)
        assert isinstance(first, ImplicitConv)
        k = first.hidden_channels
        if num_layers > 1:
            above = [self.layer(in_channels + k, **kwargs) for _ in range(num_layers - 1)]
            conv = Stack([first, *above])
        head = Readout(
            k, out_channels=out_channels, widths=readout, pool=pool, replicas=first.replicas
        )
        super().__init__(conv, head)
