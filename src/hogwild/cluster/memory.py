r"""How much memory a solve takes, predicted before anything starts.

The solver holds a few vectors for each node, and a few numbers for each edge. Both are counted here
from the model's widths, so that the memory is linear in nodes and edges:

.. math:: \text{bytes} = \text{constant} + \text{node} \cdot (A + B) + \text{edge} \cdot E

for A owned nodes, B nodes of the halo and E edges. ``benchmarks/large.py`` compares the prediction
with the peak that it measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hogwild.cluster.store import Count, Store
from hogwild.errors import CapacityError
from hogwild.models.base import GraphModule
from hogwild.models.energy import EnergyConv
from hogwild.models.features import Features
from hogwild.models.gsd import GSDConv
from hogwild.models.implicit import ImplicitConv
from hogwild.nn.picnn import PICNN
from hogwild.problems import streamed

PROCESS = 430 << 20
"""A Python process with torch and this library, before it reads a graph."""
NUMBER = 8
"""Bytes of a float64 or of an index."""
VECTORS = 20
"""Vectors [k, N] that a solver with conjugate gradients holds at a time."""
WORK = 160
"""Numbers for each edge of a block while its networks are evaluated and linearised, at the default
widths."""
HELD = 300
"""The same where an energy is held in memory as a whole: the networks at the iterate and at the
next one, and their second derivatives."""
PAIRS = 14
"""Numbers for each edge while graph signal denoising looks for the pairs of nodes that edges
join."""
GATES = 30
"""Gates and biases for each edge at the default widths."""
PLAN = 18
"""Numbers for each block of a Hessian while a factorisation is planned, on graphs of at most
:data:`PLAN_EDGES`. Larger graphs are seldom planned."""
PLAN_EDGES = 1 << 21
SHARE = 0.9
"""Share of the available memory that may be used."""


def predict(model: GraphModule, nodes: int, edges: int, *, edge_weight: bool = False) -> int:
    """Bytes of a process that solves the model's problem on a graph or on a part of one.

    Args:
        model: A model or a convolution.
        nodes: Number of local nodes, N or A + B.
        edges: Number of edges.
        edge_weight: Whether the edges have weights.
    """
    convs = [m for m in model.modules() if isinstance(m, ImplicitConv)]
    if not convs:
        raise TypeError(f"expected a model with implicit layers, got {type(model).__name__}")
    stages = [m for m in model.modules() if isinstance(m, Features) and m.encoder is not None]
    raw = 2 * sum(stage.in_channels for stage in stages)  # features before they are encoded
    # Several layers are solved one after the other.
    largest = max(_layer(conv, nodes, edges, edge_weight) for conv in convs)
    return largest + NUMBER * raw * nodes


def _layer(conv: ImplicitConv, nodes: int, edges: int, edge_weight: bool) -> int:
    r, k = conv.replicas or 1, conv.hidden_channels
    # The features and their copy in the precision of the solve, degrees, batch, row starts.
    node = 2 * conv.in_channels + 8 + VECTORS * r * k
    # Senders and receivers twice: as given, and in the graph; and the order of receivers.
    edge = 5 + (conv.edge_dim or 0) * 2 + 2 * edge_weight
    constant = 0.0
    if isinstance(conv, EnergyConv):
        c = conv.message_channels * (conv.heads or 1 if conv.concat else 1)
        node += r * (c * c + 5 * k * k)
        net = conv.message_nets[0]
        assert isinstance(net, PICNN)
        # 14 at the default widths
        scale = (conv.heads or 1) * (net.convex_channels + sum(net.channels)) / 14
        if conv.rounds == 1 and r * edges >= streamed.LARGE["cpu"]:
            edge += r * (c + k) * k + (conv.heads or 0)
            constant = streamed.BLOCK_EDGES * WORK * scale
            constant += min(streamed.KEEP / NUMBER, r * edges * GATES * scale)
        else:
            edge += int(r * conv.rounds * HELD * scale)
            node += int(r * conv.rounds * HELD * scale) // 2
    elif isinstance(conv, GSDConv):
        edge += PAIRS
        node += 16
    else:
        edge += 4 * r * k
    if edges <= PLAN_EDGES:
        constant += PLAN * edges * (1.0 + 0.5 * edges / max(nodes, 1))  # edges and wedges
    return PROCESS + NUMBER * int(constant + node * nodes + edge * edges)


def predict_parts(
    model: GraphModule, store: Store, hops: int = 2, overlap: int | None = None
) -> list[int]:
    """Predicted bytes of the worker of each part of a store."""

    def needed(count: Count) -> int:
        nodes = count.nodes + count.halo
        return predict(model, nodes, count.edges, edge_weight=store.has_weights)

    return [needed(count) for count in store.counts(hops, overlap)]


def available() -> int | None:
    """Bytes that this process may still use: of the machine, and of its control group if that has
    a limit. ``None`` if the system does not say."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            found.append(int(fields["MemAvailable"].split()[0]) << 10)
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (group / limit).exists() and (group / used).exists():
            most = (group / limit).read_text().strip()
            if most.isdigit():
                found.append(int(most) - int((group / used).read_text()))
    return min(found, default=None)


def require_memory(needed: Sequence[int], limit: int | None = None) -> None:
    """Raise unless workers with these needs, in bytes, fit into memory side by side.

    Args:
        needed: Bytes of each worker on this machine.
        limit: Bytes there are; ``None``: :data:`SHARE` of what is :func:`available`.

    Raises:
        CapacityError: They do not fit.
    """
    if limit is None:
        free = available()
        if free is None:
            return
        limit = int(SHARE * free)
    total = sum(needed)
    if total > limit:
        raise CapacityError(
            f"{len(needed)} worker{'s' if len(needed) > 1 else ''} would need {_size(total)} "
            f"(the largest {_size(max(needed))}), and {_size(limit)} are available; expected a "
            f"graph that fits: use more machines, more parts with fewer of them at a time, or a "
            f"model with fewer channels"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.0f} MiB"
