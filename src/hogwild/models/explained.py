"""Explanations by the explainers of PyG (:mod:`torch_geometric.explain`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from hogwild.errors import ConfigError
from hogwild.models.gnn import ConvGNN
from hogwild.models.layered import LayeredGNN


class Explained(nn.Module):
    r"""A model whose edges an explainer can mask.

    .. code-block:: python

        explainer = Explainer(Explained(model), GNNExplainer(), edge_mask_type="object", ...)
        explainer(x, edge_index, index=3).edge_mask

    Explainers leave a mask [E] on every ``MessagePassing`` module, which multiplies its messages by
    the mask. An implicit model has none, so the mask multiplies its edge weights here,
    :math:`\omega_e \leftarrow \text{mask}_e\, \omega_e`. In models that normalise by degrees
    (``GSDGNN``, ``IGNN``, ``EIGNN``, ``normalize=True``) the degrees are those of the masked graph.

    Args:
        model: An implicit model that reads edge weights. Models with layers, such as ``GCN``, need
            no wrapper: their layers are ``MessagePassing`` modules.
    """

    def __init__(self, model: ConvGNN) -> None:
        super().__init__()
        if not isinstance(model, ConvGNN) or isinstance(model, LayeredGNN):
            raise ConfigError(
                f"model is a {type(model).__name__}; expected an implicit model of hogwild. "
                f"Explainers take models of PyG's layers, such as hogwild.GCN, as they are"
            )
        if not model.conv.takes_edge_weight:
            raise ConfigError(
                f"{model.conv.label} does not read edge weights, which the mask of the edges would "
                f"multiply; expected another model, or an explanation by features"
            )
        self.model = model
        self.edges = _Edges()

    def forward(self, *args: Any, edge_weight: Tensor | None = None, **options: Any) -> Tensor:
        """The model's predictions with the mask, if an explainer has set one."""
        mask = self.edges.mask
        if mask is not None:
            edge_weight = mask if edge_weight is None else edge_weight * mask
        out: Tensor = self.model(*args, edge_weight=edge_weight, **options)
        return out


class _Edges(MessagePassing):
    """Where explainers leave the mask."""

    explain: Any = None  # as in PyG: whether there is a mask to apply

    def __init__(self) -> None:
        nn.Module.__init__(self)  # there are no messages to prepare
        self._edge_mask: Tensor | None = None
        self._apply_sigmoid = True

    def __setattr__(self, name: str, value: Any) -> None:
        # A mask is no parameter of the model, although explainers make it one.
        object.__setattr__(self, name, value)

    @property
    def mask(self) -> Tensor | None:
        """Factors of the edge weights, [E]."""
        if not self.explain or self._edge_mask is None:
            return None
        return self._edge_mask.sigmoid() if self._apply_sigmoid else self._edge_mask
