"""Conformance tests for impairments, and whether a recorded schedule is partially asynchronous.

.. code-block:: python

    from hogwild.testing import check_impairment


    def test_my_impairment():
        check_impairment(MyImpairment(rate=0.3))
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hogwild.asynchrony.impairments import Impairment
from hogwild.asynchrony.schedule import Schedule, Tick, bounds
from hogwild.asynchrony.trace import Trace
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import rule_for
from hogwild.testing.problems import Affine, random_graph

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


def _same(a: Tick, b: Tick) -> bool:
    return torch.equal(a.nodes, b.nodes) and torch.equal(a.view, b.view)


def _check_schedule(
    impairment: Impairment, stagger: int, delay: int, seed: int, ticks: int
) -> None:
    first, second = (_schedule(impairment, stagger, delay, seed) for _ in range(2))
    trace = Trace.of(first, {})
    for time in range(ticks):
        tick = first.tick(time)
        assert _same(tick, second.tick(time)), f"one seed gave two schedules, at tick {time}"
        trace.append(tick)
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
    answer = problem.answer()
    for count in range(50 * ticks):
        simulation.step()
        error = float((simulation.h - answer).abs().max() / answer.abs().max())
        if count >= ticks and error <= rtol:
            return
    raise AssertionError(
        f"packets shall come through again and again, and after {50 * ticks} ticks nodes are still "
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
