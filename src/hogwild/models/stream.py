"""Solve one graph after another, each from the solution of the one before."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.errors import FeatureError
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.kernels import energy
from hogwild.linalg.fronts import resemble
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind
from hogwild.models.check import runnable
from hogwild.models.levels import StackProblem
from hogwild.models.mode import evaluating


class Stream:
    """A model on a graph that changes, solved on one machine.

    Every solve begins at the embeddings of the last solve. Nodes are matched by ``data.node_id``
    [N]; without it, by their rows. New nodes begin where the model begins. Where the edges have not
    changed, everything that depends on the edges alone (block patterns, elimination orders, plans
    of factorisations) is used again. Where some edges have changed on a graph without small
    separators, the search for them is not repeated: conjugate gradients solve the linear systems,
    as before.

    .. code-block:: python

        stream = hogwild.Stream(model)
        for data in frames:
            h = stream.update(data).value

    Args:
        model: Any model of this library, or a trained GNN of PyG's convolutions. Explicit models
            have nothing to begin with and are computed anew.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = runnable(model)
        self.edges: Tensor | None = None
        self.graph: Graph | None = None
        self.ids: Tensor | None = None
        self.h: list[Tensor] = []  # of every level, [(R,) N, k]

    def update(self, data: Data | Inputs) -> Solution:
        """The solution on this graph: the same as ``model.embed(data)`` within the tolerance of
        the solver, from a nearer start."""
        return self.model.joined(self.levels(data))

    def levels(self, data: Data | Inputs) -> list[Solution]:
        """The solutions of all levels of a stack, the lowest first; of other models, the one
        solution."""
        inputs = Inputs.of(data)
        if self.edges is not None and torch.equal(self.edges, inputs.edge_index):
            inputs.edge_index = self.edges  # the same object: its analyses are still there
        ids, graph = _identities(inputs), inputs.graph()
        if self.graph is not None and graph is not self.graph and _alike(graph, self.graph):
            resemble(graph, self.graph)
            energy.resemble(graph, self.graph)
        with evaluating(self.model), torch.no_grad():
            found = self.model.solutions(inputs, self._start(inputs, ids))
        self.edges, self.graph, self.ids = inputs.edge_index, graph, ids
        self.h = [level.value for level in found]
        return found

    def predict(self, data: Data | Inputs) -> Tensor:
        """The predictions on this graph."""
        h = self.update(data).value
        with evaluating(self.model), torch.no_grad():
            return self.model.read(h, Inputs.of(data))

    def _start(self, inputs: Inputs, ids: Tensor) -> Tensor | None:
        """Where the solves begin, all levels side by side; ``None``: where the model begins."""
        if not self.h or self.ids is None or self.model.kind is Kind.EXPLICIT:
            return None
        starts = self.h
        if not torch.equal(ids, self.ids):
            order = self.ids.argsort()
            place = torch.searchsorted(self.ids[order], ids).clamp_max(order.numel() - 1)
            row = order[place]
            stays = self.ids[row] == ids
            fresh = self._beginning(inputs)
            starts = [
                torch.where(stays.unsqueeze(-1), h[..., row, :], new)
                for h, new in zip(self.h, fresh, strict=True)
            ]
        return torch.cat(starts, -1)

    def _beginning(self, inputs: Inputs) -> list[Tensor]:
        """Where nodes begin that are new, for every level."""
        problem = self.model.problem(inputs)
        start = problem.start().to(inputs.x.dtype).mT  # [R, N, k of all levels]
        start = start if self.model.replicas is not None else start[0]
        widths = problem.widths if isinstance(problem, StackProblem) else [start.size(-1)]
        return list(start.split(widths, -1))


def _alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs have about the same size."""
    sizes = ((one.num_nodes, other.num_nodes), (one.num_edges, other.num_edges))
    return all(2 * min(pair) >= max(pair) for pair in sizes)


def _identities(inputs: Inputs) -> Tensor:
    """The identities of the nodes, [N]: ``node_id``, or their rows."""
    ids = inputs.nodes.get("node_id")
    if ids is None:
        return torch.arange(inputs.num_nodes, device=inputs.x.device)
    if ids.dim() != 1 or ids.is_floating_point() or ids.unique().numel() < ids.numel():
        raise FeatureError(
            f"node_id is {ids.dtype} of shape {list(ids.shape)}; expected different integers "
            f"[{inputs.num_nodes}], one for each node"
        )
    return ids
