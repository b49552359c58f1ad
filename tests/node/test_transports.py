"""Agents on every transport pass the conformance suite of executors."""

import math
import time

import numpy as np
import pytest
import torch
from helpers import chain
from memory_swarm import Swarm
from torch import Tensor

from hogwild import GCN, IGNN
from hogwild.executors.swarm import free_ports
from hogwild.problems.base import Objective
from hogwild.rules import choose
from hogwild.testing import check_executor
from hogwild_node.agent import Agent, Edge
from hogwild_node.errors import SetupError
from hogwild_node.local import LocalEnergy
from hogwild_node.model import NodeModel
from hogwild_node.rules import FixedPointRule, GradientRule, MessageRule
from hogwild_node.transports.memory import FaultyTransport, MemoryNetwork
from hogwild_node.transports.udp import UDPTransport
from hogwild_node.transports.zenoh import ZenohTransport

STILL = 30
"""Agents have arrived that stand still for so many turns."""


class PartOf(NodeModel):
    """A node of a problem as a model: its feature is its number."""

    rules = ("messages", "gradient", "fixed-point", "balls")

    def __init__(self, problem):
        self.problem, self.name = problem, "0123456789abcdef"
        self.in_channels = self.told_channels = self.out_channels = 1
        self._encoder = [], []
        self.edge_dim, self.channels = None, problem.channels
        self.convexity, self.config = None, {}
        self.couples = 2 if isinstance(problem, Objective) else 1

    def posed(self, part):
        graph, nodes = self.problem.graph, part.own[:, 0].astype(int)
        ends = zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
        place = {pair: e for e, pair in enumerate(ends)}
        near = part.near[:, 0].astype(int)
        near = near if part.senders is None else near[part.senders]
        pairs = zip(near.tolist(), nodes[part.star.slot].tolist(), strict=True)
        edges = torch.tensor([place[pair] for pair in pairs], dtype=torch.long)
        return self.problem.node.cut(1, None, torch.from_numpy(nodes), edges).map(Tensor.numpy)

    def _rule(self, name, local, star):
        if not isinstance(local, LocalEnergy):
            return FixedPointRule(local, star, self.channels)
        gradient = GradientRule(local, star, self.channels)
        return gradient if name == "gradient" else MessageRule(gradient)

    def predict(self, h):
        return h


def run_agents(problem, rule, links, clock, turns, between):
    """The embeddings [1, k, N] after the agents of one replica have taken turns."""
    graph, agents = problem.graph, []
    for i in range(graph.num_nodes):
        transport, address = links(i)
        near = {str(int(j)): Edge(address(int(j))) for j in graph.src[graph.dst == i]}
        agents.append(
            Agent(
                PartOf(problem), str(i), [float(i)], transport, neighbours=near, rule=rule,
                precision="float64", lease=30.0, clock=clock,
            )
        )  # fmt: skip
    before = math.inf
    for turn in range(turns):
        for agent in agents:
            agent.turn()
        between(turn)
        if turn % STILL == 0:
            h = np.concatenate([agent.h for agent in agents], -1)
            updates = min(agent.read().updates for agent in agents)
            least = 0 if rule == "balls" else STILL  # who knows everything makes no more updates
            if turn > STILL and updates > least and np.abs(h - before).max() < 1e-9:
                break
            before = h
    for agent in agents:
        agent.transport.close()
    return torch.from_numpy(np.concatenate([agent.h for agent in agents], -1))


def on_memory(problem, rule, seed):
    network = MemoryNetwork((0.0, 0.3), 0.2, seed)

    def between(turn):
        network.now += 0.1

    def links(i):
        return network.endpoint(str(i)), lambda j: None

    return run_agents(problem, rule, links, network.clock, 350, between)


def on_sockets(make, pause):
    def execute(problem, rule, seed):
        ports = free_ports(problem.graph.num_nodes)

        def address(j):
            return f"127.0.0.1:{ports[j]}"

        def links(i):
            return FaultyTransport(make(str(i), address(i)), loss=0.1, seed=seed + i), address

        return run_agents(problem, rule, links, time.monotonic, 350, lambda turn: time.sleep(pause))

    return execute


def each_replica(execute, instead=None):
    """Agents have one replica: run them one after the other, by another rule if one is given."""

    def both(problem, rule, seed):
        name = {"MessageRule": "messages", "GradientRule": "gradient"}.get(type(rule).__name__)
        everything = torch.arange(problem.graph.num_graphs)
        found = []
        for r in range(problem.replicas):
            alone, _ = problem.select(torch.tensor([r]), everything)
            found.append(execute(alone, instead or choose(alone, name or "fixed-point"), seed))
        return torch.cat(found)

    return both


BALLS = pytest.mark.parametrize("instead", [None, "balls"])


@BALLS
def test_memory(instead):
    check_executor(each_replica(on_memory, instead), repeats=False)


@BALLS
def test_udp(instead):
    execute = on_sockets(lambda name, listen: UDPTransport(listen), 0.003)
    check_executor(each_replica(execute, instead), repeats=False)


def test_features_that_change_at_every_turn_over_udp():
    """Links come about in lock-step, and stay."""
    model = Swarm(IGNN(3, out_channels=2, act="tanh"), chain(2), 2).model
    where = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with UDPTransport(where[0]) as one, UDPTransport(where[1]) as other:
        agents = [
            Agent(model, str(i), [0.0, 0.0, 0.0], link, lease=60.0,
                  neighbours={str(1 - i): Edge(where[1 - i])})
            for i, link in enumerate((one, other))
        ]  # fmt: skip
        linked = 0
        for turn in range(1000):
            for i, agent in enumerate(agents):
                agent.set_features([turn, i, 1.0])
                agent.turn()
            linked = linked + 1 if all(agent.members for agent in agents) else 0
        assert linked > 500
        np.testing.assert_array_equal(agents[1].links["0"].features[0], 999.0)


def test_a_neighbour_that_speaks_from_another_address():
    """Nothing of it is heard, and the agent says from where it came. One address is one agent."""
    here, there, told = (f"127.0.0.1:{port}" for port in free_ports(3))
    agent, other = UDPTransport(here), UDPTransport(there)
    try:
        agent.connect({"1": told})
        other.connect({"0": here})
        assert agent.refusal("1") is None
        other.send("0", b"word", hello=False)
        for _ in range(100):
            assert agent.receive() == []
            time.sleep(0.01)
            if agent.refusal("1") is not None:
                break
        assert f"packets come from {there}" in str(agent.refusal("1"))
        with pytest.raises(SetupError, match=r"neighbour 2 .* of another neighbour"):
            agent.connect({"1": told, "2": told})
    finally:
        agent.close()
        other.close()


@pytest.mark.slow
@BALLS
def test_zenoh(instead):
    pytest.importorskip("zenoh")
    execute = on_sockets(lambda name, listen: ZenohTransport(name, "test", listen), 0.003)
    check_executor(each_replica(execute, instead), repeats=False)


def test_nodes_that_have_finished_are_not_taken_for_silent():
    """Overwriting GCNs stop updating; their packets go on."""
    swarm = Swarm(GCN(3, out_channels=2, num_layers=3), chain(4), 4, rule="overwriting", lease=1.0)
    swarm.run(6.0)
    for agent in swarm.agents.values():
        assert agent.read().silent == ()
        assert agent.read().updates >= 3
