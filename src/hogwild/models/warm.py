"""Warm starts: a solve starts at the embeddings that its nodes had when the model last saw them, of
many graphs in training (:class:`WarmStart`) or of one graph that changes (:class:`Stream`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torch_geometric.data import Data

from hogwild.errors import ConfigError, FeatureError, GraphError, InputError
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.direct import resemble
from hogwild.linalg.solution import Solution
from hogwild.models.base import Kind
from hogwild.models.validation import evaluating
from hogwild.models.wrapped import check_model, runnable

NUMBER = "graph_id"
"""The attribute of a PyG ``Data`` that says which graph it is. PyG collates it to [G]."""
_numbers = count()


class EmbeddingCache:
    """The last embeddings of nodes, by the nodes' numbers (*rows*).

    Attributes:
        size: Number N of nodes that have rows. It may grow.
        value: The embeddings, [R, N or more, k]; ``None`` before the first :meth:`put`.
    """

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.value: Tensor | None = None

    @torch.inference_mode(False)
    def get(self, rows: Tensor) -> Tensor | None:
        """The embeddings of these nodes, [R, n, k], zero where none were put; ``None`` before the
        first :meth:`put`."""
        return None if self.value is None else self._grown(self.value, rows)[:, rows]

    @torch.inference_mode(False)  # what is kept must serve training, too
    def put(self, h: Tensor, rows: Tensor, usable: Tensor | None = None) -> None:
        """Keep embeddings ``h`` [R, n, k] of these nodes. Where they are not finite, or not
        ``usable`` [R, n or 1], zero is kept."""
        h = h.detach()
        fine = torch.isfinite(h)
        if usable is not None:
            fine = fine & usable.unsqueeze(-1)
        if self.value is None:
            self.value = h.new_zeros(h.size(0), self.size, h.size(-1))
        kept = self._grown(self.value, rows)
        kept[:, rows] = torch.where(fine, h, 0.0).to(kept.dtype)

    def _grown(self, value: Tensor, rows: Tensor) -> Tensor:
        """The value with room for all nodes, on the device of ``rows``."""
        short = self.size - value.size(1)
        if short > 0:  # at least twice the rows: few copies, however many batches bring new graphs
            more = max(short, value.size(1))
            value = torch.cat([value, value.new_zeros(value.size(0), more, value.size(-1))], 1)
        self.value = value.to(rows.device)
        return self.value


class Numbered(Dataset[Data]):
    """A dataset whose graphs have numbers (:meth:`WarmStart.numbered`).

    An index other than an integer (a slice, a list, a tensor of integers or of booleans) gives the
    dataset of these graphs, with the same numbers.
    """

    def __init__(self, graphs: Any, rows: Sequence[int], numbers: Sequence[int]) -> None:
        self.graphs, self.rows, self.numbers = graphs, rows, numbers

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        chosen = index if isinstance(index, int) else torch.arange(len(self))[index].tolist()
        if isinstance(chosen, int):
            data = copy.copy(self.graphs[self.rows[chosen]])
            data[NUMBER] = self.numbers[chosen]
            return data
        rows, numbers = ([values[i] for i in chosen] for values in (self.rows, self.numbers))
        return Numbered(self.graphs, rows, numbers)


class WarmStart:
    """Calls a model on batches of numbered graphs, and starts each solve at the embeddings that the
    graph had the last time.

    .. code-block:: python

        dataset = WarmStart.numbered(dataset)  # once, before the graphs are split and shuffled
        loader = DataLoader(dataset[:900], batch_size=32, shuffle=True)
        warm = WarmStart(model)
        for batch in loader:
            loss = cross_entropy(warm(batch), batch.y)  # warm(batch): the model's predictions

    The start changes the number of iterations, but not the answer. It therefore may be of older
    parameters, and of features that a random transform has changed. A graph that is seen for the
    first time starts at zero. A graph whose solve has failed starts at zero, too.

    Memory: the embeddings of every graph that was seen, R · N · k numbers in the model's dtype (N:
    nodes of all these graphs, k: width of all levels together), until :meth:`clear`.

    Args:
        model: A model that solves a problem, with or without replicas, of one level or several.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = check_model(model)
        if self.model.kind == Kind.EXPLICIT:
            raise ConfigError(
                f"model is a {type(self.model).__name__}, which solves nothing; expected a model "
                f"whose solves have a starting point, such as EnergyGNN"
            )
        self.clear()

    @staticmethod
    def numbered(graphs: Any) -> Numbered:
        """The graphs of a dataset or list, each with a number of its own as ``data.graph_id``.

        No two calls in one process give the same number. The graphs themselves stay as they are.
        """
        if isinstance(graphs, Data):
            raise InputError(
                "graphs is one Data; expected a dataset or a list of graphs: numbered([data])[0] "
                "numbers one graph"
            )
        size = len(graphs)
        return Numbered(graphs, range(size), [next(_numbers) for _ in range(size)])

    def __call__(self, batch: Data) -> Tensor:
        """The model's predictions for a PyG ``Batch`` (or ``Data``) of numbered graphs; the
        embeddings are kept."""
        return self.model.read(self.embed(batch).value, Inputs.of(batch))

    def embed(self, batch: Data) -> Solution:
        """The embeddings with diagnostics, as the model's ``embed`` returns them; they are kept."""
        rows, inputs = self._rows(batch), Inputs.of(batch)
        h0, many = self._memory.get(rows), self.model.replicas is not None
        found = self.model.embed(inputs, h0 if h0 is None or many else h0[0])
        h, converged = found.side_by_side, found.converged
        usable = None if bool(converged.all()) else converged[..., inputs.owner]
        self._memory.put(h if many else h.unsqueeze(0), rows, usable)
        return found

    def clear(self) -> None:
        """Forget all embeddings and the sizes of all graphs."""
        self._memory = EmbeddingCache()
        self._places: dict[int, tuple[int, int]] = {}  # number -> first row, size

    def _rows(self, batch: Data) -> Tensor:
        """The rows of the nodes of these graphs, [N]; new graphs get new rows."""
        numbers, sizes = _numbers_of(batch)
        firsts = []
        for number, size in zip(numbers, sizes.tolist(), strict=True):
            if number not in self._places:
                self._places[number] = (self._memory.size, size)
                self._memory.size += size
            first, known = self._places[number]
            if known != size:
                raise GraphError(
                    f"graph {number} had {known} nodes before and has {size} nodes now; expected "
                    f"graphs that keep their nodes: number the graphs after a transform that "
                    f"changes their nodes, or call warm.clear()"
                )
            firsts.append(first)
        offset = torch.tensor(firsts, device=sizes.device) - (sizes.cumsum(0) - sizes)
        rows = torch.repeat_interleave(offset, sizes)
        return rows + torch.arange(rows.numel(), device=rows.device)


def _numbers_of(batch: Data) -> tuple[list[int], Tensor]:
    """Numbers and sizes [G] of the graphs in a batch."""
    number = batch.get(NUMBER) if isinstance(batch, Data) else None
    if number is None:
        raise InputError(
            f"a {type(batch).__name__} without {NUMBER} was given, so that its graphs cannot be "
            f"recognised; expected a batch of numbered graphs: dataset = "
            f"WarmStart.numbered(dataset), before the DataLoader"
        )
    owner = batch.get("batch")
    if owner is None:
        device = batch.edge_index.device
        return [int(number)], torch.tensor([batch.num_nodes], device=device)
    numbers = torch.as_tensor(number).view(-1).tolist()
    sizes = torch.bincount(owner, minlength=len(numbers))
    if sizes.numel() != len(numbers):
        raise InputError(
            f"a batch of {sizes.numel()} graphs has {len(numbers)} numbers in {NUMBER}; expected "
            f"one for each graph: number the graphs before they are put into a batch"
        )
    return numbers, sizes


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
        self.h: Tensor | None = None  # of all levels, [(R,) N, …]

    def update(self, data: Data | Inputs) -> Solution:
        """The solution on this graph: the same as ``model.embed(data)`` within the tolerance of
        the solver, from a nearer start."""
        inputs = Inputs.of(data)
        if self.edges is not None and torch.equal(self.edges, inputs.edge_index):
            inputs.edge_index = self.edges  # the same object: its analyses are still there
        ids, graph = _identities(inputs), inputs.graph()
        if self.graph is not None and graph is not self.graph and _alike(graph, self.graph):
            resemble(graph, self.graph)
        with evaluating(self.model), torch.no_grad():
            found = self.model.embed(inputs, self._start(inputs, ids))
        self.edges, self.graph, self.ids, self.h = inputs.edge_index, graph, ids, found.side_by_side
        return found

    def predict(self, data: Data | Inputs) -> Tensor:
        """The predictions on this graph."""
        h = self.update(data).value
        with evaluating(self.model), torch.no_grad():
            return self.model.read(h, Inputs.of(data))

    def _start(self, inputs: Inputs, ids: Tensor) -> Tensor | None:
        """Where the solves begin, all levels side by side; ``None``: where the model begins."""
        if self.h is None or self.ids is None or self.model.kind is Kind.EXPLICIT:
            return None
        if torch.equal(ids, self.ids):
            return self.h
        order = self.ids.argsort()
        place = torch.searchsorted(self.ids[order], ids).clamp_max(order.numel() - 1)
        row = order[place]
        stays = self.ids[row] == ids
        fresh = self.model.problem(inputs).start().mT.to(self.h.dtype)  # [R, N, …]
        fresh = fresh if self.model.replicas is not None else fresh[0]
        return torch.where(stays.unsqueeze(-1), self.h[..., row, :], fresh)


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
