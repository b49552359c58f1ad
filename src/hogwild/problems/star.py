r"""One round of messages as its nodes see it: local energies over inboxes.

The same three networks as :class:`~hogwild.problems.picgnn.Round`, restricted to some nodes and the
edges into them, with whatever embeddings those nodes last heard. This is what a node computes on
its own: nothing here looks further than one hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.fields import gather, mtm
from hogwild.graph import Star
from hogwild.nn.picnn import Tape
from hogwild.problems.base import LocalQuadratic
from hogwild.problems.picgnn import Round


@dataclass
class StarTape:
    """The passes of the three networks over some nodes, and the local energies' derivatives."""

    round: Round  # on these nodes and edges only
    at: Star
    channels: int  # k
    message: Tape
    loop: Tape
    update: Tape

    @classmethod
    def of(cls, round: Round, h: Tensor, inbox: Tensor, at: Star) -> StarTape:
        """Local energies at ``h`` [R, k, A], given ``inbox`` [R, k, E']."""
        here = round.at(at)
        ends = [gather(h, at.slot), inbox] if round.both_ends else [inbox]
        y = torch.stack(ends, 2).flatten(1, 2)  # channel order (channel, end), as Round.read
        y = y if round.heads == 1 else y.repeat_interleave(round.heads, 0)
        message, loop = here.message.forward(y), here.loop.forward(h)
        m = at.collect(here.merge(message.value)) + here.weigh_loop(loop.value)
        return cls(here, at, h.size(1), message, loop, here.update.forward(torch.cat([m, h], 1)))

    @classmethod
    def bound(cls, round: Round, at: Star, channels: int) -> StarTape:
        """Passes whose derivatives dominate those at any point (:meth:`Context.bound`)."""
        here = round.at(at)
        passes = (here.message.bound(), here.loop.bound(), here.update.bound())
        return cls(here, at, channels, *passes)

    @property
    def width(self) -> int:
        """Channels of m_i."""
        return self.loop.value.size(1)

    @cached_property
    def _back(self) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """(own, toward) gradients and the sensitivities of the three networks."""
        rnd, at = self.round, self.at
        tbar, s_update = self.update.pullback(torch.ones_like(self.update.value))
        mbar, own = tbar[:, : self.width], tbar[:, self.width :]
        ybar, s_message = self.message.pullback(rnd.merge_transpose(gather(mbar, at.slot)))
        lbar, s_loop = self.loop.pullback(rnd.weigh_loop(mbar))
        if rnd.heads > 1:
            ybar = ybar.unflatten(0, (-1, rnd.heads)).sum(1)
        ybar = ybar.unflatten(1, (self.channels, -1))  # [R, k, ends, E']
        own = own + lbar
        if rnd.both_ends:
            own = own + at.collect(ybar[:, :, 0])
        return own, ybar[:, :, -1], s_message, s_loop, s_update

    @property
    def own(self) -> Tensor:
        """Gradient with respect to the nodes' own embeddings, without β, [R, k, A]."""
        return self._back[0]

    @property
    def toward(self) -> Tensor:
        """Gradient with respect to the embedding heard on each edge, [R, k, E']."""
        return self._back[1]

    def quadratic(self, majorise: float = 0.0, far: StarTape | None = None) -> LocalQuadratic:
        """The local energies to second order, without β; ``majorise`` and ``far`` as in
        :meth:`~hogwild.nn.picnn.Tape.hessian`."""
        rnd, at, k, c = self.round, self.at, self.channels, self.width
        own, toward, s_message, s_loop, s_update = self._back
        ends = 2 if rnd.both_ends else 1
        r = own.size(0)

        jacobians = self.message.jacobians()
        j = rnd.merge(jacobians[-1])
        count = j.size(-1)
        j = j.view(r, c, k, ends, count)
        curvature = self.message.hessian(
            jacobians, s_message, majorise, None if far is None else far.message
        )
        if curvature is None:
            curvature = j.new_zeros(r * rnd.heads, k * ends, k * ends, count)
        curvature = curvature.view(r, rnd.heads, k, ends, k, ends, count).sum(1)

        loop_jacobians = self.loop.jacobians()
        a = rnd.weigh_loop(loop_jacobians[-1])  # [R, C, k, A]
        b = self.loop.hessian(loop_jacobians, s_loop, majorise, None if far is None else far.loop)
        b = a.new_zeros(r, k, k, at.size) if b is None else b
        if rnd.both_ends:
            a = a + at.collect(j[..., 0, :].flatten(1, 2)).view_as(a)
            b = b + at.collect(curvature[:, :, 0, :, 0].flatten(1, 2)).view_as(b)

        u = self.update.hessian(
            self.update.jacobians(), s_update, majorise, None if far is None else far.update
        )
        if u is None:
            u = a.new_zeros(r, c + k, c + k, at.size)
        umm, umh, uhh = u[:, :c, :c], u[:, :c, c:], u[:, c:, c:]
        half = mtm(umm, a) + umh  # U_mm A + U_mh, [R, C, k, A]
        b = b + uhh + mtm(a, half) + mtm(a, umh).transpose(1, 2)
        to = j[..., -1, :]  # [R, C, k, E']
        half = gather(half.flatten(1, 2), at.slot).unflatten(1, (c, k))
        x = mtm(half, to)
        if rnd.both_ends:
            x = x + curvature[:, :, 0, :, 1]
        return LocalQuadratic(
            own, toward, b, x, curvature[:, :, -1, :, -1], to, umm.contiguous(), at
        )
