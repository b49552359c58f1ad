r"""The paper's explicit baselines, and the sceptic's answer to their failure.

`Semi-Supervised Classification with Graph Convolutional Networks
<https://arxiv.org/abs/1609.02907>`_ (Kipf & Welling, ICLR 2017) and `Graph Attention Networks
<https://arxiv.org/abs/1710.10903>`_ (Veličković et al., ICLR 2018), built on PyG's layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from hogwild.errors import ConfigError, require_positive
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind
from hogwild.models.features import Features
from hogwild.models.layered import LayeredGNN
from hogwild.models.layers import LayeredProblem
from hogwild.models.readout import Readout


def _as_made(self: LayeredGNN, layers: Any) -> Any:
    """Layers that a model has just made itself are its own, and fresh."""
    return layers


class GCN(LayeredGNN):
    r"""A graph convolutional network at the paper's size: five layers of width 10.

    With :math:`\tilde A = (D + I)^{-1/2} (A + I) (D + I)^{-1/2}`,

    .. math::
        m_i^\ell = \sum_{j \in \mathcal N(i) \cup \{i\}} \tilde A_{ij}\, \theta_m^\ell h_j^\ell,
        \qquad h_i^{\ell + 1} = \operatorname{ReLU}(m_i^\ell),

    from :math:`h_i^0`, an affine function of the features. The weights :math:`\tilde A_{ij}` are
    constants of the graph: a node knows its neighbours' degrees.

    Args:
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        hidden_channels: Width of every layer.
        num_layers: Number of layers.
        bias: Add a bias to every :math:`m_i^\ell`, as PyG does and the paper's equation does not.
        kwargs: Everything else goes to :class:`LayeredGNN`.

    Shapes:
        as :class:`LayeredGNN`; ``edge_weight`` are the entries of :math:`A`, and an edge from a
        node to itself replaces the one in :math:`I`, as in PyG.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 10,
        *,
        num_layers: int = 5,
        bias: bool = True,
        **kwargs: object,
    ) -> None:
        require_positive("num_layers", num_layers)
        require_positive("hidden_channels", hidden_channels)
        convs = [GCNConv(hidden_channels, hidden_channels, bias=bias) for _ in range(num_layers)]
        super().__init__(convs, in_channels, out_channels, **kwargs)  # type: ignore[arg-type]

    _drawn = _as_made


class GAT(LayeredGNN):
    r"""A graph attention network at the paper's size: five layers of three heads of width 3.

    .. math::
        \alpha_{ij} &= \operatorname{softmax}_{j \in \mathcal N(i) \cup \{i\}}
            \operatorname{LeakyReLU}\bigl((\theta_a^\ell)^\top
            [\theta_m^\ell h_i^\ell \,\|\, \theta_m^\ell h_j^\ell \,\|\, \theta_e^\ell e_{ij}]\bigr)
        \\
        m_i^\ell &= \sum_{j \in \mathcal N(i) \cup \{i\}} \alpha_{ij}\, \theta_m^\ell h_j^\ell,
        \qquad h_i^{\ell + 1} = \operatorname{ReLU}(m_i^\ell),

    from :math:`h_i^0`, an affine function of the features; the messages of the heads are
    concatenated, so that embeddings have width ``heads · hidden_channels``. The last term is there
    with edge features only; :math:`e_{ii}` is their mean over the edges into i.

    Args:
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        hidden_channels: Width of every head.
        heads: Number of heads.
        num_layers: Number of layers.
        edge_dim: Width of the edge features, or ``None``.
        bias: Add a bias to every :math:`m_i^\ell`, as PyG does and the paper's equation does not.
        kwargs: Everything else goes to :class:`LayeredGNN`.

    Shapes:
        as :class:`LayeredGNN`. An edge from a node to itself is taken out before all nodes get
        their own, as in PyG.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 3,
        *,
        heads: int = 3,
        num_layers: int = 5,
        edge_dim: int | None = None,
        bias: bool = True,
        **kwargs: object,
    ) -> None:
        positive = {"num_layers": num_layers, "hidden_channels": hidden_channels, "heads": heads}
        for name, value in positive.items():
            require_positive(name, value)
        if edge_dim is not None:
            require_positive("edge_dim", edge_dim)
        width = heads * hidden_channels
        convs = [
            GATConv(width, hidden_channels, heads, edge_dim=edge_dim, bias=bias)
            for _ in range(num_layers)
        ]
        super().__init__(convs, in_channels, out_channels, **kwargs)  # type: ignore[arg-type]

    _drawn = _as_made


class LayerTagged(nn.Module):
    """A local synchroniser around an explicit model: the sceptic's baseline.

    "Number the layers and wait." Every packet carries the layer of its value, and a node updates
    only once it has its neighbours' values *of the layer it is at*, keeping early ones for later.
    The answer is then that of the synchronous forward pass, whatever the delays. The price: every
    node goes at the pace of the slowest in its surroundings, every value must arrive (a later one
    does not make up for it), and one lost message, or one silent node, stops its neighbours for
    ever, then theirs, and in the end all.

    The model itself is unchanged: this is a name for ``rule="waiting"``, which all models of layers
    can follow.

    Args:
        model: The explicit model.
    """

    kind = Kind.EXPLICIT

    def __init__(self, model: LayeredGNN) -> None:
        super().__init__()
        if not isinstance(model, LayeredGNN):
            raise ConfigError(
                f"{type(model).__name__} has no layers to wait for; expected a LayeredGNN such as "
                f"GCN or GAT"
            )
        self.model = model

    @property
    def replicas(self) -> int | None:
        """Number of independent parameter sets; ``None`` without a replica dimension."""
        return self.model.replicas

    @property
    def readout(self) -> Readout:
        """From the last layer's values to predictions."""
        return self.model.readout

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.model.reset_parameters()

    @property
    def features(self) -> Features:
        """Where features enter the model."""
        return self.model.features

    def standardize(self, data: Data | Iterable[Data]) -> LayerTagged:
        """:meth:`LayeredGNN.standardize`."""
        self.model.standardize(data)
        return self

    def require_asynchronous(self, edge_index: Tensor, num_nodes: int) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError`, with the reason, unless every node could
        run this model by talking to its neighbours alone."""
        self.model.require_asynchronous(edge_index, num_nodes)

    def problem(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> LayeredProblem:
        """The layers one node at a time, each waiting for its neighbours."""
        problem = self.model.problem(*args, **kwargs)  # type: ignore[arg-type]
        return replace(problem, usual="waiting")

    def embed(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> Solution:
        """The embeddings after the last layer."""
        return self.model.embed(*args, **kwargs)  # type: ignore[arg-type]

    def forward(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> Tensor:
        """Predictions, as the model's."""
        out: Tensor = self.model(*args, **kwargs)
        return out
