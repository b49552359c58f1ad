"""Conformance tests for rules, for the executors that run them, and for impairments; and whether a
recorded schedule is partially asynchronous.

.. code-block:: python

    from hogwild.testing import check_executor, check_impairment, check_rule


    def test_my_rule():
        check_rule(lambda problem: MyRule(problem.node, problem.graph.everyone, problem.channels))


    def test_my_executor():
        check_executor(my_executor)  # called as my_executor(problem, rule, seed)


    def test_my_impairment():
        check_impairment(MyImpairment(rate=0.3))
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hogwild.asynchrony.impairment import Impairment
from hogwild.asynchrony.schedule import Schedule, bounds
from hogwild.asynchrony.trace import Trace
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import rule_for
from hogwild.testing.problems import Affine, Quadratic, random_graph
from hogwild_node.rules.base import Rule


def _problem(kind: str, graph: Graph) -> Any:
    """A problem with a known answer. Energies are well conditioned, so that gradient steps converge
    quickly."""
    if kind == "fixed-point":
        return Affine.random(graph, replicas=2)
    found = Quadratic.random(graph, replicas=2, coupling=0.5)
    return replace(found, q=found.q + torch.eye(found.channels, dtype=found.q.dtype))


def _error(problem: Any, h: Tensor) -> float:
    """Distance from the answer, relative to the largest entry of the answer."""
    answer = problem.answer()
    return float((h - answer).abs().max() / answer.abs().max())


def synchronous(rule: Rule, graph: Graph, h: Tensor, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many updates of all nodes, which begin at ``h`` [R, k, N].
    A rule with letters needs a reverse edge for every edge."""
    everyone = graph.everyone
    letters = rule.begin(h, everyone.current(h))
    for _ in range(updates):
        inbox = everyone.current(rule.broadcast(h, everyone))
        mail = None if letters is None else letters[..., graph.reverse]
        h, letters = rule.update(h, inbox, mail, everyone)
    return h


@torch.no_grad()
def check_rule(
    make: Callable[[Any], Rule], *, kind: str = "objective", ticks: int = 500, rtol: float = 1e-6
) -> None:
    """Assert the properties that every rule must have.

    * Letters have the width that the rule declares.
    * Several nodes together compute the same as each node alone.
    * Nodes that all hold the answer stay there.
    * The nodes reach the answer with late packets and turns at different times, even if some nodes
      lose their memory.

    Args:
        make: Builds the rule for a problem.
        kind: ``"objective"`` (the problem is an energy) or ``"fixed-point"``.
        ticks: Ticks of simulation after which the answer must be there.
        rtol: Allowed relative error of the answer.
    """
    graph = random_graph([1, 2, 5, 9])
    problem = _problem(kind, graph)
    everyone, edges = graph.everyone, graph.num_edges
    start = problem.start()

    rule = make(problem)
    letters = rule.begin(start.clone(), everyone.current(start))
    if rule.letter_width:
        assert letters is not None, "the rule declares letters, but begin() returns none"
        assert letters.shape == (2, rule.letter_width, edges), (
            "letters do not have the declared shape"
        )
    else:
        assert letters is None, "the rule declares no letters, but begin() returns some"

    # Several nodes together compute the same as each node alone.
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(start.shape, generator=generator, dtype=start.dtype)
    inbox = everyone.current(rule.broadcast(h, everyone))
    mail = None if letters is None else letters[..., graph.reverse]
    nodes = torch.tensor([3, 5, 9])
    some = graph.star(nodes)

    def heard(x: Tensor | None, at: Tensor | None) -> Tensor | None:
        return None if x is None else x[..., at]

    together = copy.deepcopy(rule).update(
        h[..., nodes], inbox[..., some.edges], heard(mail, some.edges), some
    )
    for place, node in enumerate(nodes.tolist()):
        at = graph.star(torch.tensor([node]))
        alone = copy.deepcopy(rule).update(
            h[..., at.nodes], inbox[..., at.edges], heard(mail, at.edges), at
        )
        gap = float((alone[0][..., 0] - together[0][..., place]).abs().max())
        assert gap <= 1e-10, f"node {node} alone differs by {gap:.1e} from among others"
        if alone[1] is not None and together[1] is not None:
            gap = (alone[1] - together[1][..., some.slot == place]).abs()
            assert float(gap.sum()) <= 1e-8, f"letters of node {node} depend on other nodes"

    # Nodes that hold the answer stay there.
    settled = synchronous(make(problem), graph, problem.answer(), 30)
    assert _error(problem, settled) <= rtol, "a node that holds the answer left it"

    # An asynchronous run reaches the answer.
    rule = make(problem)
    simulation = Simulation(rule, Schedule(graph, stagger=3, delay=2, seed=1), start)
    for tick in range(ticks):
        simulation.step()
        if tick == ticks // 4:
            rule.forget(torch.tensor([1, 4]))
    assert _error(problem, simulation.h) <= rtol, (
        f"relative error {_error(problem, simulation.h):.1e} after {ticks} ticks"
    )


def check_executor(
    execute: Callable[[Any, Rule, int], Tensor], *, rtol: float = 1e-6, repeats: bool = True
) -> None:
    """Assert that an executor finds known answers with the rules for energies and fixed points.

    The batch contains a graph of one node. The result must be a function of the seed.

    Args:
        execute: Runs a rule on a problem until the embeddings no longer change, and returns them,
            [R, k, N]. It is called as ``execute(problem, rule, seed)``.
        rtol: Allowed relative error of the answer.
        repeats: Whether the same seed must give the same bits.
    """
    graph = random_graph([1, 3, 6], seed=2)
    for kind, names in (("objective", ("gradient", "messages")), ("fixed-point", ("fixed-point",))):
        problem = _problem(kind, graph)
        for name in names:
            first = execute(problem, rule_for(problem, name), 0)
            error = _error(problem, first)
            assert error <= rtol, f"{name}: relative error {error:.1e}; expected {rtol:.0e}"
            if repeats:
                again = execute(problem, rule_for(problem, name), 0)
                assert torch.equal(first, again), f"{name}: one seed gave two answers"


# -- impairments ----------------------------------------------------------------------------------

PAIRS = ((1, 0), (3, 2), (5, 0))
"""The bounds (S, D) of the schedules that are tried."""


def check_impairment(impairment: Impairment, *, ticks: int = 400, rtol: float = 1e-6) -> None:
    """Assert what every impairment must be.

    * It is a plain value: two with the same fields are equal, and it has a hash.
    * A schedule is a function of its seed.
    * The bounds that :meth:`~hogwild.asynchrony.Impairment.bound` promises hold on recorded
      schedules, and no node hears the future.
    * Where packets say what their senders computed (``exact``), :meth:`send` changes nothing.
      Otherwise it changes no number by more than ``error``.
    * Where packets come through again and again (``recurs``, or a bound), nodes that apply a
      contraction reach the answer, if packets are exact and no node loses its memory for ever.

    Args:
        impairment: The impairment, with its options.
        ticks: Ticks of each schedule, and at least this many for the contraction.
        rtol: Allowed relative error of the contraction's answer.
    """
    values = {f.name: getattr(impairment, f.name) for f in fields(impairment)}
    again = type(impairment)(**values)
    assert impairment == again, "two impairments with the same fields differ"
    assert hash(impairment) == hash(again), "two equal impairments have different hashes"
    for stagger, delay in PAIRS:
        for seed in range(2):
            _check_schedule(impairment, stagger, delay, seed, ticks)
    _check_packets(impairment)
    known = bounds(3, 2, (impairment,)) is not None
    if impairment.exact and (known or impairment.recurs):
        _check_answer(impairment, max(ticks, 4 * impairment.calm), rtol)


def _schedule(impairment: Impairment, stagger: int, delay: int, seed: int) -> Schedule:
    graph = random_graph([1, 4, 8], seed=seed)
    return Schedule(graph, stagger=stagger, delay=delay, seed=seed, impairments=(impairment,))


def _check_schedule(
    impairment: Impairment, stagger: int, delay: int, seed: int, ticks: int
) -> None:
    first, second = (_schedule(impairment, stagger, delay, seed) for _ in range(2))
    trace = Trace.of(first, {})
    for time in range(ticks):
        tick = first.tick(time)
        same = second.tick(time)
        equal = torch.equal(tick.nodes, same.nodes) and torch.equal(tick.view, same.view)
        assert equal, f"one seed gave two schedules, at tick {time}"
        trace.ticks.append(tick)
    held = bounds(stagger, delay, (impairment,))
    bound = ticks + 1 if held is None else max(held[0], held[1] + 1)
    seen = check_trace(trace, first.graph, bound)
    assert seen.own_state, "a node heard the future"
    promised = f"S = {stagger}, D = {delay}: bound() promises B = {bound}"
    assert seen.updates, f"{promised}, and a node did not update for {seen.longest_gap} ticks"
    assert seen.staleness, f"{promised}, and a node used a packet {seen.oldest_view} ticks old"


def _check_packets(impairment: Impairment) -> None:
    payload: Tensor = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    payload = payload.double()
    moved = float((impairment.send(payload.clone()) - payload).abs().max())
    if impairment.exact:
        assert moved == 0.0, f"exact packets were changed by {moved:.1e}"
    else:
        assert moved <= impairment.error * (1.0 + 1e-12), (
            f"a number was changed by {moved:.1e}, and error promises {impairment.error:.1e}"
        )


@torch.no_grad()
def _check_answer(impairment: Impairment, ticks: int, rtol: float) -> None:
    schedule = _schedule(impairment, 3, 2, 1)
    problem = Affine.random(schedule.graph, replicas=2)
    simulation = Simulation(rule_for(problem), schedule, problem.start(), impairments=(impairment,))
    for count in range(50 * ticks):
        simulation.step()
        error = _error(problem, simulation.h)
        if count >= ticks and error <= rtol:
            return
    raise AssertionError(
        f"packets should come through again and again; after {50 * ticks} ticks nodes are still "
        f"{error:.1e} away from the answer of a contraction"
    )


@dataclass
class Assumptions:
    """Whether a trace is partially asynchronous with bound B, and what was seen."""

    bound: int
    longest_gap: int  # (a) ticks between two updates of a node
    oldest_view: int  # (b) age of a view when it was used
    updates: bool  # (a) holds
    staleness: bool  # (b) holds
    own_state: bool  # (c) holds

    @property
    def hold(self) -> bool:
        return self.updates and self.staleness and self.own_state


def check_trace(trace: Trace, graph: Graph, bound: int) -> Assumptions:
    """Check (a), (b) and (c) on a trace, independently of what drew it.

    Plain Python over the recorded integers: every node's update times, every view's age. (c), that
    a node knows its own state, needs no view: views on self-loops are not counted. The check is
    that no node hears the future.
    """
    last = {node: 0 for node in range(graph.num_nodes)}
    source, target = graph.src.tolist(), graph.dst.tolist()
    gap = age = 0
    own = True
    end = max((tick.time for tick in trace.ticks), default=0)
    for tick in trace.ticks:
        for node in tick.nodes.tolist():
            gap = max(gap, tick.time - last[node])
            last[node] = tick.time
        for edge, view in zip(tick.edges.tolist(), tick.view.tolist(), strict=True):
            own &= view <= tick.time
            if source[edge] != target[edge]:
                age = max(age, tick.time - view)
    gap = max([gap, *(end - time for time in last.values())])
    return Assumptions(bound, gap, age, gap <= bound, age < bound, own)
