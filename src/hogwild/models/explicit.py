r"""The paper's explicit baselines, GCN and GAT.

`Semi-Supervised Classification with Graph Convolutional Networks
<https://arxiv.org/abs/1609.02907>`_ (Kipf & Welling, ICLR 2017) and `Graph Attention Networks
<https://arxiv.org/abs/1710.10903>`_ (Veličković et al., ICLR 2018), built on PyG's layers.
"""

from __future__ import annotations

from typing import Any

from torch_geometric.nn import GATConv, GCNConv

from hogwild.errors import ConfigError, require_all_positive
from hogwild.models.layered import ExplicitGNN


class GCN(ExplicitGNN):
    r"""A graph convolutional network at the paper's size: five layers of width 10.

    With :math:`\tilde A = (D + I)^{-1/2} (A + I) (D + I)^{-1/2}`,

    .. math::
        m_i^\ell = \sum_{j \in \mathcal N(i) \cup \{i\}} \tilde A_{ij}\, \theta_m^\ell h_j^\ell,
        \qquad h_i^{\ell + 1} = \operatorname{ReLU}(m_i^\ell),

    where :math:`h_i^0` is an affine function of the features. The weights :math:`\tilde A_{ij}` are
    constants of the graph; a node needs its neighbours' degrees for them.

    ``in_channels`` and ``kwargs`` are as in :class:`LayeredGNN`.

    Args:
        hidden_channels: Width of every layer.
        num_layers: Number of layers.
        bias: Add a bias to every :math:`m_i^\ell`, as PyG does and the paper's equation does not.

    ``edge_weight`` holds the entries of :math:`A`. As in PyG, a self-loop replaces the node's entry
    in :math:`I`.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 10,
        num_layers: int = 5,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        require_all_positive(num_layers=num_layers, hidden_channels=hidden_channels)
        convs = [GCNConv(hidden_channels, hidden_channels, bias=bias) for _ in range(num_layers)]
        super().__init__(convs, in_channels, **kwargs)


class GAT(ExplicitGNN):
    r"""A graph attention network at the paper's size: five layers of three heads of width 3.

    .. math::
        \alpha_{ij} &= \operatorname{softmax}_{j \in \mathcal N(i) \cup \{i\}}
            \operatorname{LeakyReLU}\bigl((\theta_a^\ell)^\top
            [\theta_m^\ell h_i^\ell \,\|\, \theta_m^\ell h_j^\ell \,\|\, \theta_e^\ell e_{ij}]\bigr)
        \\
        m_i^\ell &= \sum_{j \in \mathcal N(i) \cup \{i\}} \alpha_{ij}\, \theta_m^\ell h_j^\ell,
        \qquad h_i^{\ell + 1} = \operatorname{ReLU}(m_i^\ell),

    where :math:`h_i^0` is an affine function of the features. The messages of the heads are
    concatenated. Without edge features the last term is missing; :math:`e_{ii}` is the mean of the
    features of the edges into i.

    ``in_channels``, ``bias`` and ``kwargs`` are as in :class:`GCN`.

    Args:
        hidden_channels: Width of every layer, the sum over all heads.
        num_layers: Number of layers.
        heads: Number of heads.
        edge_dim: Width of the edge features, or ``None``.

    As in PyG, self-loops are removed before every node gets one.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 9,
        num_layers: int = 5,
        heads: int = 3,
        edge_dim: int | None = None,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        require_all_positive(
            num_layers=num_layers, hidden_channels=hidden_channels, heads=heads, edge_dim=edge_dim
        )
        if hidden_channels % heads:
            raise ConfigError(
                f"hidden_channels={hidden_channels} and heads={heads}; expected a multiple of the "
                f"number of heads, whose messages are concatenated"
            )
        convs = [
            GATConv(hidden_channels, hidden_channels // heads, heads, edge_dim=edge_dim, bias=bias)
            for _ in range(num_layers)
        ]
        super().__init__(convs, in_channels, **kwargs)
