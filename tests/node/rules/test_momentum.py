"""Gradient steps with momentum: the formula, fewer updates, the fallback, graphs that move."""

import pytest
import torch
from helpers import chain, example

import hogwild
from hogwild import EnergyGNN, Inputs
from hogwild.analysis.certify import certify
from hogwild.asynchrony.scenarios import swarm
from hogwild.errors import ConfigError
from hogwild.rules import gradient_rule
from hogwild.testing import check_rule
from hogwild_node.rules.gradient import LARGEST, PACE, MomentumRule


def posed(size=6):
    torch.manual_seed(0)
    model, data = EnergyGNN(3, out_channels=2).double(), example(chain(size), size)
    with torch.no_grad():
        return model, data, model.problem(Inputs.of(data)).detach()


def test_updates_are_the_formula():
    """In step, with letters of the present, against the energy of the whole graph. The damping is
    at its largest: no gradient reverses."""
    _, _, problem = posed()
    everyone, rule = problem.graph.everyone, gradient_rule(problem, "momentum")
    assert isinstance(rule, MomentumRule)
    h = problem.start()
    rule.begin(h, everyone.current(h))
    pace, moves = torch.zeros_like(h), []
    for _ in range(4):
        letters = rule.refresh(h, everyone.current(h), everyone)
        mail = everyone_hears(problem.graph, letters)
        node = problem.node.quadratic(h, everyone.current(h), everyone, majorise=1.0)
        block = node.b.clone()
        block.index_add_(-1, problem.graph.src, node.toward_curvature())
        g = problem.evaluate(h).gradient
        climbs = (g * pace).sum(1, keepdim=True) > 0
        step = torch.linalg.solve(block.movedim(-1, 1), g.mT[..., None])[..., 0].mT
        pace = torch.where(climbs, 0.0, PACE * pace) - LARGEST * step
        new, _ = rule.update(h, everyone.current(h), mail, everyone)
        torch.testing.assert_close(new, h + pace, rtol=0, atol=1e-12)
        moves.append(float((new - h).abs().max()))
        h = new
    assert moves[1] > moves[0]  # nodes gather pace


def everyone_hears(graph, letters):
    """The letter on edge j → i is i's to j: deliver it along the edge i → j."""
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    back = [pairs.index((i, j)) for j, i in pairs]
    return letters[..., torch.tensor(back)]


def test_fewer_updates():
    model, data, _ = posed(12)
    usual, faster = (
        hogwild.simulate(model, data, rule="gradient", step=step, tol=1e-3, runs=2, ticks=20_000)
        for step in ("auto", "momentum")
    )
    assert usual.converged.all()
    assert faster.converged.all()
    assert faster.price.updates < 0.6 * usual.price.updates
    sizes = [run.bytes.sum() / run.packets.sum() for run in (usual, faster)]
    assert sizes[0] == sizes[1]


def test_swings_that_do_not_shrink_cost_trust():
    """Gradients of a pendulum: every third one reverses the pace."""
    _, _, problem = posed(2)
    everyone, rule = problem.graph.everyone, gradient_rule(problem, "momentum")
    h = problem.start()
    rule.begin(h, everyone.current(h))
    block = torch.eye(2, dtype=torch.float64).flatten()[:, None]
    seen, size = [], 1e3
    for turn in range(24):
        if turn % 3 == 0 and turn >= 12:
            size *= 0.5  # from here on swings shrink
        push = torch.full((2, 2), size * (-1.0) ** (turn // 3), dtype=torch.float64)
        mail = torch.cat([push, block.expand(4, 2)])[None]
        h = rule.update(h, everyone.current(h), mail, everyone)[0]
        seen.append(float(rule.trust.min()))
    assert seen[0] == seen[5] == LARGEST  # there is nothing to compare the first swing with
    assert seen[12] < seen[6] < LARGEST
    assert seen[-1] > seen[14]


def test_it_is_a_rule():
    check_rule(lambda problem: gradient_rule(problem, "momentum"), ticks=600)


def test_messages_have_no_momentum():
    model, data, _ = posed()
    with pytest.raises(ConfigError, match="expected rule='gradient', or another"):
        hogwild.simulate(model, data, rule="messages", step="momentum", ticks=3)
    with pytest.raises(ConfigError, match="expected rule='gradient', or another"):
        certify(model, data, rule="messages", step="momentum")


def test_graphs_that_move():
    moving = swarm(6, degree=3, changes=2, every=60, seed=0)
    model = hogwild.GSDGNN(1, out_channels=1)
    found = hogwild.track(model, moving, rule="gradient", step="momentum")
    assert found.error.max() > 0.3
    assert found.error[-1].max() < 0.05
