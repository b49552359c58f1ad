r"""Stacks of implicit layers: a node keeps, updates and sends the embeddings of all its levels.

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

from hogwild.engines.rules import RuleKernel, kernel_of
from hogwild.graph import Star
from hogwild.models.stack import StackProblem
from hogwild_node.rules.base import Kept, Rule, carry


class StackRule(Rule):
    """One update of every level, from the features up.

    Args:
        problem: The levels.
        rules: The rule of every level; those above the first are told where their problem moves
            (:meth:`Rule.pose`).
    """

    def __init__(self, problem: StackProblem, rules: Sequence[Rule]) -> None:
        self.problem, self.rules = problem, list(rules)
        self.everyone, self.channels = problem.graph.everyone, problem.channels
        self.letter = sum(rule.letter for rule in self.rules)
        self.kernels: list[RuleKernel] = []

    def compile(self) -> str:
        """From now on make the updates of all levels in compiled code, if that knows the rules of
        all of them. Call it after :meth:`begin`. Returns how updates are made."""
        self.kernels, found = [], []
        for rule, own in zip(self.rules, self.own, strict=True):
            kernel = kernel_of(rule, self.problem.graph, own)
            if isinstance(kernel, str):
                return f"torch: {kernel}"
            found.append(kernel)
        self.kernels = found
        return f"compiled ({found[0].native.instructions}, packets on torch)"

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

    def keep(self, before: StackRule, kept: Kept) -> None:
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
            self.rules[level].pose(problem.node)
            if self.kernels:
                self.kernels[level].pose()

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        heard, own = self._hear(h, inbox, at), self._levels(h)
        widths = [rule.letter for rule in self.rules]
        post = [None] * len(own) if mail is None else list(mail.split(widths, 1))
        letters: list[Tensor | None] = []
        updating: Sequence[Rule | RuleKernel] = self.kernels or self.rules
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
