"""Links over UDP, and nodes that have finished (tests/test_conformance.py has the answers)."""

import time

import numpy as np
import pytest
from helpers import chain
from memory_swarm import Swarm

from hogwild import GCN, IGNN
from hogwild.executors.swarm import free_ports
from hogwild_node.agent import Agent, Edge
from hogwild_node.errors import SetupError
from hogwild_node.transports.udp import UDPTransport


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


def test_nodes_that_have_finished_are_not_taken_for_silent():
    """Overwriting GCNs stop updating; their packets go on."""
    swarm = Swarm(GCN(3, out_channels=2, num_layers=3), chain(4), 4, rule="overwriting", lease=1.0)
    swarm.run(6.0)
    for agent in swarm.agents.values():
        assert agent.read().silent == ()
        assert agent.read().updates >= 3
