"""The compiled update of a rule is the rule's own, update by update."""

import copy

import pytest
import torch
from helpers import DOUBLE, edges, randomise, undirected
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from hogwild import GSDGNN, EnergyGNN, Inputs
from hogwild.engines import updates_for
from hogwild.engines.rules import RuleKernel
from hogwild.errors import UnsupportedError
from hogwild.kernels.native import library
from hogwild.models import EnergyConv
from hogwild.nn.activations import Activation
from hogwild.rules import gradient_rule, message_rule
from hogwild_node.activations import SOFTPLUS

pytestmark = pytest.mark.skipif(library() is None, reason="the kernels are not compiled")

RULES = {
    "constant": lambda problem: gradient_rule(problem, 0.05),
    "certified": lambda problem: gradient_rule(problem, "certified", age=3),
    "auto": gradient_rule,
    "messages": message_rule,
    "messages, constant": lambda problem: message_rule(problem, 0.05),
}
OPTIONS = [
    {},
    {"heads": 3},
    {"heads": 2, "concat": False, "message": "node"},
    {"act": "squareplus", "widths": (3,)},
    {"normalize": True, "hidden_channels": 3, "message_channels": 1},
    {"aggr": "mean", "hidden_channels": 1, "widths": (2, 3, 4)},
    {"replicas": 3, "gate": "relu"},
    {"widths": (), "message": "node"},
    {"hidden_channels": 5, "message_channels": 3},
]
# A node without edges, degrees from 0 to 8.
ODD = undirected((0, 1), (1, 2), (2, 3), (3, 0), (2, 4), *((4, i) for i in range(6, 13)))
SIMPLE = undirected((0, 1), (1, 2), (2, 0), (2, 3), *((3, i) for i in range(4, 11)))


def pose(edge_index, n, seed=0, scale=0.7, weight=True, device="cpu", **options):
    """An energy with random parameters, far from linear, and embeddings to start at."""
    model = randomise(EnergyGNN(2, out_channels=1, **options).double(), scale, seed)
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=rng, **DOUBLE)
    weights = 0.5 + torch.rand(edge_index.size(1), generator=rng, **DOUBLE) if weight else None
    with torch.no_grad():
        inputs = Inputs(x, edge_index, edge_weight=weights).to(device)
        problem = model.to(device).problem(inputs).detach()
    return problem, 0.5 * torch.randn(problem.start().shape, generator=rng, **DOUBLE)


def started(make, problem, h):
    """A rule that has begun, and its letters."""
    rule = make(problem)
    return rule, rule.begin(h.clone(), problem.graph.everyone.current(h))


def compiled(rule, problem, h):
    kernel = updates_for(rule, problem.graph, h)
    assert isinstance(kernel, RuleKernel), kernel
    return kernel


def gap(one, two):
    """Largest difference, relative to the largest number; NaN where only one is NaN."""
    assert torch.equal(one.isfinite(), two.isfinite())
    if not one.numel():
        return 0.0
    return float((one - two).abs().max() / two.abs().max().clamp_min(1.0))


def stars(graph, ticks, seed=0):
    """All nodes, then some of them, in turns."""
    rng = torch.Generator().manual_seed(seed)
    for t in range(ticks):
        some = (torch.rand(graph.num_nodes, generator=rng) < 0.5).nonzero()[:, 0]
        yield graph.everyone if t % 3 == 0 or not some.numel() else graph.star(some)


@torch.no_grad()
def follow(make, problem, h, ticks, tolerance, then):
    """Both updates from the same state agree, and both runs stay together."""
    graph = problem.graph
    rule, letters = started(make, problem, h)
    other, _ = started(make, problem, h)
    kernel = compiled(other, problem, h)
    ours, sent = h.clone(), letters.clone()
    h = h.clone()
    for t, at in enumerate(stars(graph, ticks)):
        heard = torch.arange(graph.num_edges) if at.edges is None else at.edges
        nodes = torch.arange(graph.num_nodes) if at.nodes is None else at.nodes
        for side, update in ((0, rule.update), (1, kernel.update)):
            state, packets = ((h, letters), (ours, sent))[side]
            inbox, mail = state[..., graph.src[heard]], packets[..., graph.reverse[heard]]
            new, said = update(state[..., nodes].clone(), inbox.clone(), mail.clone(), at)
            state[..., nodes], packets[..., heard] = new, said
        bound = tolerance if t == 0 else then
        assert gap(ours, h) <= bound, t
        assert gap(sent, letters) <= 1e3 * bound, t


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_updates_are_those_of_the_rule(rule, options):
    """From the same state to rounding; many updates to what rounding errors grow to."""
    tight = rule in ("constant", "certified")
    for edge_index, n in ((SIMPLE, 12), (ODD, 14)):
        weight = "heads" not in options
        problem, h = pose(edge_index, n, weight=weight, **options)
        follow(RULES[rule], problem, h, 10, 1e-12, 1e-12 if tight else 1e-6)


@st.composite
def graphs(draw):
    """Edges in pairs i -> j, j -> i; isolated nodes occur."""
    n = draw(st.integers(1, 12))
    nodes = st.integers(0, n - 1)
    pairs = draw(st.sets(st.tuples(nodes, nodes).filter(lambda e: e[0] < e[1]), max_size=25))
    return undirected(*sorted(pairs)) if pairs else torch.zeros(2, 0, dtype=torch.long), n


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from(sorted(RULES)), st.sampled_from(OPTIONS), st.integers(0, 99))
def test_any_graph(found, rule, options, seed):
    edge_index, n = found
    problem, h = pose(edge_index, n, seed, weight="heads" not in options, **options)
    follow(RULES[rule], problem, h, 1, 1e-11, 1e-11)


def test_nodes_that_diverge_rest_and_return_as_in_the_rule():
    """Frustrated messages on a complete graph: trust falls, nodes retreat, as in the rule."""
    pairs = [(i, j) for i in range(8) for j in range(i)]
    problem, h = pose(undirected(*pairs), 8, seed=3, scale=1.6)
    rule, letters = started(message_rule, problem, h)
    twin, _ = started(message_rule, problem, h)
    kernel, everyone = compiled(twin, problem, h), problem.graph.everyone
    lowest, rested = 1.0, False
    with torch.no_grad():
        for _ in range(120):
            inbox, mail = everyone.current(h), letters[..., problem.graph.reverse]
            for mine, theirs in ((twin.trust, rule.trust), (twin.retreat, rule.retreat)):
                for name, value in vars(theirs).items():
                    getattr(mine, name).copy_(value)
            for name in ("own", "near", "known", "sent"):
                getattr(twin, name).copy_(getattr(rule, name))
            for name in ("own", "block", "trust", "last"):
                getattr(twin.gradient, name).copy_(getattr(rule.gradient, name))
            ours, sent = kernel.update(h, inbox, mail, everyone)
            h, letters = rule.update(h, inbox, mail, everyone)
            assert gap(ours, h) <= 1e-7
            assert gap(sent, letters) <= 1e-5
            for mine, theirs in ((twin.trust, rule.trust), (twin.retreat, rule.retreat)):
                for name in ("share", "lost", "left", "times", "turns", "score"):
                    if hasattr(theirs, name):
                        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
            lowest = min(lowest, float(rule.trust.share.min()))
            rested = rested or bool((rule.retreat.left > 0).any())
    assert lowest < 1.0
    assert rested


@pytest.mark.parametrize("rule", RULES)
def test_threads_do_not_change_a_bit(rule):
    problem, h = pose(
        undirected(*[(i, (7 * i + 1) % 900) for i in range(900) if 6 * i % 900 != 899]), 900
    )
    found = []
    for threads in (1, 2, 5):
        made, letters = started(RULES[rule], problem, h)
        kernel, everyone = compiled(made, problem, h), problem.graph.everyone
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            found.append(kernel.update(
                h, everyone.current(h), letters[..., problem.graph.reverse], everyone
            ))  # fmt: skip
        finally:
            torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert torch.equal(other[1], found[0][1])


def test_a_node_alone_computes_what_it_computes_among_others():
    problem, h = pose(ODD, 14)
    graph = problem.graph
    for make in RULES.values():
        rule, letters = started(make, problem, h)
        together, said = compiled(copy.deepcopy(rule), problem, h).update(
            h, graph.everyone.current(h), letters[..., graph.reverse], graph.everyone
        )
        for i in range(graph.num_nodes):
            at, mine = graph.star(torch.tensor([i])), copy.deepcopy(rule)
            inbox, mail = h[..., graph.src[at.edges]], letters[..., graph.reverse[at.edges]]
            alone, sent = compiled(mine, problem, h).update(h[..., [i]], inbox, mail, at)
            assert torch.equal(alone[..., 0], together[..., i])
            assert torch.equal(sent, said[..., at.edges])


def test_an_energy_without_memory_of_its_own_is_refused():
    problem, h = pose(SIMPLE, 11)
    rule, _ = started(gradient_rule, problem, h)
    kernel = compiled(rule, problem, h)
    traced = FakeTensorMode(allow_non_fake_inputs=True)
    with traced, pytest.raises(UnsupportedError, match="memory of its own"):
        kernel.pose()


def test_what_has_no_kernel_says_why():
    problem, h = pose(SIMPLE, 11)
    rule, _ = started(gradient_rule, problem, h)
    assert "float32" in updates_for(rule, problem.graph, h.float())
    for more in (edges((1, 1)), edges((0, 1), (1, 0))):
        twice, start = pose(torch.cat([SIMPLE, more], 1), 11)
        made, _ = started(gradient_rule, twice, start)
        assert "self-loops or parallel" in updates_for(made, twice.graph, start)
    bounded, _ = started(lambda p: gradient_rule(p, "certified", age=3, moving=True), problem, h)
    assert "bounds" in updates_for(bounded, problem.graph, h)
    wide, h = pose(SIMPLE, 11, hidden_channels=9)
    assert "wider" in updates_for(started(gradient_rule, wide, h)[0], wide.graph, h)
    constant, _ = started(RULES["constant"], wide, h)
    assert isinstance(updates_for(constant, wide.graph, h), RuleKernel)
    other = GSDGNN(2, out_channels=1).double().problem(Inputs(torch.randn(11, 2, **DOUBLE), SIMPLE))
    made = gradient_rule(other.detach())
    assert "only gradient steps" in updates_for(made, other.graph, h)
    act = Activation(
        "mine", SOFTPLUS.value, SOFTPLUS.slope, SOFTPLUS.curvature, SOFTPLUS.majoriser, 1.0, 0.25
    )
    own = EnergyConv(2, act=act).double().problem(Inputs(torch.randn(11, 2, **DOUBLE), SIMPLE))
    assert "activation" in updates_for(gradient_rule(own.detach()), own.graph, own.start())
