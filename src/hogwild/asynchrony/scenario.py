"""A scenario: graph and features as functions of time.

A scenario is a list of *frames*. A frame is a PyG ``Data`` and the tick from which on it holds.
Nodes have identities, ``data.node_id`` [N], that persist through all frames: a node that is in two
frames is the same node, wherever its row lies. An edge persists if both of its ends do and if it is
in both frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import ScenarioError, is_integer, require_positive

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
            them, a mask [E]; ``None``: none (:mod:`hogwild.asynchrony.lease`).
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
                    "asked every so many ticks (every=...)"
                )
            times = list(range(0, length, require_positive("every", every)))
            found = [frames(t) for t in times]
        else:
            found = [frames] if isinstance(frames, Data) else list(frames)
            times = _times(found, times)
        if not found:
            raise ScenarioError("the scenario has no frame; expected at least one PyG Data")
        _check_times(times)
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
            first = self.frames[0] if self.frames else None
            self.frames.append(_checked(int(time), data, first))

    @property
    def times(self) -> list[int]:
        """The tick at which each frame begins."""
        return [frame.time for frame in self.frames]

    @property
    def ids(self) -> Tensor:
        """The identities of all nodes that are ever there, in the order in which they appear."""
        numbers = Numbering()
        for frame in self.frames:
            numbers(frame.ids)
        return numbers.keys

    def at(self, time: int) -> Frame:
        """The frame that holds at this tick."""
        if not 0 <= time < self.length:
            raise ScenarioError(f"tick {time} was asked for; expected 0 to {self.length - 1}")
        return [frame for frame in self.frames if frame.time <= time][-1]

    def to(self, dtype: torch.dtype) -> Scenario:
        """The same scenario with floating-point tensors of this dtype."""
        changed = [
            frame.data.clone().apply(lambda t: t.to(dtype) if t.is_floating_point() else t)
            for frame in self.frames
        ]
        return Scenario(changed, self.times, length=self.length, name=self.name)

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.frames)

    def __repr__(self) -> str:
        sizes = [frame.ids.numel() for frame in self.frames]
        nodes = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        return f"{self.name}: {len(self)} frames, {self.length:,} ticks, {nodes} nodes"


class Numbering:
    """Numbers 0, 1, 2, … for keys, in the order in which the keys appear."""

    def __init__(self) -> None:
        self.keys = torch.zeros(0, dtype=torch.long)
        self._sorted = self.keys
        self._number = self.keys

    def __call__(self, keys: Tensor) -> Tensor:
        """The numbers of these keys [n]; keys that are new get the next numbers."""
        keys = keys.cpu()
        place = torch.searchsorted(self._sorted, keys)
        known = place < self._sorted.numel()
        known[known.clone()] = self._sorted[place[known]] == keys[known]
        new = keys[~known]
        if new.numel():
            unique, first = _first(new)
            fresh = unique[first.argsort()]
            self.keys = torch.cat([self.keys, fresh])
            self._sorted, self._number = self.keys.sort(stable=True)
            place = torch.searchsorted(self._sorted, keys)
        return self._number[place]


def _first(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Every key once, and where it appears first."""
    unique, inverse = keys.unique(return_inverse=True)
    first = torch.full_like(unique, keys.numel())
    return unique, first.scatter_reduce(0, inverse, torch.arange(keys.numel()), "amin")


def edge_keys(nodes: Tensor, edge_index: Tensor) -> Tensor:
    """One number for each edge, by the numbers of its ends (``nodes`` [N], below 2²⁴), and by how
    many edges between the same ends come before it, [E]."""
    ends = nodes[edge_index.cpu()]
    pair = ends[0] * 2**24 + ends[1]
    order = pair.argsort(stable=True)
    ranked = pair[order]
    begins = torch.ones_like(ranked, dtype=torch.bool)
    begins[1:] = ranked[1:] != ranked[:-1]
    here = torch.arange(ranked.numel())
    rank = here - torch.where(begins, here, 0).cummax(0).values if here.numel() else here
    return pair * 2**14 + torch.empty_like(rank).scatter_(0, order, rank)


# -- checks ---------------------------------------------------------------------------------------


def _times(found: list[Data], times: Sequence[int] | None) -> list[int]:
    if times is None:
        if len(found) == 1 and found[0].get("time") is None:
            return [0]
        missing = [i for i, data in enumerate(found) if data.get("time") is None]
        if missing:
            raise ScenarioError(
                f"frame {missing[0]} has no time; expected times=[...], a tick for each frame, or "
                f"data.time"
            )
        times = [int(data.time) for data in found]
    if len(times) != len(found):
        raise ScenarioError(
            f"{len(found)} frames and {len(times)} times were given; expected as many"
        )
    return [int(t) if is_integer(t) else t for t in times]


def _check_times(times: Sequence[Any]) -> None:
    for i, time in enumerate(times):
        if not is_integer(time):
            raise ScenarioError(f"frame {i} begins at {time!r}; expected a tick, an integer")
    if times[0] != 0:
        raise ScenarioError(f"the first frame begins at tick {times[0]}; expected tick 0")
    for i, (before, time) in enumerate(pairwise(times), 1):
        if time <= before:
            raise ScenarioError(
                f"time goes back: frame {i} begins at tick {time}, and the frame before at tick "
                f"{before}; expected ticks that increase"
            )


def _checked(time: int, data: Any, first: Frame | None) -> Frame:
    """A frame, if it can be one; ``first`` is the first frame, which the others must resemble."""

    def refuse(why: str) -> ScenarioError:
        return ScenarioError(f"at tick {time}: {why}")

    if not isinstance(data, Data):
        raise refuse(f"the frame is a {type(data).__name__}; expected a PyG Data")
    x, edges = data.get("x"), data.get("edge_index")
    if not isinstance(x, Tensor) or not isinstance(edges, Tensor):
        raise refuse("the frame lacks x or edge_index; expected node features and edges")
    if x.dim() != 2 or not x.is_floating_point() or not x.size(0):
        raise refuse(
            f"x is {x.dtype} of shape {list(x.shape)}; expected floating-point features [nodes, "
            f"channels] of at least one node"
        )
    if not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).any(1).nonzero()[0])
        raise refuse(f"the features of row {bad} are not finite; expected numbers")
    if edges.dim() != 2 or edges.size(0) != 2 or edges.is_floating_point():
        raise refuse(f"edge_index has shape {list(edges.shape)}; expected integers [2, edges]")
    wrong = ((edges < 0) | (edges >= x.size(0))).any(0).nonzero()[:, 0]
    if wrong.numel():
        j, i = edges[:, wrong[0]].tolist()
        raise refuse(
            f"edge {int(wrong[0])} goes from node {j} to node {i}, and one of them is not there: "
            f"the frame has {x.size(0)} nodes; expected edges between rows of x"
        )
    ids = _identities(data, first, refuse)
    if first is not None:
        for name in WIDE:
            then, now = _width(first.data.get(name)), _width(data.get(name))
            if then != now:
                raise refuse(
                    f"{name} is {_said(now)}, and {_said(then)} at tick 0; expected the same width "
                    f"at all times"
                )
    for name in ("edge_attr", "edge_weight"):
        value = data.get(name)
        if value is not None and value.size(0) != edges.size(1):
            raise refuse(
                f"{name} has {value.size(0)} rows; expected {edges.size(1)}, one for each edge"
            )
    return Frame(time, data, ids)


def _identities(data: Data, first: Frame | None, refuse: Callable[[str], Exception]) -> Tensor:
    ids, n = data.get("node_id"), data.x.size(0)
    if ids is None:
        if first is not None and (first.data.get("node_id") is not None or len(first.ids) != n):
            raise refuse(
                f"the frame has {n} nodes and no node_id, so that nobody knows which of them are "
                f"those of tick 0; expected node_id [nodes] in every frame"
            )
        return torch.arange(n)
    ids = torch.as_tensor(ids).cpu()
    if ids.shape != (n,) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise refuse(
            f"node_id is {ids.dtype} of shape {list(ids.shape)}; expected integers [{n}], one for "
            f"each node"
        )
    unique, count = ids.unique(return_counts=True)
    if unique.numel() < n:
        raise refuse(
            f"two nodes have the node_id {int(unique[count > 1][0])}; expected one node each"
        )
    return ids.long()


def _width(value: Tensor | None) -> tuple[object, ...] | None:
    return None if value is None else (*value.shape[1:], value.dtype)


def _said(width: tuple[object, ...] | None) -> str:
    if width is None:
        return "missing"
    *shape, dtype = width
    return f"{' by '.join(map(str, shape)) or 'one number'} wide ({str(dtype).partition('.')[2]})"
