"""Agents on a network in memory, which take turns in a random order."""

import struct

import numpy as np
import torch
from helpers import DOUBLE

from hogwild import Inputs
from hogwild.models.export import packed
from hogwild_node import model as node_models
from hogwild_node.agent import Agent, Edge
from hogwild_node.packets import FIELDS, HEADER, checksum
from hogwild_node.transports.memory import MemoryNetwork


def sealed(raw):
    """A packet that somebody has changed, with the checksum of a careful forger."""
    head, body = raw[: FIELDS.size], raw[HEADER.size :]
    return head + struct.pack("<I", checksum(head, body)) + body


class Swarm:
    """Agents that take turns in a random order, at random intervals."""

    def __init__(
        self, model, edge_index, n, *, delay=(0.02, 0.15), loss=0.0, copies=0.0, seed=0, **options
    ):
        torch.manual_seed(seed)
        self.whole = model.double().eval()
        self.model = node_models.of(packed(self.whole))
        self.x = torch.randn(n, 3, **DOUBLE)
        self.edge_index, self.n, self.attr = edge_index, n, None
        if self.model.edge_dim is not None:
            self.attr = torch.randn(edge_index.size(1), self.model.edge_dim, **DOUBLE)
        self.network = MemoryNetwork(delay, loss, seed, copies=copies)
        self.random = np.random.default_rng(seed)
        self.options = {"precision": "float64", "nodes": n, "settle_after": 2.0} | options
        self.agents = {i: self.start(i) for i in range(n)}

    def start(self, i, **options):
        near = self.near(i)
        return Agent(
            self.model, str(i), self.x[i].numpy(), self.network.endpoint(str(i)),
            neighbours=near, clock=self.network.clock, **(self.options | options),
        )  # fmt: skip

    def near(self, i):
        """The edges into agent i, by the neighbour's name."""
        found = {}
        for e in (self.edge_index[1] == i).nonzero()[:, 0].tolist():
            attr = None if self.attr is None else self.attr[e].numpy()
            found[str(int(self.edge_index[0, e]))] = Edge(edge_attr=attr)
        return found

    def run(self, seconds):
        """Let every agent take about ten turns a second."""
        end = self.network.now + seconds
        while self.network.now < end:
            self.network.now += 0.1 / max(len(self.agents), 1)
            self.agents[self.random.choice(list(self.agents))].turn()

    def error(self, alive=None):
        """Largest relative distance from the answer of the graph of those alive."""
        alive = sorted(self.agents) if alive is None else alive
        place = {i: q for q, i in enumerate(alive)}
        pairs = [e for e in enumerate(self.edge_index.T.tolist()) if {*e[1]} <= {*place}]
        edges = [[place[i], place[j]] for _, (i, j) in pairs]
        attr = None if self.attr is None else self.attr[[e for e, _ in pairs]]
        edges = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
        with torch.no_grad():
            answer = self.whole.embed(Inputs(self.x[alive], edges, attr)).value.numpy()
        found = np.stack([self.agents[i].read().h for i in alive])
        return float(np.abs(found - answer).max() / np.abs(answer).max())
