"""PyG's data as models take it: the tensors of one graph, a batch, or a list of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data, HeteroData

from hogwild.errors import FeatureError, HogwildError, InputError
from hogwild.graph.graph import Graph, check_edge_index

SAMPLED = ("n_id", "e_id", "input_id", "num_sampled_nodes", "root_n_id", "node_norm", "edge_norm")
"""Attributes that some samplers of PyG leave on a part of a graph. Other samplers and
``Data.subgraph`` leave none, so their parts look like whole graphs."""


SPARSE = (
    "edge_index, edge_weight = torch_geometric.utils.to_edge_index(adj_t.t()) converts a matrix "
    "adj_t[receiver, sender]; leave edge_weight out where all entries are 1"
)
"""What to do with a sparse matrix in place of ``edge_index``."""


def graphs_of(data: Any) -> list[Data]:
    """A PyG ``Data`` or ``Batch``, or any number of them in a list, dataset or loader, as a list.

    Raises:
        InputError: It is something else, or empty.
    """
    found = [data] if isinstance(data, Data) else []
    if isinstance(data, Iterable) and not isinstance(data, Data | HeteroData | Tensor | Mapping):
        found = list(data)
    for each in (data, *found):
        if isinstance(each, HeteroData):
            raise InputError(
                "data is a HeteroData, with several types of nodes or edges; expected a graph of "
                "one type: data.to_homogeneous() makes one where the features of all types are "
                "equally wide"
            )
    if not found or not all(isinstance(graph, Data) for graph in found):
        within = f" of {type(found[0]).__name__}" if found else ""
        raise InputError(
            f"data is a {type(data).__name__}{within}; expected a torch_geometric.data.Data, a "
            f"Batch, or a non-empty list of Data"
        )
    return found


def require_tensors(graph: Data, name: str, error: type[HogwildError] = InputError) -> None:
    """Raise if the graph called ``name`` has no node features or no edges."""
    lacks = [key for key in ("x", "edge_index") if not isinstance(graph.get(key), Tensor)]
    if lacks:
        constant = ": nodes without features may all have a 1, x = torch.ones(num_nodes, 1)"
        sparse = "edge_index" in lacks and graph.get("adj_t") is not None
        raise error(
            f"{name} lacks {' and '.join(lacks)}; expected tensors of node features x and of edges "
            f"edge_index{constant * ('x' in lacks)}{f'. It has an adj_t: {SPARSE}' * sparse}"
        )


def require_whole(graph: Data) -> None:
    """Raise on a part of a larger graph, if a sampler marked it (:data:`SAMPLED`): nodes at its rim
    have lost neighbours, and degrees and normalisations would be those of the part."""
    left = [key for key in SAMPLED if graph.get(key) is not None]
    if left:
        raise InputError(
            f"data is a part of a larger graph: a sampler left {', '.join(left)} on it. Nodes at "
            f"its rim lack neighbours, and their degrees and normalisations are not those of the "
            f"whole graph, so the answer would be another one. Expected the whole graph; if this "
            f"is one, remove {', '.join(left)} from it"
        )


@dataclass(eq=False)
class Inputs:
    """What a model reads, in one object: the tensors that PyG's models are called with.

    ``model(x, edge_index, edge_attr, batch)`` is ``model.predict(Inputs(x, edge_index, edge_attr,
    batch))``.

    An ``EdgeIndex`` or ``Index`` of PyG is read as the tensor that it holds.

    Attributes:
        x: Node features, [N, p], or [R, N, p] with features of its own for every replica.
        edge_index: Senders and receivers, [2, E].
        edge_attr: Edge features, [E, r], or ``None``.
        batch: The graph of every node, [N], sorted; ``None``: one graph.
        edge_weight: Nonnegative weights, [E], or ``None``.
        batch_size: Number of graphs; ``None``: read from ``batch``.
        heard: The senders' features as the receiver of every edge last heard them, [E, p] or
            [R, E, p]; ``None``: those of ``x``. In a stack of layers the upper layers' features
            change during a run, and a node hears of a change late.
        degrees: Only for a part of a larger graph: sums of the weights of the edges into and out of
            every node in the larger graph, [N, 2]. Normalisations are then those of the larger
            graph. ``None``: ``edge_index`` holds all edges.
        nodes: More tensors with a row for each node, by name. Trained models may ask for them.
        edges: More tensors with a row for each edge, by name.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None = None
    batch: Tensor | None = None
    _: KW_ONLY
    edge_weight: Tensor | None = None
    batch_size: int | None = None
    heard: Tensor | None = None
    degrees: Tensor | None = None
    nodes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.edge_index, EdgeIndex):
            self.edge_index = self.edge_index.as_tensor()
        if isinstance(self.batch, Index):
            self.batch = self.batch.as_tensor()

    @classmethod
    def of(cls, data: Inputs | Data | Batch | Iterable[Data]) -> Inputs:
        """The tensors of a PyG ``Data``, ``Batch`` or list of graphs; ``Inputs`` as they are."""
        if isinstance(data, Inputs):
            return data
        graphs = graphs_of(data)
        for graph in graphs:
            require_whole(graph)
            require_tensors(graph, "data")
        data = data if isinstance(data, Data) else Batch.from_data_list(graphs)
        if data.x.dim() < 2:
            raise InputError(
                f"data.x has shape {list(data.x.shape)}; expected [nodes, channels]: a single "
                f"feature is a column, x.unsqueeze(1)"
            )
        batch = data.batch
        count = None if batch is None else int(batch.max()) + 1 if batch.numel() else 0
        if isinstance(data, Batch):
            count = data.num_graphs  # the last graphs may have no nodes
        nodes, edges = _others(data)
        return cls(
            data.x, data.edge_index, data.edge_attr, batch, edge_weight=data.get("edge_weight"),
            batch_size=count, nodes=nodes, edges=edges,
        )  # fmt: skip

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.x.size(-2)

    @property
    def num_graphs(self) -> int:
        """G."""
        if self.batch_size is not None:
            return self.batch_size
        return 1 if self.batch is None else int(self.batch.max()) + 1

    @property
    def owner(self) -> Tensor:
        """The graph of every node, [N]."""
        if self.batch is not None:
            return self.batch
        return torch.zeros(self.num_nodes, dtype=torch.long, device=self.x.device)

    def same_edges(self, other: Inputs) -> bool:
        """Whether the other inputs have the same edges, with the same features and weights."""
        names = ("edge_index", "edge_attr", "edge_weight")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return all(
            x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs
        )

    def graph(self, *, validate: bool = True) -> Graph:
        """Who hears whom; ``validate`` checks the values of the indices, too."""
        return Graph.of(
            self.edge_index, self.num_nodes, self.batch, self.batch_size,
            degrees=self.degrees, validate=validate,
        )  # fmt: skip

    def to(self, to: torch.device | torch.dtype | str) -> Inputs:
        """The inputs on a device, or with floating-point tensors of a dtype."""

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: moved(t) for name, t in value.items()}
            index = isinstance(to, torch.dtype) and not torch.is_floating_point(value)
            return value if index else value.to(to)

        tensors = {k: v for k, v in vars(self).items() if isinstance(v, Tensor | dict)}
        return replace(self, **{name: moved(value) for name, value in tensors.items()})

    def repeat(self, runs: int) -> Inputs:
        """``runs`` disjoint copies."""
        if runs == 1:
            return self
        offset = torch.arange(runs, device=self.x.device)
        edges = self.edge_index.unsqueeze(1) + self.num_nodes * offset.view(1, -1, 1)
        batch = self.owner.unsqueeze(0) + self.num_graphs * offset.view(-1, 1)
        return Inputs(
            self.x.repeat(*[1] * (self.x.dim() - 2), runs, 1),  # [N, p], or [R, N, p]
            edges.flatten(1),
            None if self.edge_attr is None else torch.cat([self.edge_attr] * runs),
            batch.flatten(),
            edge_weight=None if self.edge_weight is None else self.edge_weight.repeat(runs),
            batch_size=runs * self.num_graphs,
            heard=None if self.heard is None else torch.cat([self.heard] * runs, -2),
            degrees=None if self.degrees is None else self.degrees.repeat(runs, 1),
            nodes={name: torch.cat([value] * runs) for name, value in self.nodes.items()},
            edges={name: torch.cat([value] * runs) for name, value in self.edges.items()},
        )


def _others(data: Data) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Other tensors with a row for each node, and with a row for each edge."""
    nodes: dict[str, Tensor] = {}
    edges: dict[str, Tensor] = {}
    for name in data.keys():  # noqa: SIM118 (a method of PyG's)
        value = data[name]
        if name in ("x", "edge_index", "edge_attr", "edge_weight", "batch", "ptr"):
            continue
        if not isinstance(value, Tensor) or not value.dim():
            continue
        if value.size(0) == data.x.size(-2) and data.is_node_attr(name):
            nodes[name] = value
        elif value.size(0) == data.edge_index.size(1) and data.is_edge_attr(name):
            edges[name] = value
    return nodes, edges


def whole(graph: Inputs | Data) -> Inputs:
    """One whole graph on the CPU; its tensors may be memory-mapped.

    Raises:
        InputError: It is a batch of graphs, or a part of a larger graph.
        FeatureError: The features are no matrix.
        GraphError: An edge names a node that does not exist.
    """
    found = Inputs.of(graph)
    if found.num_graphs > 1:
        raise InputError(
            f"the data are a batch of {found.num_graphs} graphs; expected one graph. It may "
            f"consist of several components: leave batch out"
        )
    if found.degrees is not None or found.heard is not None:
        raise InputError("the inputs are a part of a larger graph; expected the whole graph")
    if found.x.dim() != 2:
        raise FeatureError(f"x has shape {tuple(found.x.shape)}; expected [nodes, channels]")
    check_edge_index(found.edge_index, found.num_nodes, True)
    attr = found.edge_attr
    if attr is not None and attr.dim() == 1:
        attr = attr[:, None]
    return replace(found, batch=None, batch_size=None, edge_attr=attr).to("cpu")
