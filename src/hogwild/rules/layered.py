r"""Explicit models: a node applies its next layer to whatever it last heard, and stops after L.

.. math:: h_i \leftarrow f^{(t_i)}_i\bigl(h_i, \{h_j(\tau^i_j) : j \in N(i)\}\bigr), \qquad
          t_i \leftarrow t_i + 1 \quad \text{while } t_i < L

Nodes count their own updates and nobody else's: at its layer 2 a node may read a neighbour's value
of layer 0 or 4, which is why the answer depends on the schedule. This is ``"overwriting"``: a node
has one value, which the next one replaces.

:class:`WaitingRule` is the remedy a sceptic suggests: packets carry the values of all layers
finished so far, and a node waits until every neighbour has delivered the one it needs. The answer
is then the synchronous one, at the pace of the slowest; and since a layer is sent once, a message
that is lost is missing for ever. :mod:`~hogwild.rules.resending` mends that with acknowledgements,
:mod:`~hogwild.rules.caching` without.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.graph import Star
from hogwild.models.layers import LayeredProblem
from hogwild_node.rules.base import Rule


class LayerByLayer(Rule):
    """What rules that apply one layer an update share: each node's layer."""

    def __init__(self, problem: LayeredProblem) -> None:
        self.problem, self.graph, self.channels = problem, problem.graph, problem.channels
        self.everyone = problem.graph.everyone
        self.depth = problem.depth

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor | None:
        self.layer = torch.zeros(self.graph.num_nodes, dtype=torch.long, device=h.device)
        return None

    def forget(self, nodes: Tensor) -> None:
        self.layer[nodes] = 0

    def _each(
        self,
        layer: Tensor,
        at: Star,
        out: Tensor,
        make: Callable[[int, Tensor, Tensor, Star], Tensor],
        ready: Tensor | None = None,
    ) -> Tensor:
        """``out`` [R, w, A], where of the nodes at each ``layer`` [A] it is what ``make`` says."""
        result = out
        for index in layer.unique().tolist():
            some = layer == index if ready is None else (layer == index) & ready
            if bool(some.any()):
                part, keep = at.part(some)
                new = make(index, some, keep, part)
                result = result.clone() if result is out else result
                result[..., some] = new
        return result

    def _apply(self, h: Tensor, inbox: Tensor, at: Star, ready: Tensor | None = None) -> Tensor:
        """The next layer of the ``ready`` nodes (all by default), from the values [R, w, E'] of the
        layer each node is at; narrower ones are filled up below."""
        layer, widths = at.at_nodes(self.layer), self.problem.widths
        going = layer < self.depth  # a replayed schedule may go on for longer
        ready = going if ready is None else going & ready

        def next_layer(index: int, some: Tensor, keep: Tensor, part: Star) -> Tensor:
            heard = inbox[:, : widths[index]][..., keep]
            return self.problem.update(index, h[..., some], heard, part)

        out = self._each(layer, at, h, next_layer, ready)
        self.layer = at.put(self.layer, layer + ready)
        return out


class LayeredRule(LayerByLayer):
    """One layer an update, never waiting: a node has one value, which it overwrites.

    A neighbour's value of any layer may be read as that of any other, so all must have one width.
    """

    ends = True

    def __init__(self, problem: LayeredProblem) -> None:
        super().__init__(problem)
        if len(set(problem.widths)) > 1:
            raise AsynchronyError(
                f"rule='overwriting' was asked of layers whose values have the widths "
                f"{', '.join(map(str, problem.widths))} (the last is what the last layer gives); a "
                f"node that overwrites has one value, which its neighbours read at whatever layer "
                f"they are, so expected one width. Use rule='caching', which is exact for any "
                f"widths"
            )

    def finished(self, nodes: Tensor) -> Tensor:
        return self.layer[nodes] >= self.depth

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        return self._apply(h, inbox, at), None

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        def value(index: int, some: Tensor, keep: Tensor, part: Star) -> Tensor:
            return self.problem.value(index, h[..., some], part)

        like = h.new_empty(h.size(0), self.problem.widths[0], at.size)
        return self._each(at.at_nodes(self.layer), at, like, value)

    def numbers(self, at: Star) -> int:
        return self.problem.widths[0]


class ValueByValue(LayerByLayer):
    """What rules that send the values of several layers share: a node's own values, one below the
    other, [R, sum(widths[:-1]), N], filled up to its layer."""

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor | None:
        super().begin(h, inbox)
        widths = self.problem.widths[:-1]
        device = h.device
        self.rows = torch.repeat_interleave(torch.tensor(widths)).to(device)  # layer of each row
        self.offset = torch.tensor([0, *widths], device=device).cumsum(0)  # first row of each layer
        self.values = h.new_zeros(h.size(0), sum(widths), h.size(-1))
        self.values[:, : widths[0]] = self.problem.value(0, h, self.everyone)
        return None

    def forget(self, nodes: Tensor) -> None:
        super().forget(nodes)
        self.values[:, self.problem.widths[0] :, nodes] = 0.0  # it can still see its own features

    def _tag(self, at: Star) -> Tensor:
        """The last layer whose value each node has, [A]."""
        return at.at_nodes(self.layer).clamp_max(self.depth - 1)

    def _of_layer(self, values: Tensor, layer: Tensor) -> Tensor:
        """From values of all layers [R, sum(widths[:-1]), n] those of one ``layer`` [n] each,
        [R, max(widths), n]; what is narrower has something else below."""
        width = torch.arange(max(self.problem.widths[:-1]), device=values.device)
        rows = self.offset[layer] + width.unsqueeze(1)  # [w, n]
        rows = rows.clamp_max(values.size(1) - 1).expand(values.size(0), -1, -1)
        return values.gather(1, rows)

    def _advance(self, h: Tensor, values: Tensor, at: Star, ready: Tensor) -> Tensor:
        """The next layer of the ``ready`` nodes from their neighbours' values of all layers, each
        edge's [R, sum(widths[:-1]), E']; their own new values are kept."""
        layer = at.at_nodes(self.layer)
        heard = self._of_layer(values, layer[at.slot].clamp_max(self.depth - 1))
        h = self._apply(h, heard, at, ready)

        def value(index: int, some: Tensor, keep: Tensor, part: Star) -> Tensor:
            own, low, high = part.at_nodes(self.values).clone(), *self.offset[index : index + 2]
            own[:, low:high] = self.problem.value(index, h[..., some], part)
            return own

        fresh = ready & (layer + 1 < self.depth)  # nobody reads a value of the last layer
        values = self._each(layer + 1, at, at.at_nodes(self.values), value, fresh)
        self.values = at.put(self.values, values)
        return h


class WaitingRule(ValueByValue):
    """One layer an update, once every neighbour has delivered the layer needed.

    A packet is [tag, value of layer 0, …, value of layer L − 1], filled up to the tag; ``heard`` is
    the largest tag each edge has delivered, ``missing`` the first layer that was lost on it (L:
    none).
    """

    ends = True

    def begin(self, h: Tensor, inbox: Tensor) -> None:
        super().begin(h, inbox)
        self.missing = torch.full(
            (self.graph.num_edges,), self.depth, dtype=torch.long, device=h.device
        )
        self.heard = torch.zeros_like(self.missing)

    def finished(self, nodes: Tensor) -> Tensor:
        return self.layer[nodes] >= self.depth

    def broadcast(self, h: Tensor, at: Star) -> Tensor:
        tag = self._tag(at).to(h.dtype).expand(h.size(0), 1, -1)
        return torch.cat([tag, at.at_nodes(self.values)], 1)

    def numbers(self, at: Star) -> Tensor:
        """A layer's value is sent once, with its tag."""
        tag = self._tag(at)
        return 1 + self.offset[tag + 1] - self.offset[tag]

    def lose(self, edges: Tensor, packets: Tensor) -> None:
        """Whatever these packets brought beyond what was heard before is gone."""
        new = packets[0, 0].round().to(torch.long) > self.heard[edges]
        first = self.heard[edges] + 1
        missing = torch.minimum(self.missing[edges], first)
        self.missing[edges] = torch.where(new, missing, self.missing[edges])

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        edges = torch.arange(at.slot.numel(), device=h.device) if at.edges is None else at.edges
        tag = torch.minimum(inbox[0, 0].round().to(torch.long), self.missing[edges] - 1)
        self.heard[edges] = torch.maximum(self.heard[edges], tag)
        layer = at.at_nodes(self.layer)
        # By the packet at hand: one that was overtaken, or whose sender began anew, holds less
        # than was heard before.
        late = (tag < layer[at.slot]) & (self.graph.src[edges] != self.graph.dst[edges])
        ready = torch.zeros_like(layer).scatter_add(0, at.slot, late.to(torch.long)) == 0
        ready = ready & (layer < self.depth)
        h = self._advance(h, inbox[:, 1:], at, ready)
        self.waited = ~ready
        self.silent = ~ready | (at.at_nodes(self.layer) >= self.depth)  # nothing new to say
        return h, None
