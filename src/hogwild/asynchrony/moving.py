"""Graphs that move: scenarios, what changes between their frames, and what nodes believe.

A scenario is a list of *frames*. A frame is a PyG ``Data`` and the tick from which on it holds.
Nodes have identities, ``data.node_id`` [N], that persist through all frames: a node that is in two
frames is the same node, wherever its row lies. An edge persists if both of its ends do and if it is
in both frames.

Without packets from a neighbour a node cannot know whether the neighbour is gone or only slow. It
keeps the neighbour for a *lease*, with the last packet and the last features that it has, and
computes the answer of the graph that it believes in. :class:`Beliefs` turns true frames into the
frames that nodes believe in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.asynchrony.schedule import Names
from hogwild.errors import HogwildError, ScenarioError, is_integer, require_positive
from hogwild.graph.inputs import Inputs
from hogwild.models.validation import require_finite
from hogwild_node.rules.base import Pairs, Survivors

WIDE = ("x", "edge_attr", "edge_weight")
"""Tensors of a frame whose widths must not change."""


@dataclass(frozen=True)
class Frame:
    """Graph and features from one tick on.

    Attributes:
        time: The tick.
        data: The graph and its features.
        ids: The identities of the nodes, [N].
        silent: Edges on which nothing is sent any more although their receivers still count on
            them, a mask [E]; ``None``: none (:mod:`hogwild.asynchrony.moving`).
        gone: How many of the last nodes are not there any more although neighbours still count on
            them.
    """

    time: int
    data: Data
    ids: Tensor
    silent: Tensor | None = None
    gone: int = 0

    @property
    def present(self) -> int:
        """The number of nodes that are there."""
        return self.ids.numel() - self.gone

    @property
    def mute(self) -> Tensor:
        """The mask of the edges on which nothing is sent, [E]."""
        edges = self.data.edge_index.size(1)
        return torch.zeros(edges, dtype=torch.bool) if self.silent is None else self.silent


class Scenario:
    """Graph and features as functions of time; what :func:`hogwild.track` runs on.

    Args:
        frames: PyG ``Data``, one for each moment at which anything changes, or a function from a
            tick to a ``Data``. A ``Data`` has ``x``, ``edge_index`` and, where nodes come and go,
            ``node_id`` [N], a number for each node that stays with the node. It may have
            ``edge_attr``, ``edge_weight``, ``pos`` (for pictures) and ``y`` (what the model should
            say at this moment).
        times: The tick of each frame, the first being 0; ``None``: read from ``data.time``. Not
            for a function.
        length: Ticks in all. By default the last frame lasts as long as the frame before. A
            function, or a single frame, needs a length.
        every: How often a function is asked, in ticks.
        name: What to call the scenario in reports.

    Raises:
        ScenarioError: A frame cannot be; the error says at which tick, and why.
    """

    def __init__(
        self,
        frames: Iterable[Data] | Callable[[int], Data],
        times: Sequence[int] | None = None,
        *,
        length: int | None = None,
        every: int = 1,
        name: str = "scenario",
    ) -> None:
        if length is not None:
            require_positive("length", length)
        if not isinstance(frames, Data) and callable(frames):  # a Data can be called, too
            if times is not None or length is None:
                raise ScenarioError(
                    "a function of time needs length=..., the number of ticks, and no times; it is "
                    "called every so many ticks (every=...)"
                )
            times = list(range(0, length, require_positive("every", every)))
            found = [frames(t) for t in times]
        else:
            found = [frames] if isinstance(frames, Data) else list(frames)
            times = _times(found, times)
        if not found:
            raise ScenarioError("the scenario has no frame; expected at least one PyG Data")
        if length is None:
            if len(times) == 1:
                raise ScenarioError("a single frame needs length=..., the number of ticks")
            length = 2 * times[-1] - times[-2]
        if length <= times[-1]:
            raise ScenarioError(
                f"length={length}, and the last frame begins at tick {times[-1]}; expected a "
                f"scenario that goes on after its last frame has begun"
            )
        self.name, self.length = name, int(length)
        self.frames: list[Frame] = []
        for time, data in zip(times, found, strict=True):
            self.frames.append(_checked(time, data, self.frames[0] if self.frames else None))

    @property
    def times(self) -> list[int]:
        """The tick at which each frame begins."""
        return [frame.time for frame in self.frames]

    @property
    def ids(self) -> Tensor:
        """The identities of all nodes that are ever there, in the order in which they appear."""
        return torch.tensor(list(dict.fromkeys(i for f in self.frames for i in f.ids.tolist())))

    def at(self, time: int) -> Frame:
        """The frame that holds at this tick."""
        if not 0 <= time < self.length:
            raise ScenarioError(f"tick {time} was asked for; expected 0 to {self.length - 1}")
        return [frame for frame in self.frames if frame.time <= time][-1]

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.frames)

    def __repr__(self) -> str:
        sizes = [frame.ids.numel() for frame in self.frames]
        nodes = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        return f"{self.name}: {len(self)} frames, {self.length:,} ticks, {nodes} nodes"


# -- checks ---------------------------------------------------------------------------------------


def _times(found: list[Data], times: Sequence[int] | None) -> list[int]:
    """The tick of every frame, where these can be ticks."""
    if times is None:
        missing = [i for i, data in enumerate(found) if data.get("time") is None]
        if missing and len(found) > 1:
            raise ScenarioError(
                f"frame {missing[0]} has no time; expected times=[...], a tick for each frame, or "
                f"data.time"
            )
        times = [0] if missing else [int(data.time) for data in found]
    if len(times) != len(found):
        raise ScenarioError(
            f"{len(found)} frames and {len(times)} times were given; expected as many"
        )
    for i, (before, time) in enumerate(pairwise([None, *times])):
        if not is_integer(time) or (time != 0 if before is None else time <= before):
            after = "" if before is None else f", and the frame before at {before!r}"
            raise ScenarioError(
                f"frame {i} begins at {time!r}{after}; expected ticks, integers that increase, the "
                f"first of them 0"
            )
    return [int(time) for time in times]


def _checked(time: int, data: Any, first: Frame | None) -> Frame:
    """A frame, if it can be one; ``first`` is the first frame, which the others must resemble."""
    try:
        if not isinstance(data, Data):
            raise ScenarioError(f"the frame is a {type(data).__name__}; expected a PyG Data")
        graph = Inputs.of(data).graph()
        require_finite("x", data.x)
        ids = _identities(data, first)
        for name in WIDE:
            value = data.get(name)
            now, then = _width(value), _width(value if first is None else first.data.get(name))
            if now != then:
                raise ScenarioError(
                    f"{name} is {now}, and {then} at tick 0; expected the same width at all times"
                )
            if name != "x" and value is not None and value.size(0) != graph.num_edges:
                raise ScenarioError(
                    f"{name} has {value.size(0)} rows; expected {graph.num_edges}, one for each "
                    f"edge"
                )
    except HogwildError as error:
        raise ScenarioError(f"at tick {time}: {error}") from error
    return Frame(time, data, ids)


def _identities(data: Data, first: Frame | None) -> Tensor:
    ids, n = data.get("node_id"), data.x.size(0)
    if ids is None:
        if first is not None and (first.data.get("node_id") is not None or len(first.ids) != n):
            raise ScenarioError(
                f"the frame has {n} nodes and no node_id, so that nobody knows which of them are "
                f"those of tick 0; expected node_id [nodes] in every frame"
            )
        return torch.arange(n)
    ids = torch.as_tensor(ids).cpu()
    if ids.shape != (n,) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ScenarioError(
            f"node_id is {ids.dtype} of shape {list(ids.shape)}; expected integers [{n}], one for "
            f"each node"
        )
    unique, count = ids.unique(return_counts=True)
    if unique.numel() < n:
        raise ScenarioError(
            f"two nodes have the node_id {int(unique[count > 1][0])}; expected one node each"
        )
    return ids.long()


def _width(value: Tensor | None) -> str:
    """The width and the type of the rows of a tensor, in words."""
    if value is None:
        return "missing"
    wide = " by ".join(map(str, value.shape[1:])) or "one number"
    return f"{wide} wide ({str(value.dtype).partition('.')[2]})"


# -- what changes ---------------------------------------------------------------------------------


class Register:
    """Numbers 0, 1, 2, … for the nodes and edges of a scenario, in the order in which they appear:
    each keeps its number through all frames."""

    def __init__(self) -> None:
        self.of_nodes: dict[int, int] = {}
        self.of_edges: dict[tuple[int, int, int], int] = {}

    def names(self, frame: Frame) -> Names:
        """The numbers of a frame's nodes and edges."""
        ids = frame.ids.tolist()
        nodes = [self.of_nodes.setdefault(i, len(self.of_nodes)) for i in ids]
        edges, parallel = [], Counter[tuple[int, int]]()  # edges between the same ends so far
        for j, i in frame.data.edge_index.T.tolist():
            key = (ids[j], ids[i], parallel[ids[j], ids[i]])
            parallel[ids[j], ids[i]] += 1
            edges.append(self.of_edges.setdefault(key, len(self.of_edges)))
        return Names(torch.tensor(nodes), torch.tensor(edges, dtype=torch.long))


@dataclass(frozen=True)
class Change:
    """The change from one frame to the next.

    Attributes:
        kept: What stays.
        hello: Which nodes [N] tell their neighbours about themselves: those that are new, and those
            whose features or neighbours have changed.
        fresh: Which edges are new, [E].
    """

    kept: Survivors
    hello: Tensor
    fresh: Tensor

    @property
    def nothing(self) -> bool:
        """Whether nothing has changed for anybody."""
        nodes, same = self.kept.nodes[0], self.kept.same[0]
        return same.numel() == nodes.numel() == self.hello.numel() and not bool(self.fresh.any())

    def repeat(self, runs: int, before: Frame, after: Frame) -> Survivors:
        """What stays on ``runs`` disjoint copies of both graphs."""
        run = torch.arange(runs)[:, None]

        def copies(pairs: Pairs, sizes: tuple[int, int]) -> Pairs:
            here, there = ((x + size * run).flatten() for x, size in zip(pairs, sizes, strict=True))
            return here, there

        nodes = after.ids.numel(), before.ids.numel()
        edges = after.data.edge_index.size(1), before.data.edge_index.size(1)
        kept = self.kept
        return Survivors(
            copies(kept.nodes, nodes), copies(kept.edges, edges), copies(kept.same, nodes)
        )

    @classmethod
    def between(cls, before: Frame, after: Frame, names: tuple[Names, Names]) -> Change:
        """The change between two frames, whose nodes and edges have these ``names``."""
        old, new = names
        nodes, edges = _pairs(new.nodes, old.nodes), _pairs(new.edges, old.edges)
        stays = _mask(nodes[0], new.nodes.numel())
        n, m = after.ids.numel(), before.ids.numel()
        dst, src = after.data.edge_index[1].cpu(), after.data.edge_index[0].cpu()
        degree = torch.bincount(dst, minlength=n)
        was = torch.bincount(before.data.edge_index[1].cpu(), minlength=m)
        # A node's own affairs: its features, and how many edges lead to it.
        own = torch.zeros(n, dtype=torch.bool)
        own[nodes[0]] = _equal(after, before, "x", nodes) & (degree[nodes[0]] == was[nodes[1]])
        held = _mask(edges[0], new.edges.numel())
        fine = held.clone()
        for name in ("edge_attr", "edge_weight"):
            fine[edges[0]] &= _equal(after, before, name, edges)
        bad = torch.zeros(n, dtype=torch.long)
        bad.index_add_(0, dst, (~(fine & own[src])).long())
        # The same number of edges, and all of them were there before: none has gone either.
        same = own & (bad == 0)
        strange = torch.zeros(n, dtype=torch.long).index_add_(0, dst, (~held).long())
        met = stays & own & (strange == 0)
        chosen = same[nodes[0]]
        kept = Survivors(nodes, edges, (nodes[0][chosen], nodes[1][chosen]))
        return cls(kept, ~met, ~held)


def _pairs(now: Tensor, before: Tensor) -> Pairs:
    """Where the numbers that are in both lists lie in the first, and where in the second."""
    place = {number: row for row, number in enumerate(before.tolist())}
    both = [(row, place[number]) for row, number in enumerate(now.tolist()) if number in place]
    here, there = torch.tensor(both, dtype=torch.long).view(-1, 2).unbind(1)
    return here, there


def _mask(index: Tensor, size: int) -> Tensor:
    out = torch.zeros(size, dtype=torch.bool)
    out[index] = True
    return out


def _equal(after: Frame, before: Frame, name: str, pairs: Pairs) -> Tensor:
    """Which rows are equal in both frames."""
    now, then = after.data.get(name), before.data.get(name)
    if now is None or then is None:
        return torch.ones(pairs[0].numel(), dtype=torch.bool)
    same = now.cpu()[pairs[0]] == then.cpu()[pairs[1]]
    return same.flatten(1).all(1) if same.dim() > 1 else same


# -- what nodes believe ---------------------------------------------------------------------------

Ends = tuple[int, int]
EDGES = ("edge_attr", "edge_weight")
"""Features of edges."""


class Beliefs:
    """The frames that nodes believe in, one after the other: edges (and nodes) that have gone stay,
    silent, for ``lease`` ticks. Nodes that are there come first, in the order of the true frame.

    Attributes:
        due: When nodes next give up somebody who is gone; ``None``: nobody is waited for.
    """

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.due: int | None = None
        # By identities: where the features of each node and edge last were, in which data.
        self._nodes: dict[int, tuple[Data, int]] = {}
        self._edges: dict[Ends, tuple[Data, int]] = {}
        self._until: dict[Ends, int] = {}  # edges that have gone: until when receivers count on it
        self._present: dict[Ends, None] = {}
        self._now: Frame | None = None

    def see(self, frame: Frame) -> Frame:
        """The frame that nodes believe in when the graph changes to this one."""
        if not self.lease:
            return frame
        ids, self._now, before = frame.ids.tolist(), frame, self._present
        ends = [(ids[j], ids[i]) for j, i in frame.data.edge_index.T.tolist()]
        self._present = dict.fromkeys(ends)
        gone = [e for e in before if e not in self._present]
        self._until |= dict.fromkeys(gone, frame.time + self.lease)
        self._nodes |= {i: (frame.data, row) for row, i in enumerate(ids)}
        self._edges |= {e: (frame.data, column) for column, e in enumerate(ends)}
        return self.at(frame.time)

    def at(self, time: int) -> Frame:
        """The frame that nodes believe in at this tick, if the graph has not changed since."""
        assert self._now is not None
        until = self._until.items()
        self._until = {e: end for e, end in until if e not in self._present and end > time}
        self.due = min(self._until.values(), default=None)
        data, ids, gone = self._now.data, self._now.ids, list(self._until)
        if not gone:
            return Frame(time, data, ids)
        here = ids.tolist()
        missing = sorted({i for ends in gone for i in ends} - set(here))
        row = {i: place for place, i in enumerate([*here, *missing])}
        parts: dict[str, Any] = {}
        for name in data.keys():  # noqa: SIM118 (a method of PyG's)
            value = data[name]
            if not isinstance(value, Tensor) or name in ("edge_index", "y", "node_id"):
                continue
            if name in EDGES:
                last = [self._edges[e] for e in gone]
            elif value.dim() and value.size(0) == len(here) and data.is_node_attr(name):
                last = [self._nodes[i] for i in missing]
            else:
                continue
            parts[name] = torch.cat([value, *(then[name][at : at + 1] for then, at in last)])
        ends = torch.tensor([[row[j], row[i]] for j, i in gone]).T
        edges = torch.cat([data.edge_index, ends.to(data.edge_index)], 1)
        silent = torch.arange(edges.size(1)) >= data.edge_index.size(1)
        ids = torch.cat([ids, torch.tensor(missing, dtype=torch.long)])
        return Frame(time, Data(edge_index=edges, **parts), ids, silent, len(missing))


def believed(scenario: Scenario, lease: int) -> list[Frame]:
    """The frames of a scenario that nodes believe in (:class:`Beliefs`)."""
    beliefs = Beliefs(lease)
    out: list[Frame] = []
    for frame, end in zip(scenario, [*scenario.times[1:], scenario.length], strict=True):
        out.append(beliefs.see(frame))
        while beliefs.due is not None and beliefs.due < end:
            out.append(beliefs.at(beliefs.due))
    return out
