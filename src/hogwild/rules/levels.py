r"""The rules of models with several levels, and of maps: they have no step.

**Stacks of implicit layers**: a node keeps, updates and sends the embeddings of all its levels.

A packet from j to i carries every level's :math:`h^{(s)}_j` and letter. At its turn node i goes
through its levels from the features up. Level s is a problem whose features are

.. math:: [x_i \,\|\, h^{(s-1)}_i] \text{ of the node itself}, \qquad
          [x_j \,\|\, h^{(s-1)}_j(\tau^i_j)] \text{ of every neighbour, as last heard:}

node i poses that problem to itself and makes one update by the level's rule. No node waits for the
level below to settle, or needs to know whether it has. Once the level below has settled, the
problem of the level above stands still, and that level settles as it would alone. The proof is in
the documentation ("Asynchrony").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hogwild.engines import updates_for
from hogwild.engines.base import Updates
from hogwild.errors import AsynchronyError
from hogwild.graph import Star
from hogwild.models.program import LayeredProblem, StackProblem
from hogwild.problems.base import FixedPoint
from hogwild.rules.base import About
from hogwild_node.rules import CachingRule, FixedPointRule, OverwritingRule, ResendingRule, Rule
from hogwild_node.rules.base import Survivors, carry


def fixed_point_rule(problem: FixedPoint) -> FixedPointRule:
    """The rule that applies a map."""
    return FixedPointRule(problem.node, problem.graph.everyone, problem.channels)


def caching_rule(problem: LayeredProblem) -> Rule:
    """Layers that nodes recompute, all of them, from their neighbours' newest values."""
    return CachingRule(problem.node, problem.graph.everyone, problem.channels)


def overwriting_rule(problem: LayeredProblem) -> Rule:
    """The paper's rule for layers.

    Raises:
        AsynchronyError: The layers have several widths.
    """
    if len(set(problem.widths)) > 1:
        raise AsynchronyError(
            f"rule='overwriting' was given for layers whose values have the widths "
            f"{', '.join(map(str, problem.widths))} (the last is what the last layer gives); a "
            f"node that overwrites has one value, which its neighbours read at whatever layer "
            f"they are, so expected one width. Use rule='caching', which is exact for any widths"
        )
    return OverwritingRule(problem.node, problem.graph.everyone, problem.channels)


def resending_rule(problem: LayeredProblem) -> Rule:
    """Layers whose values are acknowledged.

    Raises:
        AsynchronyError: The graph has an edge without a reverse.
    """
    problem.graph.require_reverse_links(
        "rule='resending' needs an acknowledgement for every value; rule='caching' needs none"
    )
    return ResendingRule(problem.node, problem.graph.everyone, problem.channels)


FIXED = About(
    fits=FixedPoint,
    make=fixed_point_rule,
    differentiable=True,
    proof="contraction",
    better=("balls",),
    tuning="training with a smaller kappa or modulus of contraction",
)
CACHING = About(
    fits=LayeredProblem,
    make=caching_rule,
    proof="layers",
    exact=True,
    timed=True,
    reason="a node recomputes all layers from its neighbours' newest values of all of them: values "
    "of layer l + 1 are right once those of layer l are and have been heard, so the answer is the "
    "synchronous one after L (S + D) ticks, and under any loss or delay as soon as values have "
    "crossed L hops",
    gain=", in which nobody waits, in larger packets",
)
OVERWRITING = About(
    fits=LayeredProblem,
    make=overwriting_rule,
    differentiable=True,
    proof="layers",
    reason="a node applies its layers to the values that its neighbours last sent, of whichever "
    "layer: the result depends on the schedule, and no further update mends it",
    remedy="rule='caching' gives the synchronous answer in any order and with losses, in packets "
    "of all layers; rule='resending' in smaller packets that are acknowledged",
)
RESENDING = About(
    fits=LayeredProblem,
    make=resending_rule,
    proof="layers",
    exact=True,
    reason="nodes wait for the layer they need, and every value is sent until it is acknowledged: "
    "the answer is the synchronous one as soon as every node has had its layers, with any delay "
    "and loss that lets a packet through now and then",
    better=("caching",),
    tuning="",
)


class StackRule(Rule):
    """One update of every level, from the features up.

    Args:
        problem: The levels.
        rules: The rule of every level; those above the first are told where their problem moves
            (:meth:`Rule.set_model`).
    """

    def __init__(self, problem: StackProblem, rules: Sequence[Rule]) -> None:
        self.problem, self.rules = problem, list(rules)
        self.everyone, self.channels = problem.graph.everyone, problem.channels
        self.letter_width = sum(rule.letter_width for rule in self.rules)
        self.kernels: list[Updates] = []

    def compile(self) -> str:
        """From now on make the updates of all levels in compiled code, if that knows the rules of
        all of them. Call it after :meth:`begin`. Returns how updates are made."""
        self.kernels, found = [], []
        for rule, own in zip(self.rules, self.own, strict=True):
            kernel = updates_for(rule, self.problem.graph, own)
            if isinstance(kernel, str):
                return f"torch: {kernel}"
            found.append(kernel)
        self.kernels = found
        return f"{found[0].path}, packets on torch"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"kernels": []}  # compiled code knows addresses

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor | None:
        self.kernels = []  # they know the addresses of the memory before
        self.start = self._levels(h)
        self.own = [x.clone() for x in self.start]
        self.heard = [x.clone() for x in self._levels(inbox)]
        letters: list[Tensor | None] = []
        for level, rule in enumerate(self.rules):
            self._pose(level)
            letters.append(rule.begin(self.own[level], self.heard[level]))
        return _joined(letters)

    def forget(self, nodes: Tensor) -> None:
        for rule, own, start in zip(self.rules, self.own, self.start, strict=True):
            rule.forget(nodes)
            own[..., nodes] = start[..., nodes]

    def keep(self, before: StackRule, kept: Survivors) -> None:
        for level, (rule, old) in enumerate(zip(self.rules, before.rules, strict=True)):
            self.own[level] = carry(self.own[level], before.own[level], kept.nodes)
            self.heard[level] = carry(self.heard[level], before.heard[level], kept.edges)
            self._pose(level)
            rule.keep(old, kept)

    def _levels(self, h: Tensor) -> list[Tensor]:
        return list(h.split(self.problem.widths, 1))

    def _hear(self, h: Tensor, inbox: Tensor, at: Star) -> list[Tensor]:
        """Remember what came in; the levels of the inbox."""
        news = self._levels(at.own_view(h, inbox))
        for level, (mine, new) in enumerate(zip(self._levels(h), news, strict=True)):
            self.own[level] = at.put(self.own[level], mine)
            self.heard[level] = at.put_edges(self.heard[level], new)
        return news

    def _pose(self, level: int) -> None:
        """The level's problem as the embeddings below now pose it."""
        if level:
            below = level - 1
            problem = self.problem.pose(level, self.own[below], self.heard[below])
            self.rules[level].set_model(problem.node)
            if self.kernels:
                self.kernels[level].pose()

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        heard, own = self._hear(h, inbox, at), self._levels(h)
        widths = [rule.letter_width for rule in self.rules]
        post = [None] * len(own) if mail is None else list(mail.split(widths, 1))
        letters: list[Tensor | None] = []
        updating: Sequence[Rule | Updates] = self.kernels or self.rules
        for level, rule in enumerate(updating):
            self._pose(level)
            own[level], letter = rule.update(own[level], heard[level], post[level], at)
            self.own[level] = at.put(self.own[level], own[level])
            letters.append(letter)
        return torch.cat(own, 1), _joined(letters)

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor | None:
        heard, own = self._hear(h, inbox, at), self._levels(h)
        letters: list[Tensor | None] = []
        for level, rule in enumerate(self.rules):
            self._pose(level)
            letters.append(rule.refresh(own[level], heard[level], at))
        return _joined(letters)


def _joined(letters: list[Tensor | None]) -> Tensor | None:
    """The letters of all levels that have one, one below the other."""
    found = [letter for letter in letters if letter is not None]
    return torch.cat(found, 1) if found else None
