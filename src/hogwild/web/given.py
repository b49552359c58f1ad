"""A graph and a model from the command line, as a world of the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch_geometric.data import Data

from hogwild.errors import ConfigError
from hogwild.models.base import Model
from hogwild.web.worlds import MOST, About


@dataclass
class Given:
    """A trained model on a graph of its own.

    Attributes:
        model: The model.
        graph: One graph, [n] nodes.
        title: What to call the task.
        classes: Whether the model's output is the logit of one class.
        rules: Two rules to begin with.
    """

    model: Model
    graph: Data
    title: str
    classes: bool = False
    rules: tuple[str, str] = ("auto", "auto")
    task: str = "given"
    seed: int = 0
    told: int | None = None
    about: About = field(init=False)

    def __post_init__(self) -> None:
        n = int(self.graph.num_nodes or 0)
        if not 2 <= n <= MOST:
            raise ConfigError(
                f"the graph has {n} nodes; expected 2 to {MOST}, which a page can draw: cut out a "
                f"part (torch_geometric.utils.k_hop_subgraph)"
            )
        what = "probability of class 1" if self.classes else "first output"
        question = f"Your model on a graph of {n} nodes ({self.title})."
        limits = (0.0, 1.0) if self.classes else (0.0, 0.0)
        self.about = About(self.title, question, what, *limits, self.classes)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.graph.num_nodes or 0)

    @property
    def choice(self) -> list[tuple[str, str]]:
        """The model and the rule of both sides."""
        return [("given", rule) for rule in self.rules]

    @cached_property
    def position(self) -> np.ndarray:
        """Where to draw the nodes, [n, 2]."""
        pos = self.graph.get("pos")
        if pos is not None and pos.dim() == 2 and pos.size(1) >= 2:
            return fitted(pos[:, :2].double().cpu().numpy())
        return layout(self.graph.edge_index.cpu().numpy(), self.nodes)

    def data(self, alive: np.ndarray | None = None) -> Data:
        """The graph of the living nodes (a mask [n]; all by default)."""
        out = self.graph.clone()
        out.node_id = torch.arange(self.nodes)
        if alive is None or bool(alive.all()):
            return out
        keep = torch.from_numpy(np.asarray(alive, bool))
        return out.subgraph(keep)


def fitted(place: np.ndarray) -> np.ndarray:
    """Places [n, 2] moved and scaled into the unit square, with a margin."""
    low, high = place.min(0), place.max(0)
    size = max(float((high - low).max()), 1e-12)
    return 0.5 + 0.92 * (place - (low + high) / 2.0) / size


def layout(edge_index: np.ndarray, n: int) -> np.ndarray:
    """Places [n, 2] for the nodes of a graph: classical multidimensional scaling of the number of
    hops, which shows chains as lines and grids as grids."""
    if n < 2:
        return np.full((n, 2), 0.5)
    i, j = edge_index
    hops = shortest_path(csr_matrix((np.ones(len(i)), (i, j)), shape=(n, n)), unweighted=True)
    far = hops[np.isfinite(hops)].max(initial=1.0)
    square = np.where(np.isfinite(hops), hops, 1.3 * far) ** 2
    centred = -0.5 * (square - square.mean(0) - square.mean(1, keepdims=True) + square.mean())
    values, vectors = np.linalg.eigh(0.5 * (centred + centred.T))
    place = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-12))
    if values[-2] < 1e-3 * values[-1]:  # a line: fold it into an arc, or a spiral if it is long
        turn = (place[:, -1] - place[:, -1].min()) / max(np.ptp(place[:, -1]), 1e-12)
        radius = np.sqrt(0.1 + 0.9 * turn)  # equal distances along the line
        angle = 2.0 * np.pi * min(2.2, n / 20) * (radius - radius.min()) / np.ptp(radius)
        place = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return fitted(place)
