"""Links between two agents: nothing that happens to either of them ends a link for good."""

import itertools
import struct

import pytest
from c_nodes import CC
from helpers import chain
from memory_swarm import Swarm, sealed
from node.test_c99_agent import Mixed

from hogwild import IGNN
from hogwild_node.packets import DATA, HELLO

IN_C = [set(), *(pytest.param({*c}, marks=pytest.mark.skipif(CC is None, reason="no C compiler"))
                 for c in ((1,), (0, 1)))]  # fmt: skip
LEASE = 2.0


def two(in_c=frozenset(), **options):
    """Two agents that are linked; ``said`` has the last packets from one to the other."""
    model, options = (
        IGNN(3, out_channels=2, act="tanh"),
        {"lease": LEASE, "rule": "fixed-point"} | options,
    )
    swarm = (
        Mixed(model, chain(2), 2, in_c, **options) if in_c else Swarm(model, chain(2), 2, **options)
    )
    swarm.said, post = {}, swarm.network.post

    def noted(sender, to, raw):
        swarm.said[int(sender), raw[1]] = raw
        post(sender, to, raw)

    swarm.network.post = noted
    swarm.run(4.0)
    return swarm


def moves(swarm):
    """Both agents get other features."""
    for i, agent in swarm.agents.items():
        swarm.x[i] = swarm.x[i].flip(0) + 0.25
        agent.set_features(swarm.x[i].numpy())


def forged(swarm, i, kind, **fields):
    """Somebody speaks to agent i as its neighbour: its last packet, with other fields."""
    raw = swarm.said[1 - i, kind]
    places = {"incarnation": (8, "<I"), "sequence": (12, "<I"), "to": (16, "<I"),
              "revision": (20, "<H"), "known": (22, "<H"), "feature": (48, "<d")}  # fmt: skip
    for name, change in fields.items():
        place, form = places[name]
        (value,) = struct.unpack_from(form, raw, place)
        value = (
            change if name in ("to", "feature") else (value + change) % 256 ** struct.calcsize(form)
        )
        raw = raw[:place] + struct.pack(form, value) + raw[place + struct.calcsize(form) :]
    swarm.agents[i]._receive(str(1 - i), sealed(raw), swarm.network.now)


def restarts(swarm, i):
    swarm.agents.pop(i).transport.close()
    swarm.agents[i] = swarm.start(i)


def stalls(swarm, *who):
    """Agents take no turns for longer than the lease."""
    gone = {i: swarm.agents.pop(i) for i in who}
    swarm.network.now += 0.0 if swarm.agents else 1.25 * LEASE
    swarm.run(1.25 * LEASE if swarm.agents else 0.0)
    swarm.agents |= gone


HISTORIES = {
    "nothing": lambda swarm, i: None,
    "it restarts": restarts,
    "a hello of nobody": lambda swarm, i: forged(swarm, i, HELLO, incarnation=5),
    "an old hello": lambda swarm, i: forged(swarm, i, HELLO, revision=-1, feature=9.0),
    "a hello far ahead": lambda swarm, i: forged(swarm, i, HELLO, revision=30_000, feature=9.0),
    "a hello half around": lambda swarm, i: forged(swarm, i, HELLO, revision=32_768, feature=9.0),
    "the next hello": lambda swarm, i: forged(swarm, i, HELLO, revision=1, feature=9.0),
    "the same hello": lambda swarm, i: forged(swarm, i, HELLO, feature=9.0),
    "data far ahead": lambda swarm, i: forged(swarm, i, DATA, sequence=2**31 - 5),
    "it is deaf": lambda swarm, i: forged(swarm, i, DATA, sequence=2**31 - 5, to=0),
    "it knows much": lambda swarm, i: forged(swarm, i, DATA, sequence=1, known=20_000),
}


@pytest.mark.parametrize("in_c", IN_C, ids=["python", "mixed", "c"])
@pytest.mark.parametrize("stall", [(), (0,), (0, 1)], ids=["awake", "one stalls", "both stall"])
def test_links_recover_from_all_pairs_of_histories(in_c, stall):
    """Something happens to each of the two, and some of them stall. Soon after, both know the
    other's features, follow them when they change, and are right."""
    swarm = two(in_c)
    for both in itertools.product(HISTORIES, repeat=2):
        for i, what in enumerate(both):
            HISTORIES[what](swarm, i)
        if stall:
            stalls(swarm, *stall)
        end = swarm.network.now + 12.0
        swarm.run(0.5)
        while swarm.error() > 1e-3:
            assert swarm.network.now < end, (both, swarm.error())
            swarm.run(0.5)
        moves(swarm)
        swarm.run(2.0)
        assert swarm.error() < 1e-2, both
